// SPDX-License-Identifier: Apache-2.0
// Rotates q or k. Elements are widened into small buffers, rotated there and rounded back, so that one rotation serves every
// dtype, stride, pairing and table width, in place too.
#include <algorithm>
#include <array>
#include <string>

#include <heed/rope.hpp>

#include "base/message.hpp"
#include "base/overlap.hpp"
#include "base/parallel.hpp"

namespace heed {
namespace {

constexpr const char* kFunction = "apply_rope";

/// Pairs rotated at a time: the six buffers of this size stay in the first-level cache.
constexpr std::int64_t kChunkPairs = 64;
/// Below this many elements a parallel region costs more than it saves.
constexpr std::int64_t kSerialElements = 1 << 15;

/// One head of one token, and the table row of its position.
template <class T>
struct HeadRow {
  const T* x;
  T* out;
  std::int64_t x_stride, out_stride;
  const float* cos;
  const float* sin;
  std::int64_t cos_stride, sin_stride;
};

/// Which elements a pair has, and which columns of the table belong to them.
struct Pairs {
  std::int64_t count = 0;
  std::int64_t step = 1;         // from one pair's first element to the next pair's
  std::int64_t partner = 0;      // from a pair's first element to its second
  std::int64_t column_step = 1;  // from one pair's first column to the next pair's
  std::int64_t column_partner = 0;
};

Pairs pairs_of(RopePairing pairing, std::int64_t rotary_dim, std::int64_t table_width) {
  Pairs pairs;
  pairs.count = rotary_dim / 2;
  pairs.step = pairing == RopePairing::kHalf ? 1 : 2;
  pairs.partner = pairing == RopePairing::kHalf ? pairs.count : 1;
  const bool full = table_width == rotary_dim;
  pairs.column_step = full ? pairs.step : 1;
  pairs.column_partner = full ? pairs.partner : 0;
  return pairs;
}

template <class Wide, class T>
void gather(std::array<Wide, kChunkPairs>& to, const T* from, std::int64_t stride, std::int64_t count) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[static_cast<std::size_t>(i)] = static_cast<Wide>(from[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[static_cast<std::size_t>(i)] = static_cast<Wide>(from[i * stride]);
  }
}

template <class Wide, class T>
void scatter(T* to, const std::array<Wide, kChunkPairs>& from, std::int64_t stride, std::int64_t count) {
  if (stride == 1) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(from[static_cast<std::size_t>(i)]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) to[i * stride] = static_cast<T>(from[static_cast<std::size_t>(i)]);
  }
}

/// Element `e` of a pair becomes x[e] * cos[e] + sign * x[partner] * sin[e].
template <class T, class Wide>
void rotate_row(const HeadRow<T>& row, const Pairs& pairs) {
  using Buffer = std::array<Wide, kChunkPairs>;
  for (std::int64_t first = 0; first < pairs.count; first += kChunkPairs) {
    const std::int64_t count = std::min(kChunkPairs, pairs.count - first);
    const std::int64_t column = first * pairs.column_step;
    Buffer a, b, cos_a, cos_b, sin_a, sin_b, out_a, out_b;
    const T* x = row.x + first * pairs.step * row.x_stride;
    gather(a, x, pairs.step * row.x_stride, count);
    gather(b, x + pairs.partner * row.x_stride, pairs.step * row.x_stride, count);
    gather(cos_a, row.cos + column * row.cos_stride, pairs.column_step * row.cos_stride, count);
    gather(sin_a, row.sin + column * row.sin_stride, pairs.column_step * row.sin_stride, count);
    gather(cos_b, row.cos + (column + pairs.column_partner) * row.cos_stride, pairs.column_step * row.cos_stride, count);
    gather(sin_b, row.sin + (column + pairs.column_partner) * row.sin_stride, pairs.column_step * row.sin_stride, count);
    for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
      out_a[i] = a[i] * cos_a[i] - b[i] * sin_a[i];
      out_b[i] = b[i] * cos_b[i] + a[i] * sin_b[i];
    }
    T* out = row.out + first * pairs.step * row.out_stride;
    scatter(out, out_a, pairs.step * row.out_stride, count);
    scatter(out + pairs.partner * row.out_stride, out_b, pairs.step * row.out_stride, count);
  }
}

