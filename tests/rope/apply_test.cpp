// SPDX-License-Identifier: Apache-2.0
// apply_rope against complex multiplication in double, for every pairing, width, dtype, stride and kind of position.
#include <cmath>
#include <complex>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include <heed/error.hpp>
#include <heed/rope.hpp>

#include "base/parallel.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

using test::at;
using test::random_normal;

/// The definition, one element at a time: pairs are complex numbers, turned by (cos + i sin) of their position.
Tensor naive(const TensorView& x, const TensorView& cos, const TensorView& sin, RopePairing pairing, std::int64_t rotary_dim,
             const std::vector<std::int64_t>& positions) {
  Tensor out(DType::kFloat64, x.shape());
  const bool full = cos.size(1) == rotary_dim;
  test::for_each_index(x.shape(), [&](const Extents& index) {
    const std::int64_t e = index[3];
    double value = at(x, index);
    if (e < rotary_dim) {
      const bool half = pairing == RopePairing::kHalf;
      const bool first = half ? e < rotary_dim / 2 : e % 2 == 0;
      const std::int64_t pair = half ? e % (rotary_dim / 2) : e / 2;
      Extents other = index;
      other[3] = half ? (e + rotary_dim / 2) % rotary_dim : e ^ 1;
      const std::int64_t p = positions[static_cast<std::size_t>(index[0] * x.size(1) + index[1])];
      const std::int64_t column = full ? e : pair;
      const std::complex<double> turn(element(cos, {p, column}), element(sin, {p, column}));
      const std::complex<double> z = first ? std::complex(value, at(x, other)) : std::complex(at(x, other), value);
      value = first ? (z * turn).real() : (z * turn).imag();
    }
    std::int64_t offset = 0;
    for (int axis = 0; axis < 4; ++axis) offset += index[axis] * out.strides()[axis];
    out.data_as<double>()[offset] = value;
  });
  return out;
}

/// Largest relative error of rounding once to `dtype`: half a unit in the last place.
double rounding(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return std::ldexp(1.0, -8);
    case DType::kFloat16: return std::ldexp(1.0, -11);
    default: return 0.0;
  }
}

/// Every element within one rounding, plus the arithmetic's own error (products of up to about 20).
void expect_rotated(const TensorView& out, const TensorView& expected) {
  const double arithmetic = out.dtype() == DType::kFloat64 ? 1e-14 : 4e-6;
  test::for_each_index(expected.shape(), [&](const Extents& index) {
    const double truth = at(expected, index);
    ASSERT_NEAR(at(out, index), truth, rounding(out.dtype()) * std::abs(truth) + arithmetic) << to_string(index);
  });
}

std::vector<std::int64_t> counting(std::int64_t batch, std::int64_t length) {
  std::vector<std::int64_t> positions;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t l = 0; l < length; ++l) positions.push_back(l);
  }
  return positions;
}

class ApplyRope : public testing::TestWithParam<std::tuple<RopePairing, DType, bool>> {};

