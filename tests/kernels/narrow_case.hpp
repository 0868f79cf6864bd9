// SPDX-License-Identifier: Apache-2.0
// A narrow problem for tests: random inputs in awkward memory, a plan written bit by bit, a run of the kernel, and the same sums in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <heed/tensor.hpp>

#include "base/cpu.hpp"
#include "kernels/attention/forward.hpp"
#include "support/tensors.hpp"

namespace heed::test {

/// May token `i`, query head `g` of the group, see key `j`?
using Sees = std::function<bool(std::int64_t i, std::int64_t g, std::int64_t j)>;

enum class Memory { kCompact, kStrided };  // kStrided: the last axis is not the innermost one

struct NarrowSpec {
  std::int64_t tokens = 1, group = 4, keys = 300, dim = 64, value_dim = 64;
  DType q_type = DType::kFloat32, kv_type = DType::kFloat32;
  Memory memory = Memory::kCompact;
  std::vector<std::int64_t> segments = {};  // rows of each; empty: one segment
  Sees sees = {};                           // empty: everything
  float scale = 0.0F;                       // 0: 1/sqrt(dim)
  float softcap = 0.0F;
  bool has_bias = false, has_alibi = false, has_sinks = false;
  DType bias_type = DType::kFloat32;
  double q_size = 1.0;  // standard deviation of q
  std::uint64_t seed = 1;
};

/// float64 results: out [tokens][group][value_dim], lse and row_max [tokens][group].
struct NarrowTruth {
  std::vector<double> out, lse, row_max;
};
/// What a kernel wrote, in the same order.
struct NarrowResult {
  Tensor out, lse, row_max;
};

/// The arrays of a TilePlan with one row block.
struct OwnedPlan {
  std::vector<std::int64_t> run_begin;
  std::vector<kernels::TileRun> runs;
  std::vector<std::uint64_t> bits;
  kernels::TilePlan plan;
};

inline OwnedPlan make_plan(std::int64_t tokens, std::int64_t group, std::int64_t keys, const Sees& sees) {
  OwnedPlan result;
  const std::int64_t rows = tokens * group;
  std::int64_t tiles_with_bits = 0;
  for (std::int64_t first = 0; first < keys; first += kernels::kBlockKeys) {
    std::uint64_t words[kernels::kBlockKeys] = {};
    std::int64_t shown = 0;
    const std::int64_t n = std::min<std::int64_t>(kernels::kBlockKeys, keys - first);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t r = 0; r < rows; ++r) {
        if (sees && !sees(r / group, r % group, first + j)) continue;
        words[j] |= std::uint64_t{1} << r;
        ++shown;
      }
    }
    if (shown == 0) continue;
    const auto block = static_cast<std::int32_t>(first / kernels::kBlockKeys);
    if (shown < n * rows) {
      result.runs.push_back({block, 1, tiles_with_bits++});
      result.bits.insert(result.bits.end(), words, words + kernels::kBlockKeys);
    } else if (!result.runs.empty() && result.runs.back().bits < 0 &&
               result.runs.back().first_block + result.runs.back().block_count == block) {
      ++result.runs.back().block_count;
    } else {
      result.runs.push_back({block, 1, -1});
    }
  }
  result.run_begin = {0, static_cast<std::int64_t>(result.runs.size())};
  result.plan = {rows, keys, static_cast<std::int32_t>(rows), result.run_begin.data(), result.runs.data(), result.bits.data()};
  return result;
}

/// [rows, dim], or its transpose in memory.
inline Tensor matrix(std::int64_t rows, std::int64_t dim, Memory memory, DType dtype, std::uint64_t seed, double size = 1.0) {
  return memory == Memory::kCompact ? random_normal({rows, dim}, dtype, seed, size) : random_normal({dim, rows}, dtype, seed, size);
}
inline TensorView rows_of(const Tensor& tensor, Memory memory) {
  return memory == Memory::kCompact ? tensor.view() : permute(tensor.view(), {1, 0});
}

