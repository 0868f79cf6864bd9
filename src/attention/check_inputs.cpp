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

void check_rank(const Arguments& a, const char* name, const TensorView& view, int rank, const char* axes) {
  if (!view) throw_invalid(a.function, name, std::string("a tensor ") + axes, "none");
  if (view.rank() != rank) throw_invalid(a.function, name, text(rank) + " axes " + axes, to_string(view.shape()));
  std::int64_t count = 1;
  for (const std::int64_t size : view.shape()) {
    if (size < 0) throw_invalid(a.function, name, "sizes of at least 0", to_string(view.shape()));
    if (size > 0 && __builtin_mul_overflow(count, size, &count)) {
      throw_invalid(a.function, name, "fewer than 2^63 elements", to_string(view.shape()));
    }
  }
}

/// Tokens, heads and D are the last three axes, whether a batch axis precedes them or not.
int tokens_axis(const TensorView& view) { return view.rank() - 3; }
int heads_axis(const TensorView& view) { return view.rank() - 2; }
int dim_axis(const TensorView& view) { return view.rank() - 1; }

/// Memory behind every tensor, before anything of it is read.
void check_memory(const Arguments& a) {
  const AttentionOptions& o = a.options;
  base::require_memory(a.function, "q", a.q);
  if (a.rows == nullptr) {
    base::require_memory(a.function, "k", a.k);
    base::require_memory(a.function, "v", a.v);
  }
  base::require_memory(a.function, "bias", o.bias);
  base::require_memory(a.function, "alibi_slopes", o.alibi_slopes);
  base::require_memory(a.function, "sink_logits", o.sink_logits);
  base::require_memory(a.function, "query_offset", o.query_offset);
  base::require_memory(a.function, "kv_lengths", o.kv_lengths);
  base::require_memory(a.function, "q_offsets", a.q_offsets);
  base::require_memory(a.function, "k_offsets", a.k_offsets);
}

void check_axis(const Arguments& a, const char* name, const TensorView& view, int axis, std::int64_t size, const char* meaning) {
  if (view.size(axis) == size) return;
  throw_invalid(a.function, name, text(size) + " (" + meaning + ") on axis " + text(axis), to_string(view.shape()));
}

void check_head_dim(const Arguments& a, const char* name, const TensorView& view) {
  const std::int64_t dim = view.size(dim_axis(view));
  if (dim >= 1 && dim <= kMaxHeadDim) return;
  throw_invalid(a.function, name, "a last axis from 1 to " + text(kMaxHeadDim), to_string(view.shape()));
}