struct Call {
  const MutableTensorView& out;
  const TensorView& x;
  const TensorView& cos;
  const TensorView& sin;
  const TensorView& positions;
  Pairs pairs;

  [[nodiscard]] std::int64_t position(std::int64_t b, std::int64_t l) const {
    if (!positions) return l;
    const std::int64_t at = positions.rank() == 1 ? l * positions.stride(0) : b * positions.stride(0) + l * positions.stride(1);
    return positions.dtype() == DType::kInt32 ? static_cast<const std::int32_t*>(positions.data())[at]
                                              : static_cast<const std::int64_t*>(positions.data())[at];
  }
};

/// All heads of token l of sequence b.
template <class T, class Wide>
void rotate_token(const Call& call, std::int64_t b, std::int64_t l) {
  const std::int64_t position = call.position(b, l);
  const std::int64_t x_dim = call.x.stride(3);
  const std::int64_t out_dim = call.out.stride(3);
  for (std::int64_t h = 0; h < call.x.size(2); ++h) {
    const T* x = static_cast<const T*>(call.x.data()) + b * call.x.stride(0) + l * call.x.stride(1) + h * call.x.stride(2);
    T* out = static_cast<T*>(call.out.data()) + b * call.out.stride(0) + l * call.out.stride(1) + h * call.out.stride(2);
    const HeadRow<T> row{x,
                         out,
                         x_dim,
                         out_dim,
                         static_cast<const float*>(call.cos.data()) + position * call.cos.stride(0),
                         static_cast<const float*>(call.sin.data()) + position * call.sin.stride(0),
                         call.cos.stride(1),
                         call.sin.stride(1)};
    rotate_row<T, Wide>(row, call.pairs);
    if (x == out) continue;
    for (std::int64_t e = 2 * call.pairs.count; e < call.x.size(3); ++e) out[e * out_dim] = x[e * x_dim];
  }
}

template <class T, class Wide>
void rotate_all(const Call& call) {
  const std::int64_t length = call.x.size(1);
  const std::int64_t tokens = call.x.size(0) * length;
  const bool small = element_count(call.x.shape()) < kSerialElements;
  base::parallel_for(tokens, small ? 1 : base::num_threads(),
                     [&](std::int64_t token, int) noexcept { rotate_token<T, Wide>(call, token / length, token % length); });
}

void check_tensors(const MutableTensorView& out, const TensorView& x) {
  if (!x || x.rank() != 4) base::throw_invalid(kFunction, "x", "[B, L, H, D]", x ? to_string(x.shape()) : "nothing");
  if (!is_floating(x.dtype())) base::throw_invalid(kFunction, "x", "a floating dtype", to_string(x.dtype()));
  if (!out || !(out.shape() == x.shape())) {
    base::throw_invalid(kFunction, "out", to_string(x.shape()) + " (shape of x)", out ? to_string(out.shape()) : "nothing");
  }
  if (out.dtype() != x.dtype()) {
    base::throw_invalid(kFunction, "out", std::string(to_string(x.dtype())) + " (dtype of x)", to_string(out.dtype()));
  }
  base::require_memory(kFunction, "x", x);
  base::require_memory(kFunction, "out", out);
}

void check_table(const char* name, const TensorView& table) {
  if (!table || table.rank() != 2) {
    base::throw_invalid(kFunction, name, "[table length, rotary_dim / 2 or rotary_dim]", table ? to_string(table.shape()) : "nothing");
  }
  if (table.dtype() != DType::kFloat32) base::throw_invalid(kFunction, name, "float32", to_string(table.dtype()));
  base::require_memory(kFunction, name, table);
}

/// A width of at most D/2 is a half-width table, a larger one a full-width table.
std::int64_t rotary_dim_of(const TensorView& cos, std::int64_t head_dim) {
  const std::int64_t width = cos.size(1);
  if (2 * width <= head_dim) return 2 * width;
  if (width > head_dim || width % 2 != 0) {
    base::throw_invalid(
        kFunction, "cos",
        "at most " + std::to_string(head_dim / 2) + " columns (D / 2), or an even number of columns up to D = " + std::to_string(head_dim),
        std::to_string(width));
  }
  return width;
}

