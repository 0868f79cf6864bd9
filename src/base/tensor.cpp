// SPDX-License-Identifier: Apache-2.0
#include <heed/tensor.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>

#include <heed/error.hpp>

#include "base/floating_point.hpp"
#include "base/message.hpp"

namespace heed {
namespace {

constexpr std::align_val_t kAlignment{64};

std::int64_t product(std::span<const std::int64_t> sizes) {
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t size : sizes) {
    if (size < 0) base::throw_invalid("Tensor", "shape", "sizes of at least 0", std::to_string(size));
    empty = empty || size == 0;
    if (size > 0 && __builtin_mul_overflow(count, size, &count)) {
      base::throw_invalid("Tensor", "shape", "fewer than 2^63 elements", to_string(Extents(sizes)));
    }
  }
  return empty ? 0 : count;
}

/// The axes from the largest to the smallest stride of `like`; axes of equal stride keep their order.
std::array<int, kMaxRank> axes_by_stride(const Strides& like) {
  std::array<int, kMaxRank> order{};
  std::iota(order.begin(), order.end(), 0);
  const auto magnitude = [&like](int axis) {  // the lowest number has no counterpart in std::int64_t
    const auto bits = static_cast<std::uint64_t>(like[axis]);
    return like[axis] < 0 ? 0 - bits : bits;
  };
  std::stable_sort(order.begin(), order.begin() + like.rank(), [&](int a, int b) { return magnitude(a) > magnitude(b); });
  return order;
}

/// Of the types without a fraction.
std::int64_t load_integer(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kBool: return static_cast<const unsigned char*>(data)[index] != 0 ? 1 : 0;
    case DType::kInt32: return static_cast<const std::int32_t*>(data)[index];
    case DType::kInt64: return static_cast<const std::int64_t*>(data)[index];
    default: return 0;
  }
}

void store_integer(void* data, DType dtype, std::int64_t index, std::int64_t value) {
  using Int32 = std::numeric_limits<std::int32_t>;
  switch (dtype) {
    case DType::kBool: static_cast<unsigned char*>(data)[index] = value != 0 ? 1 : 0; break;
    case DType::kInt32:
      static_cast<std::int32_t*>(data)[index] = static_cast<std::int32_t>(std::clamp<std::int64_t>(value, Int32::min(), Int32::max()));
      break;
    case DType::kInt64: static_cast<std::int64_t*>(data)[index] = value; break;
    default: break;
  }
}

double load(const void* data, DType dtype, std::int64_t index) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<const float*>(data)[index];
    case DType::kBFloat16: return static_cast<double>(static_cast<float>(static_cast<const bfloat16*>(data)[index]));
    case DType::kFloat16: return static_cast<double>(static_cast<float>(static_cast<const float16*>(data)[index]));
    case DType::kFloat64: return static_cast<const double*>(data)[index];
    case DType::kBool:
    case DType::kInt32:
    case DType::kInt64: return static_cast<double>(load_integer(data, dtype, index));
  }
  return 0.0;
}

/// To the nearest, ties to even; to the nearest end beyond the range; 0 for NaN.
std::int64_t to_integer(double value) {
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  if (std::isnan(value)) return 0;
  if (value >= kEnd) return std::numeric_limits<std::int64_t>::max();
  if (value < -kEnd) return std::numeric_limits<std::int64_t>::min();
  return static_cast<std::int64_t>(std::nearbyint(value));
}

/// A float that rounds on to 16 bits as `value` itself would: where the conversion is inexact, its last bit is made odd, so that no
/// second rounding sees a tie that was none.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  if (static_cast<double>(nearest) == value || !std::isfinite(nearest)) return nearest;
  const bool away = std::abs(static_cast<double>(nearest)) > std::abs(value);
  const std::uint32_t truncated = std::bit_cast<std::uint32_t>(nearest) - (away ? 1U : 0U);
  return std::bit_cast<float>(truncated | 1U);
}

