// SPDX-License-Identifier: Apache-2.0
// A forward problem of one KV head with its memory and its plan, and the same computation in float64 and in plain float32. Nothing here shares code
// with the library's masks, reference or kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <heed/dtype.hpp>

#include "kernels/attention/forward.hpp"

namespace heed::test {

/// May packed head `head` of token `token` see key `key`?
using Sees = std::function<bool(std::int64_t token, std::int64_t head, std::int64_t key)>;

struct WideCase {
  std::int64_t tokens = 1, keys = 1;
  std::int32_t group = 1;
  std::int64_t head_dim = 8, value_dim = 8;
  DType q = DType::kFloat32, kv = DType::kFloat32;
  Sees sees = {};       ///< empty: everything
  double scale = -1.0;  ///< -1: 1 / sqrt(D)
  double softcap = 0.0;
  bool bias = false, bias_masks = false, bias_16bit = false, alibi = false, sinks = false;
  double magnitude = 1.0;  ///< of q
  std::int64_t query_offset = 0;
  std::int64_t dim_stride = 1;    ///< of every tensor
  std::int64_t row_padding = 0;   ///< elements between rows
  std::int64_t segment_rows = 0;  ///< 0: one segment
  std::uint64_t seed = 1;
};

/// Memory of any dtype with a row stride and an inner stride, filled with a poison that must never be read as a value.
class Rows {
 public:
  Rows() = default;
  Rows(DType dtype, std::int64_t rows, std::int64_t dims, std::int64_t row_padding, std::int64_t dim_stride)
      : dtype_(dtype), row_stride_(dims * dim_stride + row_padding), dim_stride_(dim_stride),
        bytes_(static_cast<std::size_t>(std::max<std::int64_t>(1, rows * row_stride_) * width()), std::byte{0xff}) {}
  [[nodiscard]] std::int64_t width() const { return dtype_ == DType::kFloat32 ? 4 : 2; }
  [[nodiscard]] std::byte* at(std::int64_t row, std::int64_t dim = 0) {
    return bytes_.data() + (row * row_stride_ + dim * dim_stride_) * width();
  }
  [[nodiscard]] const std::byte* at(std::int64_t row, std::int64_t dim = 0) const { return const_cast<Rows*>(this)->at(row, dim); }
  [[nodiscard]] float get(std::int64_t row, std::int64_t dim) const {
    const std::byte* p = at(row, dim);
    if (dtype_ == DType::kBFloat16) return static_cast<float>(*reinterpret_cast<const bfloat16*>(p));
    if (dtype_ == DType::kFloat16) return static_cast<float>(*reinterpret_cast<const float16*>(p));
    return *reinterpret_cast<const float*>(p);
  }
  void set(std::int64_t row, std::int64_t dim, float x) {
    std::byte* p = at(row, dim);
    if (dtype_ == DType::kBFloat16) {
      *reinterpret_cast<bfloat16*>(p) = bfloat16(x);
    } else if (dtype_ == DType::kFloat16) {
      *reinterpret_cast<float16*>(p) = float16(x);
    } else {
      *reinterpret_cast<float*>(p) = x;
    }
  }
  [[nodiscard]] std::int64_t row_stride() const { return row_stride_; }
  [[nodiscard]] std::int64_t dim_stride() const { return dim_stride_; }

