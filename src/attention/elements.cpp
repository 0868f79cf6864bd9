// SPDX-License-Identifier: Apache-2.0
#include "attention/elements.hpp"

#include <cstring>

#include "base/floating_point.hpp"

namespace heed::front {
namespace {

/// Copies every element of a compact row-major source; shapes are equal.
void scatter(const MutableTensorView& target, const std::byte* source) {
  const std::int64_t width = size_bytes(target.dtype());
  const std::int64_t count = element_count(target.shape());
  auto* data = static_cast<std::byte*>(target.data());
  Extents index = target.shape();
  for (std::int64_t& i : std::span(&index[0], static_cast<std::size_t>(index.rank()))) i = 0;
  for (std::int64_t n = 0; n < count; ++n) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < index.rank(); ++axis) offset += index[axis] * target.stride(axis);
    std::memcpy(data + offset * width, source + n * width, static_cast<std::size_t>(width));
    for (int axis = index.rank() - 1; axis >= 0 && ++index[axis] == target.size(axis); --axis) index[axis] = 0;
  }
}

}  // namespace

void round_into(const MutableTensorView& target, const TensorView& source) {
  const base::DefaultFloatingPoint environment;  // a denormal result stays one
  const Tensor rounded = convert(source, target.dtype());
  scatter(target, static_cast<const std::byte*>(rounded.data()));
}

void fill_zero(const MutableTensorView& target) {
  if (target) round_into(target, Tensor::zeros(target.dtype(), target.shape()));
}

Tensor rounded_like(const TensorView& source, const TensorView& like) {
  Tensor result = Tensor::with_order_of(like.dtype(), source.shape(), like.strides());
  round_into(result, source);
  return result;
}

}  // namespace heed::front
