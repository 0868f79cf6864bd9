// SPDX-License-Identifier: Apache-2.0
#include "attention/arguments.hpp"

#include <cmath>
#include <new>

#include "base/parallel.hpp"

namespace heed::front {
namespace {

/// Waking a thread costs some microseconds; this much of a short sequence, at a third of the peak, takes a fast core about five.
constexpr double kFlopsPerThread = 2.5e5;

std::int64_t offset_bytes(const Strides& strides, DType dtype, std::int64_t i0, std::int64_t i1, std::int64_t i2,
                          std::int64_t i3) noexcept {
  return (i0 * strides[0] + i1 * strides[1] + i2 * strides[2] + i3 * strides[3]) * size_bytes(dtype);
}

}  // namespace

DType statistics_dtype(DType q) noexcept { return q == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32; }

std::int64_t integer(const TensorView& view, std::int64_t index) noexcept {
  const std::int64_t at = index * view.stride(0);
  return view.dtype() == DType::kInt32 ? static_cast<const std::int32_t*>(view.data())[at]
                                       : static_cast<const std::int64_t*>(view.data())[at];
}

mask::Geometry geometry_of(const AttentionOptions& options, std::int64_t batch, std::int64_t tokens, std::int64_t keys) noexcept {
  if (options.kv_lengths) keys = integer(options.kv_lengths, batch);
  std::int64_t offset = options.align == Align::kBottomRight ? keys - tokens : 0;
  if (options.query_offset) offset = integer(options.query_offset, options.query_offset.size(0) == 1 ? 0 : batch);
  return {.tokens = tokens, .keys = keys, .query_offset = offset, .batch = batch};
}

Shape out_shape(const Arguments& a, const Sizes& s) {
  if (a.q.rank() == 3) return {s.q_tokens, s.q_heads, s.value_dim};
  return {s.batch, s.q_tokens, s.q_heads, s.value_dim};
}

Shape statistics_shape(const Arguments& a, const Sizes& s) {
  if (a.q.rank() == 3) return {s.q_heads, s.q_tokens};
  return {s.batch, s.q_heads, s.q_tokens};
}

double scale_of(const AttentionOptions& options, std::int64_t head_dim) {
  return options.scale ? *options.scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
}

TensorView broadcast4(const TensorView& view, const Shape& shape) {
  Strides strides = {0, 0, 0, 0};
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) != 1) strides[4 - view.rank() + axis] = view.stride(axis);
  }
  return TensorView(view.data(), view.dtype(), shape, strides);
}

const void* address(const TensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t i3) noexcept {
  return static_cast<const std::byte*>(view.data()) + offset_bytes(view.strides(), view.dtype(), i0, i1, i2, i3);
}

void* address(const MutableTensorView& view, std::int64_t i0, std::int64_t i1, std::int64_t i2, std::int64_t i3) noexcept {
  return static_cast<std::byte*>(view.data()) + offset_bytes(view.strides(), view.dtype(), i0, i1, i2, i3);
}

Sequences::Sequences(std::int64_t capacity)
    : scratch_(capacity * static_cast<std::int64_t>(sizeof(mask::Geometry) + sizeof(Place))),
      geometry_(reinterpret_cast<mask::Geometry*>(scratch_.data())), places_(reinterpret_cast<Place*>(geometry_ + capacity)) {}

Sequences::Sequences(const Arguments& arguments, const Sizes& sizes) : Sequences(sizes.batch) {
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    const kv::StoredSequence stored =
        arguments.rows != nullptr ? arguments.rows->sequences[static_cast<std::size_t>(b)] : kv::StoredSequence{.keys = sizes.kv_tokens};
    mask::Geometry geometry = geometry_of(arguments.options, b, sizes.q_tokens, stored.keys);
    geometry.first_key = stored.first_key;
    add(geometry, {.slice = b, .key_rows = sizes.kv_tokens});
  }
}

void Sequences::add(const mask::Geometry& geometry, const Place& place) noexcept {
  new (&geometry_[count_]) mask::Geometry(geometry);
  new (&places_[count_]) Place(place);
  ++count_;
}

int worthwhile_threads(const Sizes& sizes, const Sequences& sequences) {
  double scores = 0.0;
  for (const mask::Geometry& geometry : sequences.geometry()) {
    scores += static_cast<double>(geometry.tokens) * static_cast<double>(geometry.keys);
  }
  const double flops = 2.0 * scores * static_cast<double>(sizes.q_heads * (sizes.head_dim + sizes.value_dim));
  const double worthwhile = flops / kFlopsPerThread;
  if (worthwhile < 2.0) return 1;
  const int available = base::num_threads();
  return worthwhile < available ? static_cast<int>(worthwhile) : available;
}

}  // namespace heed::front
