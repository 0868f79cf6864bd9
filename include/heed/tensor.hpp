// SPDX-License-Identifier: Apache-2.0
// How tensors reach heed: a pointer with a type, a shape and strides. No arithmetic lives here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <type_traits>

#include <heed/dtype.hpp>
#include <heed/export.hpp>

namespace heed {

/// Most axes a tensor may have.
inline constexpr int kMaxRank = 6;

/// Up to kMaxRank sizes or strides. Sizes and strides are signed 64-bit and counted in elements, never in bytes.
class HEED_API Extents {
 public:
  Extents() = default;
  /// Throws InvalidArgument for more than kMaxRank values.
  Extents(std::initializer_list<std::int64_t> values);
  explicit Extents(std::span<const std::int64_t> values);

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] std::int64_t operator[](int axis) const noexcept { return values_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] std::int64_t& operator[](int axis) noexcept { return values_[static_cast<std::size_t>(axis)]; }
  [[nodiscard]] const std::int64_t* begin() const noexcept { return values_.data(); }
  [[nodiscard]] const std::int64_t* end() const noexcept { return values_.data() + rank_; }
  friend HEED_API bool operator==(const Extents& a, const Extents& b) noexcept;

 private:
  std::array<std::int64_t, kMaxRank> values_{};
  int rank_ = 0;
};

using Shape = Extents;
using Strides = Extents;

/// Product of the sizes; 1 for rank 0. Throws InvalidArgument for a negative size or a product above 2^63 - 1.
[[nodiscard]] HEED_API std::int64_t element_count(const Shape& shape);
/// Strides of a compact row-major tensor of this shape.
[[nodiscard]] HEED_API Strides row_major_strides(const Shape& shape);
/// "[2, 128, 8, 64]"
[[nodiscard]] HEED_API std::string to_string(const Extents& extents);

/// Non-owning view: pointer, type, shape, strides. Trivially copyable; the memory must outlive it.
///
/// `Pointer` is `const void` for what heed reads (TensorView) and `void` for what it writes (MutableTensorView).
/// Any strides are right, negative and zero ones included; stride 1 on the last axis is the fast path.
/// A default-constructed view is "not given" and converts to false.
template <class Pointer>
class BasicTensorView {
 public:
  BasicTensorView() = default;

  /// Compact row-major view.
  BasicTensorView(Pointer* data, DType dtype, const Shape& shape) : BasicTensorView(data, dtype, shape, row_major_strides(shape)) {}

  BasicTensorView(Pointer* data, DType dtype, const Shape& shape, const Strides& strides)
      : data_(data), shape_(shape), strides_(strides), dtype_(dtype), given_(true) {}

  /// Typed pointers name their own dtype: TensorView(q_data, {B, L, H, D}).
  template <class T>
    requires(!std::is_void_v<T> && (std::is_const_v<Pointer> || !std::is_const_v<T>))
  BasicTensorView(T* data, const Shape& shape) : BasicTensorView(data, dtype_of<std::remove_const_t<T>>, shape) {}

  template <class T>
    requires(!std::is_void_v<T> && (std::is_const_v<Pointer> || !std::is_const_v<T>))
  BasicTensorView(T* data, const Shape& shape, const Strides& strides)
      : BasicTensorView(data, dtype_of<std::remove_const_t<T>>, shape, strides) {}

  /// A mutable view may be read.
  template <class Other>
    requires(std::is_const_v<Pointer> && !std::is_const_v<Other>)
  BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data()), shape_(other.shape()), strides_(other.strides()), dtype_(other.dtype()), given_(static_cast<bool>(other)) {}

  explicit operator bool() const noexcept { return given_; }
  [[nodiscard]] Pointer* data() const noexcept { return data_; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Strides& strides() const noexcept { return strides_; }
  [[nodiscard]] int rank() const noexcept { return shape_.rank(); }
  [[nodiscard]] std::int64_t size(int axis) const noexcept { return shape_[axis]; }
  [[nodiscard]] std::int64_t stride(int axis) const noexcept { return strides_[axis]; }

 private:
  Pointer* data_ = nullptr;
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::kFloat32;
  bool given_ = false;
};

using TensorView = BasicTensorView<const void>;
using MutableTensorView = BasicTensorView<void>;

/// The same memory with its axes in another order: permute(x, {0, 2, 1, 3}) turns [B, H, L, D] into [B, L, H, D].
[[nodiscard]] HEED_API TensorView permute(const TensorView& view, std::initializer_list<int> order);
[[nodiscard]] HEED_API MutableTensorView permute(const MutableTensorView& view, std::initializer_list<int> order);
/// Elements [begin, begin + count) of one axis.
[[nodiscard]] HEED_API TensorView slice(const TensorView& view, int axis, std::int64_t begin, std::int64_t count);
[[nodiscard]] HEED_API MutableTensorView slice(const MutableTensorView& view, int axis, std::int64_t begin, std::int64_t count);
/// Element at `index` (one number per axis) as a double; exact for every dtype but int64 above 2^53. For tests and small work.
[[nodiscard]] HEED_API double element(const TensorView& view, std::initializer_list<std::int64_t> index);

/// Owns 64-byte-aligned memory. Moves, never copies by accident: call clone().
class HEED_API Tensor {
 public:
  Tensor() = default;
  /// Uninitialised compact row-major memory. Throws std::bad_alloc, or InvalidArgument for a negative size.
  Tensor(DType dtype, const Shape& shape);
  /// Uninitialised memory whose axes lie in memory in the order of `like`'s strides (largest first).
  static Tensor with_order_of(DType dtype, const Shape& shape, const Strides& like);
  static Tensor zeros(DType dtype, const Shape& shape);

  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] const Shape& shape() const noexcept { return shape_; }
  [[nodiscard]] const Strides& strides() const noexcept { return strides_; }
  [[nodiscard]] void* data() noexcept { return memory_.get(); }
  [[nodiscard]] const void* data() const noexcept { return memory_.get(); }
  /// The elements as T. Throws InvalidArgument when T is not the tensor's type.
  template <class T>
  [[nodiscard]] T* data_as() {
    check_type(dtype_of<T>);
    return static_cast<T*>(data());
  }
  template <class T>
  [[nodiscard]] const T* data_as() const {
    check_type(dtype_of<T>);
    return static_cast<const T*>(data());
  }
  [[nodiscard]] Tensor clone() const;
  [[nodiscard]] MutableTensorView view() noexcept;
  [[nodiscard]] TensorView view() const noexcept;
  operator TensorView() const noexcept { return view(); }   // NOLINT(google-explicit-constructor)
  operator MutableTensorView() noexcept { return view(); }  // NOLINT(google-explicit-constructor)

 private:
  void check_type(DType wanted) const;
  struct Free {
    void operator()(void* memory) const noexcept;
  };
  std::unique_ptr<void, Free> memory_;
  Shape shape_;
  Strides strides_;
  DType dtype_ = DType::kFloat32;
};

/// A copy of `source` in another dtype (or the same), compact and row-major; rounds to nearest even. Exact between integer types;
/// integers saturate, and a NaN becomes 0 there. int64 beyond 2^53 reaches floating types through float64. Throws InvalidArgument for no tensor.
[[nodiscard]] HEED_API Tensor convert(const TensorView& source, DType dtype);

}  // namespace heed