class NarrowCase {
 public:
  explicit NarrowCase(const NarrowSpec& spec)
      : spec_(spec), q_(matrix(spec.tokens * spec.group, spec.dim, spec.memory, spec.q_type, spec.seed, spec.q_size)),
        bias_(random_normal({spec.group, spec.tokens, spec.keys}, spec.bias_type, spec.seed + 1)),
        plan_(make_plan(spec.tokens, spec.group, spec.keys, spec.sees)) {
    if (spec_.segments.empty()) spec_.segments = {spec.keys};
    for (std::size_t s = 0; s < spec_.segments.size(); ++s) {
      // Every segment is an allocation of its own: a read past its rows is a read past the end.
      k_.push_back(matrix(spec_.segments[s], spec.dim, spec.memory, spec.kv_type, spec.seed + 100 + 2 * s));
      v_.push_back(matrix(spec_.segments[s], spec.value_dim, spec.memory, spec.kv_type, spec.seed + 101 + 2 * s));
      first_.push_back(s == 0 ? 0 : first_.back() + spec_.segments[s - 1]);
    }
    for (std::int64_t g = 0; g < spec.group; ++g) {
      slopes_.push_back(std::exp2(-0.5F * static_cast<float>(g + 1)));
      sinks_.push_back(static_cast<float>(g) - 1.0F);
    }
  }

  [[nodiscard]] const NarrowSpec& spec() const { return spec_; }
  [[nodiscard]] std::int64_t rows() const { return spec_.tokens * spec_.group; }
  [[nodiscard]] std::int64_t query_offset() const { return spec_.keys - spec_.tokens; }
  [[nodiscard]] float scale() const { return spec_.scale != 0.0F ? spec_.scale : 1.0F / std::sqrt(static_cast<float>(spec_.dim)); }
  [[nodiscard]] bool sees(std::int64_t i, std::int64_t g, std::int64_t j) const {
    return (!spec_.sees || spec_.sees(i, g, j)) && !(spec_.has_bias && bias(i, g, j) == -kInfinity);
  }

  [[nodiscard]] double q(std::int64_t row, std::int64_t d) const { return element(rows_of(q_, spec_.memory), {row, d}); }
  [[nodiscard]] double k(std::int64_t j, std::int64_t d) const { return cell(k_, j, d); }
  [[nodiscard]] double v(std::int64_t j, std::int64_t d) const { return cell(v_, j, d); }
  [[nodiscard]] double bias(std::int64_t i, std::int64_t g, std::int64_t j) const { return element(bias_, {g, i, j}); }

  /// Overwrites a whole row.
  void fill_k(std::int64_t j, double value) { fill(k_, j, spec_.dim, value); }
  void fill_v(std::int64_t j, double value) { fill(v_, j, spec_.value_dim, value); }
  void set_bias(std::int64_t i, std::int64_t g, std::int64_t j, double value) { put(bias_, {g, i, j}, value); }
  void set_q(std::int64_t row, const NarrowCase& from, std::int64_t from_row) {
    for (std::int64_t d = 0; d < spec_.dim; ++d) put_cell(q_, row, d, from.q(from_row, d));
  }
  void share_kv(const NarrowCase& from) {
    for (std::size_t s = 0; s < k_.size(); ++s) {
      k_[s] = from.k_[s].clone();
      v_[s] = from.v_[s].clone();
    }
  }
  /// The same numbers, in this case's own segments and strides.
  void copy_kv(const NarrowCase& from) {
    for (std::int64_t j = 0; j < spec_.keys; ++j) {
      const std::size_t s = segment_of(j);
      for (std::int64_t d = 0; d < spec_.dim; ++d) put_cell(k_[s], j - first_[s], d, from.k(j, d));
      for (std::int64_t d = 0; d < spec_.value_dim; ++d) put_cell(v_[s], j - first_[s], d, from.v(j, d));
    }
  }
  void set_head(std::int64_t g, float slope, float sink) {
    slopes_[static_cast<std::size_t>(g)] = slope;
    sinks_[static_cast<std::size_t>(g)] = sink;
  }
  [[nodiscard]] float slope(std::int64_t g) const { return slopes_[static_cast<std::size_t>(g)]; }
  [[nodiscard]] float sink(std::int64_t g) const { return sinks_[static_cast<std::size_t>(g)]; }

