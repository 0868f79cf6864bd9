// SPDX-License-Identifier: Apache-2.0
// Every way in which q, k, v and the options can be wrong.
#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "attention/arguments.hpp"
#include "base/message.hpp"
#include "mask/node.hpp"

namespace heed::front {
namespace {

using base::number;
using base::throw_invalid;

std::string text(std::int64_t value) { return std::to_string(value); }

void check_rank(const Arguments& a, const char* name, const TensorView& view, const char* axes) {
  if (!view) throw_invalid(a.function, name, std::string("a tensor ") + axes, "none");
  if (view.rank() != 4) throw_invalid(a.function, name, std::string("4 axes ") + axes, to_string(view.shape()));
  for (const std::int64_t size : view.shape()) {
    if (size < 0) throw_invalid(a.function, name, "sizes of at least 0", to_string(view.shape()));
  }
}

/// Memory behind every tensor, before anything of it is read.
void check_memory(const Arguments& a) {
  const AttentionOptions& o = a.options;
  base::require_memory(a.function, "q", a.q);
  base::require_memory(a.function, "k", a.k);
  base::require_memory(a.function, "v", a.v);
  base::require_memory(a.function, "bias", o.bias);
  base::require_memory(a.function, "alibi_slopes", o.alibi_slopes);
  base::require_memory(a.function, "sink_logits", o.sink_logits);
  base::require_memory(a.function, "query_offset", o.query_offset);
  base::require_memory(a.function, "kv_lengths", o.kv_lengths);
}

void check_axis(const Arguments& a, const char* name, const TensorView& view, int axis, std::int64_t size, const char* meaning) {
  if (view.size(axis) == size) return;
  throw_invalid(a.function, name, text(size) + " (" + meaning + ") on axis " + text(axis), to_string(view.shape()));
}

void check_head_dim(const Arguments& a, const char* name, const TensorView& view) {
  if (view.size(3) >= 1 && view.size(3) <= kMaxHeadDim) return;
  throw_invalid(a.function, name, "a last axis from 1 to " + text(kMaxHeadDim), to_string(view.shape()));
}

void check_heads(const Arguments& a) {
  if (a.q.size(2) < 1) throw_invalid(a.function, "q", "at least 1 head on axis 2", to_string(a.q.shape()));
  if (a.k.size(2) < 1) throw_invalid(a.function, "k", "at least 1 head on axis 2", to_string(a.k.shape()));
  if (a.q.size(2) % a.k.size(2) == 0) return;
  throw_invalid(a.function, "k", "a number of heads that divides the " + text(a.q.size(2)) + " of q", text(a.k.size(2)) + " heads");
}

void check_types(const Arguments& a) {
  const auto check_floating = [&a](const char* name, DType dtype) {
    if (!is_floating(dtype)) throw_invalid(a.function, name, "a floating type", to_string(dtype));
  };
  check_floating("q", a.q.dtype());
  check_floating("k", a.k.dtype());
  if (a.v.dtype() != a.k.dtype())
    throw_invalid(a.function, "v", std::string("k's type, ") + to_string(a.k.dtype()), to_string(a.v.dtype()));
  const bool any_wide = a.q.dtype() == DType::kFloat64 || a.k.dtype() == DType::kFloat64;
  if (any_wide && a.q.dtype() != a.k.dtype()) {
    throw_invalid(a.function, "k", "float64 for q, k and v alike or for none",
                  std::string(to_string(a.q.dtype())) + " q and " + to_string(a.k.dtype()) + " k");
  }
  if (size_bytes(a.k.dtype()) > size_bytes(a.q.dtype())) {
    throw_invalid(a.function, "k", std::string("a type no wider than q's ") + to_string(a.q.dtype()), to_string(a.k.dtype()));
  }
}

/// float32; float64 is also right where q has it.
void check_parameter_type(const Arguments& a, const char* name, const TensorView& view) {
  if (view.dtype() == DType::kFloat32) return;
  if (view.dtype() == DType::kFloat64 && a.q.dtype() == DType::kFloat64) return;
  throw_invalid(a.function, name, "float32", to_string(view.dtype()));
}

bool broadcasts(const Shape& shape, const Shape& full) {
  if (shape.rank() > full.rank()) return false;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] != 1 && shape[axis] != full[full.rank() - shape.rank() + axis]) return false;
  }
  return true;
}

void check_bias(const Arguments& a, const Sizes& s) {
  const TensorView& bias = a.options.bias;
  if (!bias) return;
  const Shape full = {s.batch, s.q_heads, s.q_tokens, s.kv_tokens};
  if (!broadcasts(bias.shape(), full)) {
    throw_invalid(a.function, "bias", "a shape that broadcasts to [B, Hq, Lq, Lk] = " + to_string(full), to_string(bias.shape()));
  }
  if (bias.dtype() != DType::kFloat32 && bias.dtype() != a.q.dtype()) {
    throw_invalid(a.function, "bias", std::string("float32 or q's type, ") + to_string(a.q.dtype()), to_string(bias.dtype()));
  }
}

void check_slopes(const Arguments& a, const Sizes& s) {
  const TensorView& slopes = a.options.alibi_slopes;
  if (!slopes) return;
  check_parameter_type(a, "alibi_slopes", slopes);
  if (slopes.shape() == Shape{s.q_heads} || slopes.shape() == Shape{s.batch, s.q_heads}) return;
  throw_invalid(a.function, "alibi_slopes", "[Hq] = [" + text(s.q_heads) + "] or [B, Hq]", to_string(slopes.shape()));
}

