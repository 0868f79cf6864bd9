// SPDX-License-Identifier: Apache-2.0
// Widens the inputs, hands rows of the naive kernel to the threads, and is the public heed::reference.
#include "attention/reference.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include <heed/reference.hpp>

#include "base/floating_point.hpp"
#include "base/message.hpp"
#include "base/parallel.hpp"
#include "base/philox.hpp"
#include "kernels/reference/attention.hpp"

namespace heed::front {
namespace {

namespace naive = kernels::reference;
using naive::Array4;

/// A floating tensor of up to 4 axes as float64, right-aligned; widening is exact. float64 is read in place.
class Widened {
 public:
  Widened() = default;
  Widened(const TensorView& view, const Shape& shape) {
    if (!view) return;
    if (view.dtype() != DType::kFloat64) storage_ = convert(view, DType::kFloat64);
    const TensorView wide = broadcast4(storage_.data() != nullptr ? std::as_const(storage_).view() : view, shape);
    array_.data = static_cast<const double*>(wide.data());
    for (int axis = 0; axis < 4; ++axis) array_.strides[static_cast<std::size_t>(axis)] = wide.stride(axis);
  }
  [[nodiscard]] const Array4<const double>& array() const noexcept { return array_; }

 private:
  Tensor storage_;
  Array4<const double> array_;
};

/// [Hq] or [B, Hq] as [B, Hq, 1, 1].
TensorView per_head(const TensorView& view) {
  if (!view) return view;
  const bool batched = view.rank() == 2;
  return TensorView(view.data(), view.dtype(), {batched ? view.size(0) : 1, view.size(view.rank() - 1), 1, 1},
                    {batched ? view.stride(0) : 0, view.stride(view.rank() - 1), 0, 0});
}

Array4<double> array_of(Tensor& tensor) {
  Array4<double> array{tensor.data_as<double>(), {}};
  for (int axis = 0; axis < tensor.shape().rank(); ++axis) array.strides[static_cast<std::size_t>(axis)] = tensor.strides()[axis];
  return array;
}

/// What a Problem points into.
struct Inputs {
  Inputs(const Arguments& a, const Sizes& s, const Sequences& sequences)
      : q(a.q, a.q.shape()), k(a.k, a.k.shape()), v(a.v, a.v.shape()), bias(a.options.bias, {s.batch, s.q_heads, s.q_tokens, s.kv_tokens}),
        slopes(per_head(a.options.alibi_slopes), {s.batch, s.q_heads, 1, 1}),
        sinks(per_head(a.options.sink_logits), {s.batch, s.q_heads, 1, 1}), query_offsets(static_cast<std::size_t>(s.batch)),
        kv_lengths(static_cast<std::size_t>(s.batch)) {
    for (const mask::Geometry& geometry : sequences.geometry()) {
      query_offsets[static_cast<std::size_t>(geometry.batch)] = geometry.query_offset;
      kv_lengths[static_cast<std::size_t>(geometry.batch)] = geometry.keys;
    }
  }
  base::DefaultFloatingPoint environment;  // first: widening a denormal must not flush it
  Widened q, k, v, bias, slopes, sinks;
  std::vector<std::int64_t> query_offsets, kv_lengths;
};

bool visible(const void* mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t p, std::int64_t j) {
  return static_cast<const Mask*>(mask)->visible(b, h, i, p, j);
}

naive::Problem problem_of(const Arguments& a, const Sizes& s, const Inputs& inputs) {
  naive::Problem problem{.kv_tokens = 0,
                         .group = s.group,
                         .head_dim = s.head_dim,
                         .value_dim = s.value_dim,
                         .q = inputs.q.array(),
                         .k = inputs.k.array(),
                         .v = inputs.v.array(),
                         .scale = scale_of(a.options, s.head_dim),
                         .softcap = a.options.softcap.value_or(0.0),
                         .bias = inputs.bias.array(),
                         .slopes = inputs.slopes.array(),
                         .sinks = inputs.sinks.array(),
                         .query_offsets = inputs.query_offsets.data(),
                         .kv_lengths = inputs.kv_lengths.data(),
                         .visible = visible,
                         .mask = &a.options.mask};
  if (a.options.dropout) {
    problem.dropout_seed = a.options.dropout->seed;
    problem.dropout_threshold = base::dropout_threshold(a.options.dropout->p);
    problem.dropout_scale = 1.0 / (1.0 - a.options.dropout->p);
  }
  return problem;
}

/// The part of `array` that begins at `row` of `slice`, for whichever batch entry.
template <class T>
Array4<T> part(Array4<T> array, std::int64_t slice, std::int64_t row, std::size_t row_axis) {
  if (!array) return array;
  array.data += slice * array.strides[0] + row * array.strides[row_axis];
  array.strides[0] = 0;
  return array;
}

/// One sequence's share of a call; the naive kernel knows it by its batch entry.
struct Part {
  naive::Problem problem;
  mask::Geometry geometry;
  Place place;
};

std::vector<Part> parts_of(const Arguments& a, const Sizes& s, const Inputs& inputs, const Sequences& sequences) {
  std::vector<Part> parts;
  for (std::size_t n = 0; n < sequences.geometry().size(); ++n) {
    const mask::Geometry& geometry = sequences.geometry()[n];
    const Place& place = sequences.places()[n];
    naive::Problem problem = problem_of(a, s, inputs);
    problem.kv_tokens = geometry.keys;
    problem.q = part(problem.q, place.slice, place.first_query, 1);
    problem.k = part(problem.k, place.slice, place.first_key, 1);
    problem.v = part(problem.v, place.slice, place.first_key, 1);
    parts.push_back({problem, geometry, place});
  }
  return parts;
}

/// A row of weights per thread.
struct WeightRows {
  WeightRows(int threads, const std::vector<Part>& parts)
      : stride(base::round_up_to_line(longest(parts) * 8) / 8), scratch(threads * stride * 8) {}
  [[nodiscard]] double* of(int thread) const { return reinterpret_cast<double*>(scratch.data()) + thread * stride; }
  static std::int64_t longest(const std::vector<Part>& parts) {
    std::int64_t keys = 0;
    for (const Part& p : parts) keys = std::max(keys, p.geometry.keys);
    return keys;
  }
  std::int64_t stride;
  base::Scratch scratch;
};

/// Two rows may add to one bias gradient when an axis was broadcast over batch or heads.
bool shares_bias_across_heads(const Arguments& a, const Sizes& s) {
  const TensorView& bias = a.options.bias;
  if (!bias) return false;
  const bool one_batch = bias.rank() < 4 || bias.size(0) != s.batch;
  const bool one_head = bias.rank() < 3 || bias.size(bias.rank() - 3) != s.q_heads;
  return (one_batch && s.batch > 1) || (one_head && s.q_heads > 1);
}

/// [B, Hq] -> [Hq], in the order of b.
Tensor sum_over_batch(const Tensor& per_batch) {
  const std::int64_t heads = per_batch.shape()[1];
  Tensor sum = Tensor::zeros(DType::kFloat64, {heads});
  for (std::int64_t i = 0; i < element_count(per_batch.shape()); ++i) sum.data_as<double>()[i % heads] += per_batch.data_as<double>()[i];
  return sum;
}

}  // namespace

ReferenceForward reference_forward(const Arguments& a, const Sizes& s, const Sequences& sequences) {
  const Inputs inputs(a, s, sequences);
  const std::vector<Part> parts = parts_of(a, s, inputs, sequences);
  const Shape statistics = {a.q.size(0), s.q_heads, s.q_tokens};
  ReferenceForward result{Tensor::zeros(DType::kFloat64, {a.q.size(0), s.q_tokens, s.q_heads, s.value_dim}),
                          Tensor::zeros(DType::kFloat64, statistics), Tensor::zeros(DType::kFloat64, statistics)};
  const naive::Outputs all{array_of(result.out), array_of(result.lse), array_of(result.row_max)};
  std::vector<std::int64_t> first_row = {0};  // of each part, among the rows of all heads
  for (const Part& p : parts) first_row.push_back(first_row.back() + p.geometry.tokens * s.q_heads);
  const int threads = worthwhile_threads(s, sequences);
  const WeightRows weights(threads, parts);
  base::parallel_for(first_row.back(), threads, [&](std::int64_t task, int thread) noexcept {
    const auto n = static_cast<std::size_t>(std::upper_bound(first_row.begin(), first_row.end(), task) - first_row.begin() - 1);
    const auto& [problem, geometry, place] = parts[n];
    const std::int64_t row = task - first_row[n];
    const naive::Outputs outputs{part(all.out, place.slice, place.first_query, 1), part(all.lse, place.slice, place.first_query, 2),
                                 part(all.row_max, place.slice, place.first_query, 2)};
    naive::forward_row(problem, {geometry.batch, row / geometry.tokens, row % geometry.tokens}, outputs, weights.of(thread));
  });
  return result;
}

AttentionGrads reference_backward(const TensorView& dout, const Arguments& a, const Sizes& s, const Sequences& sequences) {
  const Inputs inputs(a, s, sequences);
  const std::vector<Part> parts = parts_of(a, s, inputs, sequences);
  const Widened dout_wide(dout, dout.shape());
  AttentionGrads grads{Tensor::zeros(DType::kFloat64, a.q.shape()),
                       Tensor::zeros(DType::kFloat64, a.k.shape()),
                       Tensor::zeros(DType::kFloat64, a.v.shape()),
                       {},
                       {}};
  naive::Gradients all{array_of(grads.dq), array_of(grads.dk), array_of(grads.dv), {}, {}};
  if (a.options.bias) {
    grads.dbias = Tensor::zeros(DType::kFloat64, a.options.bias.shape());
    all.dbias.data = grads.dbias.data_as<double>();
    const TensorView wide = broadcast4(std::as_const(grads.dbias).view(), {s.batch, s.q_heads, s.q_tokens, s.kv_tokens});
    for (int axis = 0; axis < 4; ++axis) all.dbias.strides[static_cast<std::size_t>(axis)] = wide.stride(axis);
  }
  Tensor dsinks;
  if (a.options.sink_logits) {
    dsinks = Tensor::zeros(DType::kFloat64, {s.batch, s.q_heads});
    all.dsinks = array_of(dsinks);
  }
  const int threads = shares_bias_across_heads(a, s) ? 1 : worthwhile_threads(s, sequences);
  const WeightRows weights(threads, parts);
  base::parallel_for(sequences.count() * s.kv_heads, threads, [&](std::int64_t task, int thread) noexcept {
    const auto& [problem, geometry, place] = parts[static_cast<std::size_t>(task / s.kv_heads)];
    const naive::Gradients gradients{part(all.dq, place.slice, place.first_query, 1), part(all.dk, place.slice, place.first_key, 1),
                                     part(all.dv, place.slice, place.first_key, 1), all.dbias, all.dsinks};
    const Array4<const double> own_dout = part(dout_wide.array(), place.slice, place.first_query, 1);
    const std::int64_t first_head = task % s.kv_heads * s.group;
    for (std::int64_t row = 0; row < geometry.tokens * s.group; ++row) {
      naive::backward_row(problem, {geometry.batch, first_head + row % s.group, row / s.group}, own_dout, gradients, weights.of(thread));
    }
  });
  if (a.options.sink_logits) grads.dsink_logits = sum_over_batch(dsinks);
  return grads;
}

AttentionGrads reference_backward(const TensorView& dout, const Arguments& a, const Sizes& s) {
  return reference_backward(dout, a, s, Sequences(a, s));
}

void check_dout(const Arguments& a, const Sizes& s, const TensorView& dout) {
  const Shape expected = out_shape(a, s);
  if (!dout) base::throw_invalid(a.function, "dout", to_string(expected), "none");
  if (dout.shape() != expected) base::throw_invalid(a.function, "dout", to_string(expected), to_string(dout.shape()));
  if (!is_floating(dout.dtype())) base::throw_invalid(a.function, "dout", "a floating type", to_string(dout.dtype()));
  base::require_memory(a.function, "dout", dout);
}

}  // namespace heed::front

namespace heed::reference {

AttentionState attention_state(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  const front::Arguments arguments{"reference::attention_state", q, k, v, options};
  const front::Sizes sizes = front::check_inputs(arguments);
  front::ReferenceForward result = front::reference_forward(arguments, sizes, front::Sequences(arguments, sizes));
  return {std::move(result.out), std::move(result.lse)};
}

AttentionGrads attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                                  const AttentionOptions& options) {
  const front::Arguments arguments{"reference::attention_backward", q, k, v, options};
  const front::Sizes sizes = front::check_inputs(arguments);
  front::check_dout(arguments, sizes, dout);
  return front::reference_backward(dout, arguments, sizes);
}

}  // namespace heed::reference
