// SPDX-License-Identifier: Apache-2.0
// Outputs: type, shape, and proof that writing them disturbs neither themselves nor anything that is read.
#include <array>
#include <cstdlib>
#include <string>

#include "attention/arguments.hpp"
#include "attention/backward.hpp"
#include "base/message.hpp"

namespace heed::front {
namespace {

using base::throw_invalid;

/// Bytes [low, high) that a view may touch, relative to its element 0.
struct Reach {
  std::int64_t low = 0, high = 0;
};

/// `unit`: only axes whose byte stride is smaller count; 0 takes all of them.
Reach reach(const TensorView& view, std::int64_t unit) {
  const std::int64_t width = size_bytes(view.dtype());
  Reach result{0, width};
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) <= 1) continue;  // any stride is right there, and a huge one would overflow
    const std::int64_t step = view.stride(axis) * width;
    if (unit != 0 && std::abs(step) >= unit) continue;
    const std::int64_t far = (view.size(axis) - 1) * step;
    (far < 0 ? result.low : result.high) += far;
  }
  return result;
}

bool is_empty(const TensorView& view) { return !view || element_count(view.shape()) == 0; }

bool every_larger_stride_is_a_multiple(const TensorView& view, std::int64_t unit) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) <= 1) continue;
    const std::int64_t step = std::abs(view.stride(axis)) * size_bytes(view.dtype());
    if (step >= unit && step % unit != 0) return false;
  }
  return true;
}

/// Slices of one buffer interleave: q, k, v and out in one [L, 4, H, D] block. They are apart when, modulo a stride that all their
/// outer axes are multiples of, their inner parts are.
bool apart_modulo(const TensorView& a, const TensorView& b, std::int64_t unit) {
  if (!every_larger_stride_is_a_multiple(a, unit) || !every_larger_stride_is_a_multiple(b, unit)) return false;
  const Reach ra = reach(a, unit);
  const Reach rb = reach(b, unit);
  const std::intptr_t from_a = reinterpret_cast<std::intptr_t>(a.data()) + ra.low;
  const std::intptr_t from_b = reinterpret_cast<std::intptr_t>(b.data()) + rb.low;
  const std::int64_t distance = ((from_b - from_a) % unit + unit) % unit;
  return ra.high - ra.low <= distance && distance + (rb.high - rb.low) <= unit;
}

/// Never false for views that share a byte; true for odd stride patterns that do not is possible.
bool may_overlap(const TensorView& a, const TensorView& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Reach ra = reach(a, 0);
  const Reach rb = reach(b, 0);
  const auto base_a = reinterpret_cast<std::intptr_t>(a.data());
  const auto base_b = reinterpret_cast<std::intptr_t>(b.data());
  if (base_a + ra.high <= base_b + rb.low || base_b + rb.high <= base_a + ra.low) return false;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.size(axis) <= 1) continue;
    const std::int64_t unit = std::abs(a.stride(axis)) * size_bytes(a.dtype());
    if (unit > 0 && apart_modulo(a, b, unit)) return false;
  }
  return true;
}

/// The axis with the smallest stride among those that are left, or -1.
int smallest_axis(const TensorView& view, const std::array<bool, kMaxRank>& taken) {
  int best = -1;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (taken[static_cast<std::size_t>(axis)] || view.size(axis) <= 1) continue;
    if (best < 0 || std::abs(view.stride(axis)) < std::abs(view.stride(best))) best = axis;
  }
  return best;
}

/// From the smallest to the largest stride, each must step over everything that the ones before it reach.
bool overlaps_itself(const TensorView& view) {
  if (is_empty(view)) return false;
  std::array<bool, kMaxRank> taken{};
  std::int64_t reached = 0;
  for (int axis = smallest_axis(view, taken); axis >= 0; axis = smallest_axis(view, taken)) {
    if (std::abs(view.stride(axis)) <= reached) return true;
    reached += std::abs(view.stride(axis)) * (view.size(axis) - 1);
    taken[static_cast<std::size_t>(axis)] = true;
  }
  return false;
}