void check_heads(const Arguments& a) {
  const int axis = heads_axis(a.q);
  const std::int64_t q_heads = a.q.size(axis), kv_heads = a.k.size(axis);
  if (q_heads < 1) throw_invalid(a.function, "q", "at least 1 head on axis " + text(axis), to_string(a.q.shape()));
  if (kv_heads < 1) throw_invalid(a.function, "k", "at least 1 head on axis " + text(axis), to_string(a.k.shape()));
  if (q_heads % kv_heads == 0) return;
  throw_invalid(a.function, "k", "a number of heads that divides the " + text(q_heads) + " of q", text(kv_heads) + " heads");
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

void check_lengths_form(const Arguments& a, const Sizes& s) {
  const TensorView& lengths = a.options.kv_lengths;
  if (lengths.dtype() != DType::kInt64 && lengths.dtype() != DType::kInt32) {
    throw_invalid(a.function, "kv_lengths", "int64 or int32", to_string(lengths.dtype()));
  }
  if (lengths.shape() != Shape{s.batch}) {
    throw_invalid(a.function, "kv_lengths", "[B] = [" + text(s.batch) + "]", to_string(lengths.shape()));
  }
}

void check_length(const Arguments& a, std::int64_t b, std::int64_t keys) {
  const std::int64_t length = integer(a.options.kv_lengths, b);
  if (length >= 0 && length <= keys) return;
  throw_invalid(a.function, "kv_lengths", "values from 0 to Lk = " + text(keys), text(length) + " in batch entry " + text(b));
}

void check_lengths(const Arguments& a, const Sizes& s) {
  if (!a.options.kv_lengths) return;
  if (a.rows != nullptr) throw_invalid(a.function, "kv_lengths", "none: this cache knows the length of every sequence", "a tensor");
  check_lengths_form(a, s);
  for (std::int64_t b = 0; b < s.batch; ++b) check_length(a, b, s.kv_tokens);
}

/// Positions up to 2^53 either way: differences of them fit 64 bits, and doubles hold them exactly.
void check_offsets(const Arguments& a, const Sizes& s) {
  const TensorView& offsets = a.options.query_offset;
  if (!offsets) return;
  if (offsets.dtype() != DType::kInt64 && offsets.dtype() != DType::kInt32) {
    throw_invalid(a.function, "query_offset", "int64 or int32", to_string(offsets.dtype()));
  }
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

/// What batched and packed tensors have in common; their ranks are right.
void check_tensors(const Arguments& a) {
  check_types(a);
  check_head_dim(a, "q", a.q);
  check_heads(a);
  check_axis(a, "k", a.k, dim_axis(a.k), a.q.size(dim_axis(a.q)), "D of q");
  check_axis(a, "v", a.v, tokens_axis(a.v), a.k.size(tokens_axis(a.k)), a.k.rank() == 4 ? "Lk of k" : "Tk of k");
  check_axis(a, "v", a.v, heads_axis(a.v), a.k.size(heads_axis(a.k)), "Hkv of k");
  check_head_dim(a, "v", a.v);
}

Sizes sizes_of(const Arguments& a, std::int64_t batch) {
  const std::int64_t q_heads = a.q.size(heads_axis(a.q)), kv_heads = a.k.size(heads_axis(a.k));
  return {.batch = batch,
          .q_tokens = a.q.size(tokens_axis(a.q)),
          .kv_tokens = a.k.size(tokens_axis(a.k)),
          .q_heads = q_heads,
          .kv_heads = kv_heads,
          .group = q_heads / kv_heads,
          .head_dim = a.q.size(dim_axis(a.q)),
          .value_dim = a.v.size(dim_axis(a.v))};
}

void check_offsets_form(const Arguments& a, const char* name, const TensorView& offsets) {
  if (!offsets) throw_invalid(a.function, name, "a tensor [S + 1]", "none");
  if (offsets.dtype() != DType::kInt64 && offsets.dtype() != DType::kInt32) {
    throw_invalid(a.function, name, "int64 or int32", to_string(offsets.dtype()));
  }
  if (offsets.rank() != 1 || offsets.size(0) < 1) throw_invalid(a.function, name, "[S + 1] for S sequences", to_string(offsets.shape()));
}

void check_offsets_values(const Arguments& a, const char* name, const TensorView& offsets, std::int64_t rows) {
  std::int64_t previous = 0;
  for (std::int64_t s = 0; s < offsets.size(0); ++s) {
    const std::int64_t offset = integer(offsets, s);
    if (offset < previous || offset > rows) {
      throw_invalid(a.function, name, "values from 0 to " + text(rows) + " that never fall", text(offset) + " at index " + text(s));
    }
    previous = offset;
  }
}

void check_packed_lengths(const Arguments& a, const Sizes& s) {
  if (!a.options.kv_lengths) return;
  check_lengths_form(a, s);
  for (std::int64_t b = 0; b < s.batch; ++b) check_length(a, b, integer(a.k_offsets, b + 1) - integer(a.k_offsets, b));
}

}  // namespace

Sizes check_inputs(const Arguments& a) {
  check_rank(a, "q", a.q, 4, "[B, Lq, Hq, D]");
  check_rank(a, "k", a.k, 4, "[B, Lk, Hkv, D]");
  check_rank(a, "v", a.v, 4, "[B, Lk, Hkv, Dv]");
  check_axis(a, "k", a.k, 0, a.q.size(0), "B of q");
  check_axis(a, "v", a.v, 0, a.q.size(0), "B of q");
  check_tensors(a);
  const Sizes sizes = sizes_of(a, a.q.size(0));
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

Sizes check_packed_inputs(const Arguments& a) {
  check_rank(a, "q", a.q, 3, "[Tq, Hq, D]");
  check_rank(a, "k", a.k, 3, "[Tk, Hkv, D]");
  check_rank(a, "v", a.v, 3, "[Tk, Hkv, Dv]");
  check_tensors(a);
  check_offsets_form(a, "q_offsets", a.q_offsets);
  check_offsets_form(a, "k_offsets", a.k_offsets);
  if (a.k_offsets.shape() != a.q_offsets.shape()) {
    throw_invalid(a.function, "k_offsets", "as many as q_offsets, " + to_string(a.q_offsets.shape()), to_string(a.k_offsets.shape()));
  }
  const Sizes sizes = sizes_of(a, a.q_offsets.size(0) - 1);
  check_memory(a);
  check_offsets_values(a, "q_offsets", a.q_offsets, sizes.q_tokens);
  check_offsets_values(a, "k_offsets", a.k_offsets, sizes.kv_tokens);
  check_scalars(a);
  check_mask(a, sizes);
  if (a.options.bias) {
    throw_invalid(a.function, "bias", "none: packed sequences have no common [Lq, Lk]; call attention() for each", "a tensor");
  }
  check_slopes(a, sizes);
  check_sinks(a, sizes);
  check_packed_lengths(a, sizes);
  check_offsets(a, sizes);
  return sizes;
}

}  // namespace heed::front