void store(void* data, DType dtype, std::int64_t index, double value) {
  switch (dtype) {
    case DType::kFloat32: static_cast<float*>(data)[index] = static_cast<float>(value); break;
    case DType::kBFloat16: static_cast<bfloat16*>(data)[index] = bfloat16(round_to_odd(value)); break;
    case DType::kFloat16: static_cast<float16*>(data)[index] = float16(round_to_odd(value)); break;
    case DType::kFloat64: static_cast<double*>(data)[index] = value; break;
    case DType::kBool: static_cast<unsigned char*>(data)[index] = value != 0.0 ? 1 : 0; break;
    case DType::kInt32:
    case DType::kInt64: store_integer(data, dtype, index, to_integer(value)); break;
  }
}

template <class View>
View permuted(const View& view, std::initializer_list<int> order) {
  if (static_cast<int>(order.size()) != view.rank()) {
    base::throw_invalid("permute", "order", std::to_string(view.rank()) + " axes", std::to_string(order.size()));
  }
  Shape shape = view.shape();
  Strides strides = view.strides();
  std::array<bool, kMaxRank> taken{};
  int to = 0;
  for (const int from : order) {
    if (from < 0 || from >= view.rank() || taken[static_cast<std::size_t>(from)]) {
      base::throw_invalid("permute", "order", "each axis below " + std::to_string(view.rank()) + " once", std::to_string(from));
    }
    taken[static_cast<std::size_t>(from)] = true;
    shape[to] = view.size(from);
    strides[to] = view.stride(from);
    ++to;
  }
  return View(view.data(), view.dtype(), shape, strides);
}

template <class View>
View sliced(const View& view, int axis, std::int64_t begin, std::int64_t count) {
  if (axis < 0 || axis >= view.rank()) {
    base::throw_invalid("slice", "axis", "an axis below " + std::to_string(view.rank()), std::to_string(axis));
  }
  if (begin < 0 || count < 0 || begin > view.size(axis) || count > view.size(axis) - begin) {
    base::throw_invalid("slice", "range", "a range inside [0, " + std::to_string(view.size(axis)) + ")",
                        std::to_string(count) + " elements from " + std::to_string(begin));
  }
  Shape shape = view.shape();
  shape[axis] = count;
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, const std::byte, std::byte>;
  auto* data = static_cast<Byte*>(view.data());
  if (data != nullptr) data += begin * view.stride(axis) * size_bytes(view.dtype());
  return View(data, view.dtype(), shape, view.strides());
}

}  // namespace

Extents::Extents(std::initializer_list<std::int64_t> values) : Extents(std::span<const std::int64_t>(values.begin(), values.size())) {}

Extents::Extents(std::span<const std::int64_t> values) {
  if (values.size() > static_cast<std::size_t>(kMaxRank)) {
    base::throw_invalid("Tensor", "shape", "at most " + std::to_string(kMaxRank) + " axes", std::to_string(values.size()));
  }
  std::copy(values.begin(), values.end(), values_.begin());
  rank_ = static_cast<int>(values.size());
}

bool operator==(const Extents& a, const Extents& b) noexcept { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

std::int64_t element_count(const Shape& shape) { return product({shape.begin(), shape.end()}); }

Strides row_major_strides(const Shape& shape) {
  Strides strides = shape;
  std::int64_t stride = 1;
  for (int axis = shape.rank() - 1; axis >= 0; --axis) {
    strides[axis] = stride;
    if (shape[axis] > 0 && __builtin_mul_overflow(stride, shape[axis], &stride)) {
      base::throw_invalid("Tensor", "shape", "fewer than 2^63 elements", to_string(shape));
    }
  }
  return strides;
}

std::string to_string(const Extents& extents) {
  std::string text = "[";
  for (const std::int64_t value : extents) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(value);
  }
  return text + "]";
}

TensorView permute(const TensorView& view, std::initializer_list<int> order) { return permuted(view, order); }
MutableTensorView permute(const MutableTensorView& view, std::initializer_list<int> order) { return permuted(view, order); }