 private:
  DType dtype_ = DType::kFloat32;
  std::int64_t row_stride_ = 0, dim_stride_ = 1;
  std::vector<std::byte> bytes_;
};

inline float rounded(float x, DType dtype) {
  if (dtype == DType::kBFloat16) return static_cast<float>(bfloat16(x));
  if (dtype == DType::kFloat16) return static_cast<float>(float16(x));
  return x;
}

/// Results by packed row.
struct WideResult {
  std::vector<double> out;  ///< [rows][Dv]
  std::vector<double> lse, row_max;
};

class WideProblem {
 public:
  explicit WideProblem(WideCase wide_case) : c(std::move(wide_case)) {
    rows = c.tokens * c.group;
    std::mt19937_64 engine(c.seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](Rows& x, DType dtype, std::int64_t count, std::int64_t dims, double magnitude) {
      x = Rows(dtype, count, dims, c.row_padding, c.dim_stride);
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t d = 0; d < dims; ++d) x.set(r, d, normal(engine) * static_cast<float>(magnitude));
      }
    };
    fill(q, c.q, rows, c.head_dim, c.magnitude);
    fill(k, c.kv, c.keys, c.head_dim, 1.0);
    fill(v, c.kv, c.keys, c.value_dim, 1.0);
    out = Rows(c.q, rows, c.value_dim, c.row_padding, c.dim_stride);
    const DType bias_type = c.bias_16bit ? c.q : DType::kFloat32;
    bias = Rows(bias_type, rows, c.keys, 3, 1);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t j = 0; j < c.keys; ++j) {
        const bool masks = c.bias_masks && engine() % 3 == 0;
        bias.set(r, j, masks ? -std::numeric_limits<float>::infinity() : normal(engine));
      }
    }
    for (std::int32_t h = 0; h < c.group; ++h) {
      slopes.push_back(0.5F / static_cast<float>(h + 1));
      sinks.push_back(static_cast<float>(4 * h) - 2.0F);
    }
    lse.assign(static_cast<std::size_t>(rows), 77.0F);
    row_max.assign(static_cast<std::size_t>(rows), 77.0F);
  }

  [[nodiscard]] double scale() const { return c.scale == -1.0 ? 1.0 / std::sqrt(static_cast<double>(c.head_dim)) : c.scale; }
  [[nodiscard]] bool sees(std::int64_t row, std::int64_t key) const {
    return (!c.sees || c.sees(row / c.group, row % c.group, key)) && !(c.bias && bias.get(row, key) == -INFINITY);
  }

  /// Cuts the tokens' rows and the keys into tiles, by asking for every slot.
  void make_plan(std::int32_t block_rows) {
    run_begin.assign(1, 0);
    runs.clear();
    bits.clear();
    for (std::int64_t first = 0; first < rows; first += block_rows) {
      for (std::int64_t block = 0; block * kernels::kBlockKeys < c.keys; ++block) {
        add_tile(first, std::min<std::int64_t>(block_rows, rows - first), block);
      }
      run_begin.push_back(static_cast<std::int64_t>(runs.size()));
    }
    plan = {
        .rows = rows, .keys = c.keys, .block_rows = block_rows, .run_begin = run_begin.data(), .runs = runs.data(), .bits = bits.data()};
  }

  [[nodiscard]] kernels::ForwardProblem problem() {
    segments.clear();
    const std::int64_t step = c.segment_rows == 0 ? std::max<std::int64_t>(1, c.keys) : c.segment_rows;
    for (std::int64_t r = 0; r < c.keys; r += step) {
      segments.push_back({k.at(r), v.at(r), k.row_stride(), v.row_stride(), std::min(step, c.keys - r)});
    }
    kernels::ForwardProblem p;
    p.head_dim = c.head_dim;
    p.value_dim = c.value_dim;
    p.q = {q.at(0), c.q, q.row_stride() * c.group, q.row_stride(), q.dim_stride(), c.tokens, c.group};
    p.kv = {segments.data(), static_cast<std::int64_t>(segments.size()), c.kv, k.dim_stride(), v.dim_stride()};
    p.scoring.scale = static_cast<float>(scale());
    p.scoring.softcap = static_cast<float>(c.softcap);
    if (c.bias) {
      p.scoring.bias = bias.at(0);
      p.scoring.bias_dtype = c.bias_16bit ? c.q : DType::kFloat32;
      p.scoring.bias_head_stride = bias.row_stride();
      p.scoring.bias_token_stride = bias.row_stride() * c.group;
      p.scoring.bias_key_stride = 1;
    }
    if (c.alibi) p.scoring.alibi_slopes = slopes.data();
    if (c.sinks) p.scoring.sink_logits = sinks.data();
    p.scoring.query_offset = c.query_offset;
    p.output = {out.at(0), c.q, out.row_stride() * c.group, out.row_stride(), out.dim_stride(), lse.data(), row_max.data(), c.group, 1,
                c.group,   1};
    p.plan = &plan;
    return p;
  }

  /// All row blocks, `super` at a time.
  WideResult run(const kernels::WideKernel& kernel, std::int32_t super) {
    make_plan(kernel.block_rows);
    const kernels::ForwardProblem p = problem();
    const std::int64_t blocks = (rows + kernel.block_rows - 1) / kernel.block_rows;
    for (std::int64_t first = 0; first < blocks; first += super) {
      const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(super, blocks - first));
      const auto bytes = static_cast<std::size_t>(kernel.scratch_bytes(p, count));
      const std::unique_ptr<std::byte, void (*)(void*)> scratch(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)),
                                                                std::free);
      std::fill_n(scratch.get(), bytes, std::byte{0xff});  // NaN wherever scratch is read before it is written
      kernel.run(p, first, count, scratch.get());
    }
    return result();
  }
  WideResult run(const kernels::WideKernel& kernel) { return run(kernel, kernel.super_block_count); }

  [[nodiscard]] WideResult result() const {
    WideResult r;
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t d = 0; d < c.value_dim; ++d) r.out.push_back(out.get(i, d));
    }
    r.lse.assign(lse.begin(), lse.end());
    r.row_max.assign(row_max.begin(), row_max.end());
    return r;
  }

  /// The formula in float64.
  [[nodiscard]] WideResult exact() const { return compute<double>(); }
  /// What a straightforward program in the same dtype computes: float32 scores and sums, weights rounded to the input type.
  [[nodiscard]] WideResult plain() const { return compute<float>(); }

  WideCase c;
  std::int64_t rows = 0;
  Rows q, k, v, out, bias;
  std::vector<float> slopes, sinks, lse, row_max;
  kernels::TilePlan plan;
  std::vector<std::int64_t> run_begin;
  std::vector<kernels::TileRun> runs;
  std::vector<std::uint64_t> bits;
  std::vector<kernels::KvSegment> segments;

 private:
  void add_tile(std::int64_t first, std::int64_t count, std::int64_t block) {
    std::vector<std::uint64_t> tile(kernels::kBlockKeys, 0);
    bool any = false, all = true;
    for (int j = 0; j < kernels::kBlockKeys && block * kernels::kBlockKeys + j < c.keys; ++j) {
      for (std::int64_t r = 0; r < count; ++r) {
        const bool seen = !c.sees || c.sees((first + r) / c.group, (first + r) % c.group, block * kernels::kBlockKeys + j);
        any = any || seen;
        all = all && seen;
        if (seen) tile[static_cast<std::size_t>(j)] |= std::uint64_t{1} << r;
      }
    }
    if (!any) return;
    const bool extends = all && static_cast<std::int64_t>(runs.size()) > run_begin.back() && runs.back().bits < 0 &&
                         runs.back().first_block + runs.back().block_count == block;
    if (extends) {
      ++runs.back().block_count;
    } else if (all) {
      runs.push_back({static_cast<std::int32_t>(block), 1, -1});
    } else {
      runs.push_back({static_cast<std::int32_t>(block), 1, static_cast<std::int64_t>(bits.size()) / kernels::kBlockKeys});
      bits.insert(bits.end(), tile.begin(), tile.end());
    }
  }

  template <class T>
  T score(std::int64_t row, std::int64_t key) const {
    T dot = 0;
    for (std::int64_t d = 0; d < c.head_dim; ++d) dot += static_cast<T>(q.get(row, d)) * static_cast<T>(k.get(key, d));
    T s = dot * static_cast<T>(scale());
    if (c.softcap > 0.0) s = static_cast<T>(c.softcap) * std::tanh(s / static_cast<T>(c.softcap));
    if (c.bias) s += static_cast<T>(bias.get(row, key));
    if (c.alibi) {
      const auto distance = std::abs(static_cast<T>(c.query_offset + row / c.group - key));
      s -= static_cast<T>(slopes[static_cast<std::size_t>(row % c.group)]) * distance;
    }
    return s;
  }

  template <class T>
  WideResult compute() const {
    WideResult result;
    for (std::int64_t r = 0; r < rows; ++r) compute_row<T>(r, result);
    return result;
  }

  template <class T>
  void compute_row(std::int64_t r, WideResult& result) const {
    std::vector<T> s(static_cast<std::size_t>(c.keys));
    T top = -INFINITY;
    for (std::int64_t j = 0; j < c.keys; ++j) {
      auto& x = s[static_cast<std::size_t>(j)];
      x = sees(r, j) ? score<T>(r, j) : static_cast<T>(-INFINITY);
      top = std::max(top, x);
    }
    result.row_max.push_back(static_cast<double>(top));
    if (c.sinks) top = std::max(top, static_cast<T>(sinks[static_cast<std::size_t>(r % c.group)]));
    std::vector<T> sum(static_cast<std::size_t>(c.value_dim), 0);
    T denominator = c.sinks ? std::exp(static_cast<T>(sinks[static_cast<std::size_t>(r % c.group)]) - top) : T{0};
    for (std::int64_t j = 0; j < c.keys; ++j) {
      if (!sees(r, j)) continue;
      T w = std::exp(s[static_cast<std::size_t>(j)] - top);
      denominator += w;
      if constexpr (std::is_same_v<T, float>) w = rounded(w, c.q);
      for (std::int64_t d = 0; d < c.value_dim; ++d) sum[static_cast<std::size_t>(d)] += w * static_cast<T>(v.get(j, d));
    }
    for (const T x : sum) {
      T y = denominator == T{0} ? T{0} : x / denominator;
      if constexpr (std::is_same_v<T, float>) y = rounded(y, c.q);
      result.out.push_back(static_cast<double>(y));
    }
    result.lse.push_back(denominator == T{0} ? -INFINITY : static_cast<double>(top + std::log(denominator)));
  }
};

/// Largest |a - b|; equal infinities differ by 0, anything else that is not finite by infinity.
inline double worst_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = a.size() == b.size() ? 0.0 : INFINITY;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (a[i] == b[i]) continue;
    const double difference = std::abs(a[i] - b[i]);
    worst = std::isfinite(difference) ? std::max(worst, difference) : INFINITY;
  }
  return worst;
}
inline double largest(const std::vector<double>& a) {
  double worst = 0.0;
  for (const double x : a) worst = std::isfinite(x) ? std::max(worst, std::abs(x)) : worst;
  return worst;
}

}  // namespace heed::test