  /// Runs the pieces in the order given (default: rising), each with scratch full of garbage, then combines.
  [[nodiscard]] NarrowResult run(base::Isa isa, std::vector<std::int64_t> order = {}) const {
    NarrowResult result{Tensor(spec_.q_type, {spec_.tokens, spec_.group, spec_.value_dim}),
                        Tensor(DType::kFloat32, {spec_.tokens, spec_.group}), Tensor(DType::kFloat32, {spec_.tokens, spec_.group})};
    std::vector<kernels::KvSegment> segments;
    for (std::size_t s = 0; s < k_.size(); ++s) {
      const TensorView k = rows_of(k_[s], spec_.memory);
      const TensorView v = rows_of(v_[s], spec_.memory);
      segments.push_back({k.data(), v.data(), k.stride(0), v.stride(0), spec_.segments[s]});
    }
    const kernels::ForwardProblem problem = make_problem(segments, result);
    const kernels::NarrowKernel* kernel = kernels::narrow_kernel(isa, spec_.q_type, spec_.kv_type);
    const std::int64_t pieces = std::max<std::int64_t>(1, (spec_.keys + kernels::kPieceKeys - 1) / kernels::kPieceKeys);
    std::vector<float> max(static_cast<std::size_t>(pieces * rows())), true_max(max), sum(max);
    std::vector<float> out(static_cast<std::size_t>(pieces * rows() * spec_.value_dim), std::nanf(""));
    if (order.empty()) {
      order.resize(static_cast<std::size_t>(pieces));
      std::iota(order.begin(), order.end(), 0);
    }
    Tensor scratch(DType::kBool, {kernel->scratch_bytes(problem)});
    for (const std::int64_t piece : order) {
      std::memset(scratch.data(), 0xff, static_cast<std::size_t>(scratch.shape()[0]));
      const std::int64_t at = piece * rows();
      kernel->run_piece(problem, piece, {max.data() + at, true_max.data() + at, sum.data() + at, out.data() + at * spec_.value_dim},
                        static_cast<std::byte*>(scratch.data()));
    }
    kernel->combine(problem, {max.data(), true_max.data(), sum.data(), out.data()}, pieces);
    return result;
  }

  /// The formula, in double, one row at a time.
  [[nodiscard]] NarrowTruth truth() const {
    NarrowTruth result;
    for (std::int64_t row = 0; row < rows(); ++row) row_truth(row / spec_.group, row % spec_.group, result);
    return result;
  }

  /// What a careful user would write by hand: float32 scores and sums in plain loops, weights rounded to the type of k and v.
  [[nodiscard]] NarrowTruth plain() const {
    NarrowTruth result;
    for (std::int64_t row = 0; row < rows(); ++row) row_plain(row / spec_.group, row % spec_.group, result);
    return result;
  }

 private:
  static double rounded(double value, DType dtype) {
    if (dtype == DType::kBFloat16) return static_cast<float>(bfloat16(static_cast<float>(value)));
    if (dtype == DType::kFloat16) return static_cast<float>(float16(static_cast<float>(value)));
    return static_cast<float>(value);
  }