TEST_P(ApplyRope, MatchesComplexMultiplication) {
  const auto [pairing, dtype, full] = GetParam();
  struct Case {
    std::int64_t head_dim, rotary_dim;
  };
  for (const Case c : {Case{8, 8}, Case{7, 6}, Case{10, 8}, Case{320, 300}}) {
    const Tensor x = random_normal({2, 5, 3, c.head_dim}, dtype, 1);
    const Tensor cos = random_normal({9, full ? c.rotary_dim : c.rotary_dim / 2}, DType::kFloat32, 2);
    const Tensor sin = random_normal(cos.shape(), DType::kFloat32, 3);
    const Tensor out = apply_rope(x, cos, sin, pairing);
    EXPECT_EQ(out.dtype(), dtype);
    expect_rotated(out, naive(x, cos, sin, pairing, c.rotary_dim, counting(2, 5)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ApplyRope,
                         testing::Combine(testing::Values(RopePairing::kHalf, RopePairing::kInterleaved),
                                          testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64),
                                          testing::Bool()));

TEST(ApplyRopeDetails, NarrowTablesAreHalfWidthAndTheRestPassesThrough) {
  const Tensor x = random_normal({1, 4, 2, 16}, DType::kFloat32, 1);
  const RopeTable table = rope_table({.rotary_dim = 6}, 4);
  const Tensor out = apply_rope(x, table.cos, table.sin, RopePairing::kHalf);
  EXPECT_LE(test::max_abs_difference(out, naive(x, table.cos, table.sin, RopePairing::kHalf, 6, counting(1, 4))), 2e-6);
  EXPECT_TRUE(test::same_values(slice(out, 3, 6, 10), slice(x, 3, 6, 10)));
}

TEST(ApplyRopeDetails, Positions) {
  const Tensor x = random_normal({2, 3, 1, 4}, DType::kFloat32, 1);
  const RopeTable table = rope_table({.rotary_dim = 4}, 100);
  const std::vector<std::int64_t> shared = {7, 99, 0};
  const std::vector<std::int64_t> both = {7, 99, 0, 7, 99, 0};
  const std::vector<std::int64_t> own = {7, 99, 0, 1, 1, 42};
  const auto rotated = [&](const std::vector<std::int64_t>& positions, const Shape& shape) {
    return apply_rope(x, table.cos, table.sin, RopePairing::kInterleaved, TensorView(positions.data(), shape));
  };
  const auto truth = [&](const std::vector<std::int64_t>& positions) {
    return naive(x, table.cos, table.sin, RopePairing::kInterleaved, 4, positions);
  };
  EXPECT_LE(test::max_abs_difference(rotated(shared, {3}), truth(both)), 2e-6);
  EXPECT_LE(test::max_abs_difference(rotated(own, {2, 3}), truth(own)), 2e-6);
}

TEST(ApplyRopeDetails, InPlaceAndStridesChangeNothing) {
  for (const RopePairing pairing : {RopePairing::kHalf, RopePairing::kInterleaved}) {
    Tensor storage = random_normal({2, 3, 20, 5}, DType::kBFloat16, 1);  // [B, H, D, L]: every axis of x is strided
    const RopeTable table = rope_table({.rotary_dim = 16}, 5);
    const MutableTensorView x = permute(storage.view(), {0, 3, 1, 2});
    const Tensor compact = convert(x, DType::kBFloat16);
    const Tensor expected = apply_rope(compact, table.cos, table.sin, pairing);
    EXPECT_TRUE(test::same_values(apply_rope(x, table.cos, table.sin, pairing), expected));
    apply_rope_into(x, x, table.cos, table.sin, pairing);
    EXPECT_TRUE(test::same_values(x, expected));
  }
}

TEST(ApplyRopeDetails, StridedTables) {
  const Tensor x = random_normal({1, 3, 2, 8}, DType::kFloat32, 1);
  const Tensor cos = random_normal({4, 3}, DType::kFloat32, 2);
  const Tensor sin = random_normal({4, 3}, DType::kFloat32, 3);
  const TensorView cos_t = permute(cos.view(), {1, 0});  // [3, 4]: a row every element
  const TensorView sin_t = permute(sin.view(), {1, 0});
  const Tensor out = apply_rope(x, cos_t, sin_t, RopePairing::kHalf);
  EXPECT_LE(test::max_abs_difference(out, naive(x, cos_t, sin_t, RopePairing::kHalf, 8, counting(1, 3))), 2e-6);
}

TEST(ApplyRopeDetails, KeepsTheMemoryOrderOfX) {
  const Tensor storage = random_normal({1, 2, 3, 4}, DType::kFloat32, 1);  // [B, H, L, D]
  const RopeTable table = rope_table({.rotary_dim = 4}, 3);
  const Tensor out = apply_rope(permute(storage.view(), {0, 2, 1, 3}), table.cos, table.sin, RopePairing::kHalf);
  EXPECT_EQ(out.shape(), (Shape{1, 3, 2, 4}));
  EXPECT_EQ(out.strides(), (Strides{24, 4, 12, 1}));
}

TEST(ApplyRopeDetails, ScoresDependOnTheDistanceOnly) {
  const Tensor q = random_normal({1, 1, 1, 64}, DType::kFloat64, 1);
  const Tensor k = random_normal({1, 1, 1, 64}, DType::kFloat64, 2);
  const RopeTable table = rope_table({.rotary_dim = 64}, 4096);
  const auto score = [&](std::int64_t p, std::int64_t j) {
    const Tensor a = apply_rope(q, table.cos, table.sin, RopePairing::kHalf, TensorView(&p, {1}));
    const Tensor b = apply_rope(k, table.cos, table.sin, RopePairing::kHalf, TensorView(&j, {1}));
    double sum = 0.0;
    for (int d = 0; d < 64; ++d) sum += a.data_as<double>()[d] * b.data_as<double>()[d];
    return sum;
  };
  EXPECT_NEAR(score(4000, 3990), score(10, 0), 1e-5);  // float32 tables: 64 terms of about 1e-7
  EXPECT_GT(std::abs(score(4000, 3990) - score(11, 0)), 1e-3);
}

TEST(ApplyRopeDetails, SameBitsForAnyNumberOfThreads) {
  const Tensor x = random_normal({1, 64, 9, 64}, DType::kFloat32, 1);  // above the serial limit
  const RopeTable table = rope_table({.rotary_dim = 64}, 64);
  const int threads = base::num_threads();
  base::set_num_threads(1);
  const Tensor one = apply_rope(x, table.cos, table.sin, RopePairing::kHalf);
  base::set_num_threads(3);
  const Tensor three = apply_rope(x, table.cos, table.sin, RopePairing::kHalf);
  base::set_num_threads(threads);
  EXPECT_TRUE(test::same_values(one, three));
}

TEST(ApplyRopeDetails, EmptySizes) {
  const RopeTable table = rope_table({.rotary_dim = 4}, 0);
  EXPECT_EQ(apply_rope(Tensor(DType::kFloat32, {0, 3, 2, 4}), table.cos, table.sin, RopePairing::kHalf).shape(), (Shape{0, 3, 2, 4}));
  EXPECT_EQ(apply_rope(Tensor(DType::kFloat32, {2, 0, 2, 4}), table.cos, table.sin, RopePairing::kHalf).shape(), (Shape{2, 0, 2, 4}));
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ApplyRopeDetails, ErrorsNameTheArgumentAndWriteNothing) {
  Tensor x = random_normal({2, 3, 1, 8}, DType::kFloat32, 1);
  const Tensor before = x.clone();
  const RopeTable table = rope_table({.rotary_dim = 8}, 3);
  const auto run = [&](const TensorView& cos, const TensorView& sin, const TensorView& positions) {
    return message_of([&] { apply_rope_into(x, x, cos, sin, RopePairing::kHalf, positions); });
  };
  const std::int64_t outside[] = {0, 1, 3};
  const std::int64_t negative[] = {0, -1, 2};
  const std::int32_t narrow[] = {0, 1, 2};
  const std::int64_t wide_positions[] = {0, 1, 2};
  const float fractions[] = {0, 1, 2};
  const RopeTable two = rope_table({.rotary_dim = 8}, 2);
  EXPECT_EQ(run(table.cos, table.sin, TensorView(outside, {3})),
            "apply_rope: positions: expected positions in [0, 3) (rows of the table), got 3");
  EXPECT_EQ(run(table.cos, table.sin, TensorView(negative, {3})),
            "apply_rope: positions: expected positions in [0, 3) (rows of the table), got -1");
  EXPECT_EQ(run(table.cos, table.sin, TensorView(fractions, {3})), "apply_rope: positions: expected int64 or int32, got float32");
  EXPECT_TRUE(test::same_values(apply_rope(x, table.cos, table.sin, RopePairing::kHalf, TensorView(narrow, {3})),
                                apply_rope(x, table.cos, table.sin, RopePairing::kHalf, TensorView(wide_positions, {3}))));
  EXPECT_EQ(run(table.cos, table.sin, TensorView(outside, {2})), "apply_rope: positions: expected [3] or [2, 3], got [2]");
  EXPECT_EQ(run(two.cos, two.sin, {}), "apply_rope: cos: expected at least 3 rows (L), got 2");
  EXPECT_EQ(run(table.cos, two.sin, {}), "apply_rope: sin: expected [3, 4] (shape of cos), got [2, 4]");
  const Tensor wide(DType::kFloat32, {3, 10});
  const Tensor odd(DType::kFloat32, {3, 5});
  EXPECT_NE(run(wide, wide, {}).find("apply_rope: cos: expected at most 4 columns"), std::string::npos);
  EXPECT_NE(run(odd, odd, {}).find("got 5"), std::string::npos);
  const Tensor half(DType::kFloat16, {3, 4});
  EXPECT_EQ(run(half, half, {}), "apply_rope: cos: expected float32, got float16");
  Tensor other(DType::kFloat16, {2, 3, 1, 8});
  EXPECT_EQ(message_of([&] { apply_rope_into(other, x, table.cos, table.sin, RopePairing::kHalf); }),
            "apply_rope: out: expected float32 (dtype of x), got float16");
  EXPECT_NE(
      message_of([&] { static_cast<void>(apply_rope({}, table.cos, table.sin, RopePairing::kHalf)); }).find("x: expected [B, L, H, D]"),
      std::string::npos);
  const TensorView nothing(static_cast<const void*>(nullptr), DType::kFloat32, {3, 4});
  EXPECT_EQ(run(nothing, table.sin, {}), "apply_rope: cos: expected memory for [3, 4], got a null pointer");
  const TensorView no_positions(static_cast<const void*>(nullptr), DType::kInt64, {3});
  EXPECT_EQ(run(table.cos, table.sin, no_positions), "apply_rope: positions: expected memory for [3], got a null pointer");
  EXPECT_TRUE(test::same_values(x, before));
}

}  // namespace
}  // namespace heed