struct Named {
  const char* name;
  TensorView view;
};

void check_apart(const Arguments& a, const Named& output, const Named& other) {
  if (may_overlap(output.view, other.view)) {
    throw_invalid(a.function, output.name, "memory apart from every input and other output", std::string("an overlap with ") + other.name);
  }
}

void check_output(const Arguments& a, const Named& output, DType dtype, const Shape& shape) {
  const TensorView& view = output.view;
  if (view.dtype() != dtype) throw_invalid(a.function, output.name, to_string(dtype), to_string(view.dtype()));
  if (view.shape() != shape) throw_invalid(a.function, output.name, to_string(shape), to_string(view.shape()));
  base::require_memory(a.function, output.name, view);
  if (overlaps_itself(view)) {
    throw_invalid(a.function, output.name, "strides that give every element its own memory", "strides " + to_string(view.strides()));
  }
  const AttentionOptions& o = a.options;
  const Named inputs[] = {{"q", a.q},
                          {"k", a.k},
                          {"v", a.v},
                          {"bias", o.bias},
                          {"alibi_slopes", o.alibi_slopes},
                          {"sink_logits", o.sink_logits},
                          {"query_offset", o.query_offset},
                          {"kv_lengths", o.kv_lengths},
                          {"q_offsets", a.q_offsets},
                          {"k_offsets", a.k_offsets}};
  for (const Named& input : inputs) check_apart(a, output, input);
}

}  // namespace

void check_outputs(const Arguments& a, const Sizes& s, const AttentionOutputs& outputs) {
  const Named out = {"out", outputs.out};
  const Named lse = {"lse", outputs.lse};
  const Named row_max = {"row_max", outputs.row_max};
  const Shape statistics = statistics_shape(a, s);
  const DType statistics_type = statistics_dtype(a.q.dtype());
  if (!out.view) throw_invalid(a.function, "out", a.q.rank() == 3 ? "a tensor [Tq, Hq, Dv]" : "a tensor [B, Lq, Hq, Dv]", "none");
  check_output(a, out, a.q.dtype(), out_shape(a, s));
  if (lse.view) check_output(a, lse, statistics_type, statistics);
  if (row_max.view) check_output(a, row_max, statistics_type, statistics);
  check_apart(a, out, lse);
  check_apart(a, out, row_max);
  check_apart(a, lse, row_max);
}

void check_gradients(const Arguments& a, const BackwardInputs& inputs, const AttentionGradOutputs& gradients) {
  struct Gradient {
    Named output;
    const TensorView& argument;
    const char* argument_name;
  };
  const Gradient all[] = {{{"dq", gradients.dq}, a.q, "q"},
                          {{"dk", gradients.dk}, a.k, "k"},
                          {{"dv", gradients.dv}, a.v, "v"},
                          {{"dbias", gradients.dbias}, a.options.bias, "bias"},
                          {{"dsink_logits", gradients.dsink_logits}, a.options.sink_logits, "sink_logits"}};
  const Named read[] = {{"dout", inputs.dout}, {"out", inputs.out}, {"lse", inputs.lse}};
  for (const auto& [output, argument, argument_name] : all) {
    const bool required = &argument == &a.q || &argument == &a.k || &argument == &a.v;
    if (!output.view && required) throw_invalid(a.function, output.name, std::string("a tensor like ") + argument_name, "none");
    if (!output.view) continue;
    if (!argument)
      throw_invalid(a.function, output.name, std::string("none, since there is no ") + argument_name, to_string(output.view.shape()));
    check_output(a, output, argument.dtype(), argument.shape());
    for (const Named& input : read) check_apart(a, output, input);
    for (const Gradient* other = &all[0]; other->output.name != output.name; ++other) check_apart(a, output, other->output);
  }
}

}  // namespace heed::front
