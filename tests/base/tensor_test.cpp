// SPDX-License-Identifier: Apache-2.0
// Extents, views and tensors: indexing through any strides, conversions, and errors.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include <heed/error.hpp>
#include <heed/tensor.hpp>

#include "support/tensors.hpp"

namespace heed::test {
namespace {

template <class Make>
std::string error_of(Make make) {
  try {
    static_cast<void>(make());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

constexpr std::int64_t kHuge = std::int64_t{1} << 40;

TEST(Extents, HoldUpToSixValues) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.rank(), 3);
  EXPECT_EQ(shape[2], 4);
  EXPECT_EQ(to_string(shape), "[2, 3, 4]");
  EXPECT_EQ(to_string(Shape{}), "[]");
  EXPECT_EQ(Shape{}.rank(), 0);
  EXPECT_EQ((Shape{1, 2}), (Shape{1, 2}));
  EXPECT_FALSE((Shape{1, 2}) == (Shape{1, 2, 1}));
  EXPECT_EQ(error_of([] { return Shape{1, 1, 1, 1, 1, 1, 1}; }), "Tensor: shape: expected at most 6 axes, got 7");
}

TEST(Extents, ElementCount) {
  EXPECT_EQ(element_count(Shape{}), 1);
  EXPECT_EQ(element_count(Shape{3, 0, 5}), 0);
  EXPECT_EQ(element_count(Shape{kHuge, 1 << 20}), std::int64_t{1} << 60);
  EXPECT_EQ(error_of([] { return element_count(Shape{2, -1}); }), "Tensor: shape: expected sizes of at least 0, got -1");
  EXPECT_EQ(error_of([] {
              return element_count(Shape{kHuge, kHuge});
            }),
            "Tensor: shape: expected fewer than 2^63 elements, got [1099511627776, 1099511627776]");
}

TEST(Extents, RowMajorStrides) {
  EXPECT_EQ(row_major_strides(Shape{2, 3, 4}), (Strides{12, 4, 1}));
  EXPECT_EQ(row_major_strides(Shape{}), Strides{});
  EXPECT_THROW(static_cast<void>(row_major_strides(Shape{kHuge, kHuge, 2})), InvalidArgument);
}

/// [2, 3, 4] with element value 100 a + 10 b + c.
Tensor numbered() {
  Tensor tensor(DType::kFloat32, {2, 3, 4});
  for (std::int64_t at = 0; at < 24; ++at) {
    tensor.data_as<float>()[at] = static_cast<float>(100 * (at / 12) + 10 * (at / 4 % 3) + at % 4);
  }
  return tensor;
}

TEST(TensorView, NotGivenIsFalse) {
  EXPECT_FALSE(TensorView());
  EXPECT_FALSE(MutableTensorView());
  EXPECT_FALSE(Tensor().view());
  const std::vector<float> none;
  EXPECT_TRUE(TensorView(none.data(), Shape{0, 4}));
  const TensorView from_mutable = MutableTensorView();
  EXPECT_FALSE(from_mutable);
}

TEST(TensorView, TypedPointersNameTheirType) {
  const std::vector<std::int64_t> ids(3);
  std::vector<bfloat16> halves(3);
  EXPECT_EQ(TensorView(ids.data(), Shape{3}).dtype(), DType::kInt64);
  EXPECT_EQ(MutableTensorView(halves.data(), Shape{3}).dtype(), DType::kBFloat16);
  EXPECT_EQ(TensorView(halves.data(), Shape{3}, Strides{-1}).stride(0), -1);
}

TEST(TensorView, PermuteMovesNoMemory) {
  const Tensor tensor = numbered();
  const TensorView turned = permute(tensor.view(), {2, 0, 1});
  EXPECT_EQ(turned.shape(), (Shape{4, 2, 3}));
  EXPECT_EQ(turned.strides(), (Strides{1, 12, 4}));
  EXPECT_EQ(turned.data(), tensor.data());
  EXPECT_EQ(element(turned, {3, 1, 2}), 123.0);
  EXPECT_EQ(error_of([&] { return permute(tensor.view(), {0, 1}); }), "permute: order: expected 3 axes, got 2");
  EXPECT_EQ(error_of([&] { return permute(tensor.view(), {0, 1, 3}); }), "permute: order: expected each axis below 3 once, got 3");
  EXPECT_EQ(error_of([&] { return permute(tensor.view(), {0, 1, 1}); }), "permute: order: expected each axis below 3 once, got 1");
}

TEST(TensorView, SliceKeepsStrides) {
  Tensor tensor = numbered();
  const MutableTensorView part = slice(tensor.view(), 1, 1, 2);
  EXPECT_EQ(part.shape(), (Shape{2, 2, 4}));
  EXPECT_EQ(element(part, {1, 1, 3}), 123.0);
  EXPECT_EQ(slice(TensorView(tensor), 2, 4, 0).size(2), 0);
  EXPECT_EQ(error_of([&] { return slice(TensorView(tensor), 3, 0, 1); }), "slice: axis: expected an axis below 3, got 3");
  EXPECT_EQ(error_of([&] { return slice(TensorView(tensor), 1, 2, 2); }),
            "slice: range: expected a range inside [0, 3), got 2 elements from 2");
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(error_of([&] { return slice(TensorView(tensor), 1, 1, most); }),
            "slice: range: expected a range inside [0, 3), got 9223372036854775807 elements from 1");
  EXPECT_THROW(static_cast<void>(slice(TensorView(tensor), 0, -1, 1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(slice(TensorView(), 0, 0, 0)), InvalidArgument);
}

TEST(TensorView, ElementNeedsOneNumberPerAxis) {
  const Tensor tensor = numbered();
  EXPECT_EQ(element(tensor, {1, 2, 3}), 123.0);
  EXPECT_EQ(error_of([&] { return element(tensor, {1, 2}); }), "element: index: expected 3 numbers, got 2");
}

TEST(Tensor, OwnsAlignedMemory) {
  for (const std::int64_t size : {0, 1, 1000}) {
    const Tensor tensor(DType::kFloat32, {size});
    EXPECT_NE(tensor.data(), nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0U);
  }
  EXPECT_EQ(max_abs(Tensor::zeros(DType::kFloat64, {5, 7})), 0.0);
  EXPECT_THROW(Tensor(DType::kFloat32, {2, -1}), InvalidArgument);
  EXPECT_THROW(Tensor(DType::kFloat64, {std::int64_t{1} << 61}), std::bad_alloc);  // 2^64 bytes
}

TEST(Tensor, TypedAccessIsChecked) {
  Tensor tensor(DType::kFloat32, {2});
  EXPECT_EQ(error_of([&] { return tensor.data_as<double>(); }), "Tensor::data_as: T: expected float32, got float64");
}

TEST(Tensor, CloneIsDeepAndKeepsTheOrder) {
  Tensor tensor = Tensor::with_order_of(DType::kFloat32, {2, 3}, {1, 2});
  for (int i = 0; i < 6; ++i) tensor.data_as<float>()[i] = static_cast<float>(i);
  const Tensor copy = tensor.clone();
  tensor.data_as<float>()[0] = 9.0F;
  EXPECT_EQ(copy.strides(), (Strides{1, 2}));
  EXPECT_EQ(element(copy, {0, 0}), 0.0);
  EXPECT_EQ(element(copy, {1, 2}), 5.0);
  EXPECT_FALSE(Tensor().clone().view());
}

TEST(Tensor, WithOrderOfFollowsTheStrides) {
  // [B, L, H, D] seen on memory laid out as [B, H, L, D].
  EXPECT_EQ(Tensor::with_order_of(DType::kFloat32, {2, 5, 3, 4}, {60, 4, 20, 1}).strides(), (Strides{60, 4, 20, 1}));
  // A gap, a negative stride and a repeated axis only give the order: by magnitude.
  EXPECT_EQ(Tensor::with_order_of(DType::kFloat32, {2, 3, 4}, {-100, 1, 7}).strides(), (Strides{12, 1, 3}));
  EXPECT_EQ(Tensor::with_order_of(DType::kFloat32, {2, 3}, {0, 1}).strides(), (Strides{1, 2}));
  // Equal strides keep their order, empty axes count as one.
  EXPECT_EQ(Tensor::with_order_of(DType::kFloat32, {2, 0, 4}, {4, 4, 1}).strides(), (Strides{4, 4, 1}));
  EXPECT_EQ(error_of([] {
              return Tensor::with_order_of(DType::kFloat32, {2, 3}, {1});
            }),
            "Tensor::with_order_of: like: expected 2 strides, got 1");
}

TEST(Convert, ReadsThroughAnyStrides) {
  const Tensor tensor = numbered();
  const TensorView turned = permute(tensor.view(), {2, 0, 1});
  const Tensor compact = convert(turned, DType::kFloat64);
  EXPECT_EQ(compact.strides(), (Strides{6, 3, 1}));
  EXPECT_TRUE(same_values(compact, turned));
  const auto* last = tensor.data_as<float>() + 23;
  EXPECT_EQ(element(convert(TensorView(last, Shape{24}, Strides{-1}), DType::kInt32), {0}), 123.0);
  EXPECT_EQ(element(convert(TensorView(last, Shape{5}, Strides{0}), DType::kFloat16), {4}), 123.0);
  EXPECT_EQ(element(convert(TensorView(last, Shape{}), DType::kFloat32), {}), 123.0);
  EXPECT_EQ(convert(TensorView(last, Shape{2, 0}), DType::kFloat32).shape(), (Shape{2, 0}));
  EXPECT_EQ(error_of([] { return convert(TensorView(), DType::kFloat32); }), "convert: source: expected a tensor, got none");
}

double through(double value, DType dtype) { return element(convert(TensorView(&value, Shape{1}), dtype), {0}); }

/// float64 goes to 16 bits in one rounding: these lie next to a tie, closer than a float32 can tell.
TEST(Convert, RoundsOnce) {
  const double tiny = 0x1p-40;
  EXPECT_EQ(through(1.0 + 0x1p-11, DType::kFloat16), 1.0);
  EXPECT_EQ(through(1.0 + 0x1p-11 + tiny, DType::kFloat16), 1.0 + 0x1p-10);
  EXPECT_EQ(through(1.0 + 3 * 0x1p-11 - tiny, DType::kFloat16), 1.0 + 0x1p-10);
  EXPECT_EQ(through(-1.0 - 0x1p-8 - tiny, DType::kBFloat16), -1.0 - 0x1p-7);
  EXPECT_EQ(through(-1.0 - 0x1p-8, DType::kBFloat16), -1.0);
  EXPECT_EQ(through(0x1p-25 + 0x1p-60, DType::kFloat16), 0x1p-24);
  EXPECT_EQ(through(0x1p-200, DType::kBFloat16), 0.0);
  EXPECT_EQ(through(1e300, DType::kFloat16), kInfinity);
  EXPECT_EQ(through(-kInfinity, DType::kBFloat16), -kInfinity);
  EXPECT_TRUE(std::isnan(through(std::nan(""), DType::kFloat16)));
  EXPECT_EQ(through(1.0 + 0x1p-24, DType::kFloat32), 1.0);
}

TEST(Convert, IntegersAreExactRoundedAndSaturated) {
  const std::int64_t id = (std::int64_t{1} << 60) + 1;
  const Tensor same = convert(TensorView(&id, Shape{1}), DType::kInt64);
  EXPECT_EQ(same.data_as<std::int64_t>()[0], id);
  EXPECT_EQ(through(static_cast<double>(id), DType::kInt32), 2147483647.0);
  EXPECT_EQ(convert(TensorView(&id, Shape{1}), DType::kInt32).data_as<std::int32_t>()[0], std::numeric_limits<std::int32_t>::max());
  EXPECT_EQ(through(2.5, DType::kInt32), 2.0);
  EXPECT_EQ(through(3.5, DType::kInt64), 4.0);
  EXPECT_EQ(through(-1e30, DType::kInt32), -2147483648.0);
  EXPECT_EQ(convert(TensorView(std::vector<double>{1e30}.data(), Shape{1}), DType::kInt64).data_as<std::int64_t>()[0],
            std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(through(std::nan(""), DType::kInt64), 0.0);
  EXPECT_EQ(through(0.5, DType::kBool), 1.0);
  EXPECT_EQ(through(-0.0, DType::kBool), 0.0);
}

}  // namespace
}  // namespace heed::test