void check_sinks(const Arguments& a, const Sizes& s) {
  const TensorView& sinks = a.options.sink_logits;
  if (!sinks) return;
  check_parameter_type(a, "sink_logits", sinks);
  if (sinks.shape() == Shape{s.q_heads}) return;
  throw_invalid(a.function, "sink_logits", "[Hq] = [" + text(s.q_heads) + "]", to_string(sinks.shape()));
}

void check_lengths(const Arguments& a, const Sizes& s) {
  const TensorView& lengths = a.options.kv_lengths;
  if (!lengths) return;
  if (lengths.dtype() != DType::kInt64 && lengths.dtype() != DType::kInt32) {
    throw_invalid(a.function, "kv_lengths", "int64 or int32", to_string(lengths.dtype()));
  }
  if (lengths.shape() != Shape{s.batch}) {
    throw_invalid(a.function, "kv_lengths", "[B] = [" + text(s.batch) + "]", to_string(lengths.shape()));
  }
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const double length = element(lengths, {b});
    if (length < 0.0 || length > static_cast<double>(s.kv_tokens)) {
      throw_invalid(a.function, "kv_lengths", "values from 0 to Lk = " + text(s.kv_tokens),
                    text(static_cast<std::int64_t>(length)) + " in batch entry " + text(b));
    }
  }
}

/// Positions up to 2^53 either way: differences of them fit 64 bits, and doubles hold them exactly.
void check_offsets(const Arguments& a, const Sizes& s) {
  const TensorView& offsets = a.options.query_offset;
  if (!offsets) return;
  if (offsets.dtype() != DType::kInt64) throw_invalid(a.function, "query_offset", "int64", to_string(offsets.dtype()));
  if (offsets.shape() != Shape{1} && offsets.shape() != Shape{s.batch}) {
    throw_invalid(a.function, "query_offset", "[1] or [B] = [" + text(s.batch) + "]", to_string(offsets.shape()));
  }
  for (std::int64_t b = 0; b < offsets.size(0); ++b) {
    if (std::abs(element(offsets, {b})) <= 0x1p53) continue;
    throw_invalid(a.function, "query_offset", "values from -2^53 to 2^53", "more in batch entry " + text(b));
  }
}

void check_mask(const Arguments& a, const Sizes& s) {
  const mask::Traits& traits = a.options.mask.node().traits();
  if (traits.heads != 0 && traits.heads != s.q_heads) {
    throw_invalid(a.function, "mask", "a mask for the " + text(s.q_heads) + " heads of q", "one for " + text(traits.heads));
  }
  if (traits.batch != 0 && traits.batch != s.batch) {
    throw_invalid(a.function, "mask", "a mask for a batch of " + text(s.batch), "one for " + text(traits.batch));
  }
}

/// Kernels compute in float32 and multiply by log2(e): a number that is infinite or, where it must not be, zero there is as bad as one that
/// is so in float64.
void check_range(const Arguments& a, const char* name, double magnitude, double least, const char* expected) {
  const bool wide = a.q.dtype() == DType::kFloat64;
  const double most = wide ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max() / std::numbers::log2e;
  if (!(magnitude >= least && magnitude <= most)) throw_invalid(a.function, name, expected, number(magnitude));
}

void check_scalars(const Arguments& a) {
  const AttentionOptions& o = a.options;
  const double smallest = a.q.dtype() == DType::kFloat64 ? std::numeric_limits<double>::min() : std::numeric_limits<float>::min();
  if (o.scale) check_range(a, "scale", std::abs(*o.scale), 0.0, "a finite number within float32's range");
  if (o.softcap)
    check_range(a, "softcap", *o.softcap, smallest, "a finite number above 0 within float32's range, or none to switch it off");
  if (o.dropout && !(o.dropout->p >= 0.0 && o.dropout->p < 1.0)) {
    throw_invalid(a.function, "dropout.p", "0 <= p < 1", number(o.dropout->p));
  }
  if (o.align != Align::kBottomRight && o.align != Align::kTopLeft) {
    throw_invalid(a.function, "align", "Align::kBottomRight or Align::kTopLeft", text(static_cast<int>(o.align)));
  }
}

}  // namespace

Sizes check_inputs(const Arguments& a) {
  check_rank(a, "q", a.q, "[B, Lq, Hq, D]");
  check_rank(a, "k", a.k, "[B, Lk, Hkv, D]");
  check_rank(a, "v", a.v, "[B, Lk, Hkv, Dv]");
  check_types(a);
  check_head_dim(a, "q", a.q);
  check_heads(a);
  check_axis(a, "k", a.k, 0, a.q.size(0), "B of q");
  check_axis(a, "k", a.k, 3, a.q.size(3), "D of q");
  check_axis(a, "v", a.v, 0, a.q.size(0), "B of q");
  check_axis(a, "v", a.v, 1, a.k.size(1), "Lk of k");
  check_axis(a, "v", a.v, 2, a.k.size(2), "Hkv of k");
  check_head_dim(a, "v", a.v);
  const Sizes sizes = {.batch = a.q.size(0),
                       .q_tokens = a.q.size(1),
                       .kv_tokens = a.k.size(1),
                       .q_heads = a.q.size(2),
                       .kv_heads = a.k.size(2),
                       .group = a.q.size(2) / a.k.size(2),
                       .head_dim = a.q.size(3),
                       .value_dim = a.v.size(3)};
  check_memory(a);
  check_scalars(a);
  check_mask(a, sizes);
  check_bias(a, sizes);
  check_slopes(a, sizes);
  check_sinks(a, sizes);
  check_lengths(a, sizes);
  check_offsets(a, sizes);
  return sizes;
}

}  // namespace heed::front