  /// Segment of key j.
  [[nodiscard]] std::size_t segment_of(std::int64_t j) const {
    return static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), j) - first_.begin()) - 1;
  }
  [[nodiscard]] double cell(const std::vector<Tensor>& parts, std::int64_t j, std::int64_t d) const {
    std::size_t s = segment_of(j);
    return element(rows_of(parts[s], spec_.memory), {j - first_[s], d});
  }
  static void put(Tensor& tensor, const Extents& index, double value) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < index.rank(); ++axis) offset += index[axis] * tensor.strides()[axis];
    switch (tensor.dtype()) {
      case DType::kBFloat16: tensor.data_as<bfloat16>()[offset] = bfloat16(static_cast<float>(value)); break;
      case DType::kFloat16: tensor.data_as<float16>()[offset] = float16(static_cast<float>(value)); break;
      default: tensor.data_as<float>()[offset] = static_cast<float>(value); break;
    }
  }
  void put_cell(Tensor& tensor, std::int64_t row, std::int64_t d, double value) const {
    spec_.memory == Memory::kCompact ? put(tensor, {row, d}, value) : put(tensor, {d, row}, value);
  }
  void fill(std::vector<Tensor>& parts, std::int64_t j, std::int64_t dim, double value) const {
    const std::size_t s = segment_of(j);
    for (std::int64_t d = 0; d < dim; ++d) put_cell(parts[s], j - first_[s], d, value);
  }

  [[nodiscard]] kernels::ForwardProblem make_problem(const std::vector<kernels::KvSegment>& segments, NarrowResult& result) const {
    kernels::ForwardProblem p;
    p.head_dim = spec_.dim;
    p.value_dim = spec_.value_dim;
    const TensorView q = rows_of(q_, spec_.memory);
    p.q = {
        q.data(), spec_.q_type, spec_.group * q.stride(0), q.stride(0), q.stride(1), spec_.tokens, static_cast<std::int32_t>(spec_.group)};
    const bool strided = spec_.memory == Memory::kStrided;
    // One dim stride serves all segments, so strided cases have one segment.
    p.kv = {segments.data(), static_cast<std::int64_t>(segments.size()), spec_.kv_type, strided ? spec_.keys : 1, strided ? spec_.keys : 1};
    p.scoring.scale = scale();
    p.scoring.softcap = spec_.softcap;
    if (spec_.has_bias) {
      p.scoring.bias = bias_.data();
      p.scoring.bias_dtype = spec_.bias_type;
      p.scoring.bias_head_stride = spec_.tokens * spec_.keys;
      p.scoring.bias_token_stride = spec_.keys;
      p.scoring.bias_key_stride = 1;
    }
    if (spec_.has_alibi) p.scoring.alibi_slopes = slopes_.data();
    if (spec_.has_sinks) p.scoring.sink_logits = sinks_.data();
    p.scoring.query_offset = query_offset();
    p.output.out = result.out.data();
    p.output.dtype = spec_.q_type;
    p.output.token_stride = spec_.group * spec_.value_dim;
    p.output.head_stride = spec_.value_dim;
    p.output.lse = result.lse.data_as<float>();
    p.output.row_max = result.row_max.data_as<float>();
    p.output.lse_token_stride = p.output.row_max_token_stride = spec_.group;
    p.output.lse_head_stride = p.output.row_max_head_stride = 1;
    p.plan = &plan_.plan;
    return p;
  }

  void row_truth(std::int64_t i, std::int64_t g, NarrowTruth& result) const {
    std::vector<double> scores(static_cast<std::size_t>(spec_.keys), -kInfinity);
    double top = -kInfinity;
    for (std::int64_t j = 0; j < spec_.keys; ++j) {
      if (!sees(i, g, j)) continue;
      double s = 0.0;
      for (std::int64_t d = 0; d < spec_.dim; ++d) s += q(i * spec_.group + g, d) * k(j, d);
      s *= static_cast<double>(scale());
      if (spec_.softcap > 0.0F) s = static_cast<double>(spec_.softcap) * std::tanh(s / static_cast<double>(spec_.softcap));
      if (spec_.has_bias) s += bias(i, g, j);
      if (spec_.has_alibi) s -= static_cast<double>(slope(g)) * static_cast<double>(std::abs(query_offset() + i - j));
      scores[static_cast<std::size_t>(j)] = s;
      top = std::max(top, s);
    }
    const double logit = spec_.has_sinks ? static_cast<double>(sink(g)) : -kInfinity;
    const double shift = std::max(top, logit) == -kInfinity ? 0.0 : std::max(top, logit);
    double sum = std::exp(logit - shift);
    std::vector<double> out(static_cast<std::size_t>(spec_.value_dim), 0.0);
    for (std::int64_t j = 0; j < spec_.keys; ++j) {
      if (!sees(i, g, j)) continue;
      const double weight = std::exp(scores[static_cast<std::size_t>(j)] - shift);
      sum += weight;
      for (std::int64_t d = 0; d < spec_.value_dim; ++d) out[static_cast<std::size_t>(d)] += weight * v(j, d);
    }
    for (const double x : out) result.out.push_back(sum == 0.0 ? 0.0 : x / sum);
    result.lse.push_back(shift + std::log(sum));
    result.row_max.push_back(top);
  }

  void row_plain(std::int64_t i, std::int64_t g, NarrowTruth& result) const {
    std::vector<float> scores(static_cast<std::size_t>(spec_.keys), -std::numeric_limits<float>::infinity());
    float top = -std::numeric_limits<float>::infinity();
    for (std::int64_t j = 0; j < spec_.keys; ++j) {
      if (!sees(i, g, j)) continue;
      float s = 0.0F;
      for (std::int64_t d = 0; d < spec_.dim; ++d) s += static_cast<float>(q(i * spec_.group + g, d)) * static_cast<float>(k(j, d));
      s *= scale();
      if (spec_.softcap > 0.0F) s = spec_.softcap * std::tanh(s / spec_.softcap);
      if (spec_.has_bias) s += static_cast<float>(bias(i, g, j));
      if (spec_.has_alibi) s -= slope(g) * static_cast<float>(std::abs(query_offset() + i - j));
      scores[static_cast<std::size_t>(j)] = s;
      top = std::max(top, s);
    }
    const float logit = spec_.has_sinks ? sink(g) : -std::numeric_limits<float>::infinity();
    const float shift = std::isinf(std::max(top, logit)) ? 0.0F : std::max(top, logit);
    float sum = std::exp(logit - shift);
    for (const float s : scores) sum += std::exp(s - shift);
    std::vector<float> out(static_cast<std::size_t>(spec_.value_dim), 0.0F);
    for (std::int64_t j = 0; j < spec_.keys; ++j) {
      if (!sees(i, g, j) || sum == 0.0F) continue;
      const auto weight = static_cast<float>(rounded(std::exp(scores[static_cast<std::size_t>(j)] - shift) / sum, spec_.kv_type));
      for (std::int64_t d = 0; d < spec_.value_dim; ++d) out[static_cast<std::size_t>(d)] += weight * static_cast<float>(v(j, d));
    }
    for (const float x : out) result.out.push_back(rounded(x, spec_.q_type));
    result.lse.push_back(shift + std::log(sum));
    result.row_max.push_back(top);
  }

  NarrowSpec spec_;
  Tensor q_, bias_;
  std::vector<Tensor> k_, v_;
  std::vector<std::int64_t> first_;  // first key of each segment
  std::vector<float> slopes_, sinks_;
  OwnedPlan plan_;
};

inline std::vector<double> values_of(const Tensor& tensor) {
  std::vector<double> values;
  for_each_index(tensor.shape(), [&](const Extents& index) { values.push_back(at(tensor, index)); });
  return values;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const auto bytes = static_cast<std::size_t>(element_count(a.shape()) * size_bytes(a.dtype()));
  return a.shape() == b.shape() && a.dtype() == b.dtype() && std::memcmp(a.data(), b.data(), bytes) == 0;
}
inline bool same_bits(const NarrowResult& a, const NarrowResult& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.row_max, b.row_max);
}

inline std::vector<base::Isa> isas_that_run() {
  std::vector<base::Isa> isas;
  for (const base::Isa isa : base::kAllIsas) {
    if (base::runs_here(isa)) isas.push_back(isa);
  }
  return isas;
}

}  // namespace heed::test
