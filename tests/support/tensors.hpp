// SPDX-License-Identifier: Apache-2.0
// Random tensors and comparisons for tests. Seeds are explicit, so every run sees the same numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include <heed/tensor.hpp>

namespace heed::test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// N(0, 1), rounded to `dtype`.
inline Tensor random_normal(const Shape& shape, DType dtype, std::uint64_t seed, double scale = 1.0) {
  Tensor wide(DType::kFloat32, shape);
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal(0.0F, static_cast<float>(scale));
  for (std::int64_t i = 0; i < element_count(shape); ++i) wide.data_as<float>()[i] = normal(engine);
  return dtype == DType::kFloat32 ? std::move(wide) : convert(wide, dtype);
}

/// Calls f(index) for every index of a shape, last axis fastest.
inline void for_each_index(const Shape& shape, const std::function<void(const Extents&)>& f) {
  Extents index = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) {
    if (shape[axis] == 0) return;
    index[axis] = 0;
  }
  for (;;) {
    f(index);
    int axis = shape.rank() - 1;
    for (; axis >= 0 && ++index[axis] == shape[axis]; --axis) index[axis] = 0;
    if (axis < 0) return;
  }
}

/// Element at an index, as double, through the strides.
inline double at(const TensorView& view, const Extents& index) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < view.rank(); ++axis) offset += index[axis] * view.stride(axis);
  const auto* data = static_cast<const std::byte*>(view.data()) + offset * size_bytes(view.dtype());
  return element(TensorView(data, view.dtype(), Shape{}, Strides{}), {});
}

/// Largest |a - b|; two equal infinities differ by 0, and a NaN on one side only makes the result infinite.
inline double max_abs_difference(const TensorView& a, const TensorView& b) {
  double worst = a.shape() == b.shape() ? 0.0 : kInfinity;
  for_each_index(a.shape(), [&](const Extents& index) {
    const double x = at(a, index);
    const double y = at(b, index);
    if (x == y || (std::isnan(x) && std::isnan(y))) return;
    const double difference = std::abs(x - y);
    worst = std::isnan(difference) ? kInfinity : std::max(worst, difference);
  });
  return worst;
}

inline double max_abs(const TensorView& a) {
  double worst = 0.0;
  for_each_index(a.shape(), [&](const Extents& index) { worst = std::max(worst, std::abs(at(a, index))); });
  return worst;
}

/// Same shape, type and bits, so that -0 and NaN payloads count too.
inline bool same_bits(const TensorView& a, const TensorView& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  const Tensor ca = convert(a, a.dtype()), cb = convert(b, b.dtype());
  return std::memcmp(ca.data(), cb.data(), static_cast<std::size_t>(element_count(a.shape()) * size_bytes(a.dtype()))) == 0;
}

/// Same shape and the same value in every element, NaN equal to NaN, +0 equal to -0.
inline bool same_values(const TensorView& a, const TensorView& b) { return a.shape() == b.shape() && max_abs_difference(a, b) == 0.0; }

}  // namespace heed::test