void check_positions(const Call& call) {
  const std::int64_t batch = call.x.size(0);
  const std::int64_t length = call.x.size(1);
  const std::int64_t table_length = call.cos.size(0);
  if (!call.positions) {
    if (batch > 0 && length > table_length) {
      base::throw_invalid(kFunction, "cos", "at least " + std::to_string(length) + " rows (L)", std::to_string(table_length));
    }
    return;
  }
  if (call.positions.dtype() != DType::kInt64 && call.positions.dtype() != DType::kInt32) {
    base::throw_invalid(kFunction, "positions", "int64 or int32", to_string(call.positions.dtype()));
  }
  if (!(call.positions.shape() == Shape{length}) && !(call.positions.shape() == Shape{batch, length})) {
    base::throw_invalid(kFunction, "positions", to_string(Shape{length}) + " or " + to_string(Shape{batch, length}),
                        to_string(call.positions.shape()));
  }
  base::require_memory(kFunction, "positions", call.positions);
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t l = 0; l < length; ++l) {
      const std::int64_t p = call.position(b, l);
      if (p >= 0 && p < table_length) continue;
      base::throw_invalid(kFunction, "positions", "positions in [0, " + std::to_string(table_length) + ") (rows of the table)",
                          std::to_string(p));
    }
  }
}

/// One memory order for both: every element is read before it is written.
bool is_same_view(const TensorView& a, const TensorView& b) {
  if (a.data() != b.data()) return false;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.size(axis) > 1 && a.stride(axis) != b.stride(axis)) return false;
  }
  return true;
}

void check_overlap(const Call& call) {
  const TensorView out = call.out;
  if (base::overlaps_itself(out)) {
    base::throw_invalid(kFunction, "out", "strides that give every element its own memory", "strides " + to_string(out.strides()));
  }
  if (!is_same_view(out, call.x) && base::may_overlap(out, call.x)) {
    base::throw_invalid(kFunction, "out", "x itself or memory apart from it", "an overlap with x");
  }
  const auto check_apart = [&out](const char* name, const TensorView& input) {
    if (base::may_overlap(out, input)) {
      base::throw_invalid(kFunction, "out", std::string("memory apart from ") + name, "an overlap");
    }
  };
  check_apart("cos", call.cos);
  check_apart("sin", call.sin);
  check_apart("positions", call.positions);
}

}  // namespace

void apply_rope_into(const MutableTensorView& out, const TensorView& x, const TensorView& cos, const TensorView& sin, RopePairing pairing,
                     const TensorView& positions) {
  check_tensors(out, x);
  check_table("cos", cos);
  check_table("sin", sin);
  if (!(sin.shape() == cos.shape())) {
    base::throw_invalid(kFunction, "sin", to_string(cos.shape()) + " (shape of cos)", to_string(sin.shape()));
  }
  const Call call{out, x, cos, sin, positions, pairs_of(pairing, rotary_dim_of(cos, x.size(3)), cos.size(1))};
  check_positions(call);
  check_overlap(call);
  switch (x.dtype()) {
    case DType::kFloat32: return rotate_all<float, float>(call);
    case DType::kBFloat16: return rotate_all<bfloat16, float>(call);
    case DType::kFloat16: return rotate_all<float16, float>(call);
    default: return rotate_all<double, double>(call);
  }
}

Tensor apply_rope(const TensorView& x, const TensorView& cos, const TensorView& sin, RopePairing pairing, const TensorView& positions) {
  if (!x || x.rank() != 4) base::throw_invalid(kFunction, "x", "[B, L, H, D]", x ? to_string(x.shape()) : "nothing");
  Tensor out = Tensor::with_order_of(x.dtype(), x.shape(), x.strides());
  apply_rope_into(out, x, cos, sin, pairing, positions);
  return out;
}

}  // namespace heed