TensorView slice(const TensorView& view, int axis, std::int64_t begin, std::int64_t count) { return sliced(view, axis, begin, count); }
MutableTensorView slice(const MutableTensorView& view, int axis, std::int64_t begin, std::int64_t count) {
  return sliced(view, axis, begin, count);
}

double element(const TensorView& view, std::initializer_list<std::int64_t> index) {
  if (static_cast<int>(index.size()) != view.rank()) {
    base::throw_invalid("element", "index", std::to_string(view.rank()) + " numbers", std::to_string(index.size()));
  }
  std::int64_t offset = 0;
  int axis = 0;
  for (const std::int64_t i : index) offset += i * view.stride(axis++);
  return load(view.data(), view.dtype(), offset);
}

Tensor::Tensor(DType dtype, const Shape& shape) : shape_(shape), strides_(row_major_strides(shape)), dtype_(dtype) {
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(element_count(shape), size_bytes(dtype), &bytes)) throw std::bad_alloc();
  // At least one line, so that an empty tensor still has an address.
  memory_.reset(::operator new(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 64)), kAlignment));
}

Tensor Tensor::with_order_of(DType dtype, const Shape& shape, const Strides& like) {
  if (like.rank() != shape.rank()) {
    base::throw_invalid("Tensor::with_order_of", "like", std::to_string(shape.rank()) + " strides", std::to_string(like.rank()));
  }
  Tensor tensor(dtype, shape);
  const auto order = axes_by_stride(like);
  std::int64_t stride = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    const int axis = order[static_cast<std::size_t>(i)];
    tensor.strides_[axis] = stride;
    stride *= std::max<std::int64_t>(shape[axis], 1);
  }
  return tensor;
}

Tensor Tensor::zeros(DType dtype, const Shape& shape) {
  Tensor tensor(dtype, shape);
  std::memset(tensor.data(), 0, static_cast<std::size_t>(element_count(shape) * size_bytes(dtype)));
  return tensor;
}

Tensor Tensor::clone() const {
  if (!memory_) return {};
  Tensor copy(dtype_, shape_);
  copy.strides_ = strides_;
  std::memcpy(copy.data(), data(), static_cast<std::size_t>(element_count(shape_) * size_bytes(dtype_)));
  return copy;
}

MutableTensorView Tensor::view() noexcept { return memory_ ? MutableTensorView(data(), dtype_, shape_, strides_) : MutableTensorView(); }
TensorView Tensor::view() const noexcept { return memory_ ? TensorView(data(), dtype_, shape_, strides_) : TensorView(); }

void Tensor::check_type(DType wanted) const {
  if (wanted != dtype_) base::throw_invalid("Tensor::data_as", "T", to_string(dtype_), to_string(wanted));
}

void Tensor::Free::operator()(void* memory) const noexcept { ::operator delete(memory, kAlignment); }

Tensor convert(const TensorView& source, DType dtype) {
  if (!source) base::throw_invalid("convert", "source", "a tensor", "none");
  const base::DefaultFloatingPoint environment;  // to nearest, and a denormal stays one
  Tensor result(dtype, source.shape());
  const std::int64_t count = element_count(source.shape());
  const bool integers = !is_floating(source.dtype()) && !is_floating(dtype);  // 64-bit ids do not fit a double
  Extents index = source.shape();
  for (int axis = 0; axis < index.rank(); ++axis) index[axis] = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t offset = 0;
    for (int axis = 0; axis < index.rank(); ++axis) offset += index[axis] * source.stride(axis);
    if (integers) {
      store_integer(result.data(), dtype, i, load_integer(source.data(), source.dtype(), offset));
    } else {
      store(result.data(), dtype, i, load(source.data(), source.dtype(), offset));
    }
    for (int axis = index.rank() - 1; axis >= 0 && ++index[axis] == source.size(axis); --axis) index[axis] = 0;
  }
  return result;
}

}  // namespace heed
