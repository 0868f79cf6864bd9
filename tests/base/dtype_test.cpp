// SPDX-License-Identifier: Apache-2.0
// The 16-bit types against their definition, computed in float64: every value widened, every rounding boundary and its neighbours.
#include <gtest/gtest.h>

#include <bit>
#include <cfenv>
#include <cmath>
#include <limits>

#include <heed/dtype.hpp>

namespace heed::test {
namespace {

/// What IEEE 754 says about a binary format.
struct Format {
  int exponent_bits, mantissa_bits;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] std::uint16_t infinity() const { return static_cast<std::uint16_t>(((1U << exponent_bits) - 1U) << mantissa_bits); }
  [[nodiscard]] double value_of(std::uint16_t bits) const {
    const int sign_shift = exponent_bits + mantissa_bits;
    const unsigned exponent = (bits >> mantissa_bits) & ((1U << exponent_bits) - 1U);
    const unsigned mantissa = bits & ((1U << mantissa_bits) - 1U);
    double magnitude = 0.0;
    if (exponent == (1U << exponent_bits) - 1U) {
      magnitude = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == 0) {
      magnitude = std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    } else {
      magnitude = std::ldexp(mantissa + (1U << mantissa_bits), static_cast<int>(exponent) - bias() - mantissa_bits);
    }
    return (bits >> sign_shift) != 0 ? -magnitude : magnitude;
  }
  /// Nearest value, ties to even, by float64 arithmetic on multiples of the spacing.
  [[nodiscard]] double nearest(double x) const {
    if (x == 0.0 || std::isinf(x)) return x;
    const int exponent = std::max(std::ilogb(x), 1 - bias());
    const double spacing = std::ldexp(1.0, exponent - mantissa_bits);
    const double rounded = std::nearbyint(x / spacing) * spacing;
    const double limit = std::ldexp(1.0, bias() + 1);  // the first power of two out of range
    return std::abs(rounded) >= limit ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
  }
};

struct Half {
  using Type = float16;
  static constexpr Format kFormat{5, 10};
};
struct Brain {
  using Type = bfloat16;
  static constexpr Format kFormat{8, 7};
};

template <class Traits>
class SixteenBits : public ::testing::Test {};
using BothTypes = ::testing::Types<Half, Brain>;
TYPED_TEST_SUITE(SixteenBits, BothTypes);

TYPED_TEST(SixteenBits, EveryValueWidensExactly) {
  using T = typename TypeParam::Type;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto b = static_cast<std::uint16_t>(bits);
    const auto got = static_cast<double>(static_cast<float>(T::from_bits(b)));
    const double expected = TypeParam::kFormat.value_of(b);
    if (std::isnan(expected)) {
      ASSERT_TRUE(std::isnan(got)) << bits;
    } else {
      ASSERT_EQ(got, expected) << bits;
    }
    ASSERT_EQ(std::signbit(got), bits >= 32768) << bits;
  }
}

TYPED_TEST(SixteenBits, EveryValueSurvivesARoundTrip) {
  using T = typename TypeParam::Type;
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const T value = T::from_bits(static_cast<std::uint16_t>(bits));
    const std::uint16_t again = T(static_cast<float>(value)).bits;
    if (std::isnan(static_cast<float>(value))) {
      ASSERT_TRUE(std::isnan(static_cast<float>(T::from_bits(again)))) << bits;
    } else {
      ASSERT_EQ(again, bits);
    }
  }
}

/// Between neighbours a and b the middle goes to the even one, and the next float on either side to the nearer one. The last pair is
/// the largest finite value and the power of two that would follow it, which is where infinity begins.
TYPED_TEST(SixteenBits, EveryMidpointTiesToEven) {
  using T = typename TypeParam::Type;
  const Format& format = TypeParam::kFormat;
  for (std::uint16_t low = 0; low < format.infinity(); ++low) {
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double above = high == format.infinity() ? std::ldexp(1.0, format.bias() + 1) : format.value_of(high);
    const double exact = (format.value_of(low) + above) / 2;
    const auto middle = static_cast<float>(exact);
    ASSERT_EQ(static_cast<double>(middle), exact);  // a float holds every midpoint
    const std::uint16_t even = low % 2 == 0 ? low : high;
    ASSERT_EQ(T(middle).bits, even) << low;
    ASSERT_EQ(T(std::nextafter(middle, 0.0F)).bits, low) << low;
    ASSERT_EQ(T(std::nextafter(middle, std::numeric_limits<float>::infinity())).bits, high) << low;
    ASSERT_EQ(T(-middle).bits, even | 0x8000U) << low;
  }
}

/// Floats all over the range, a prime distance apart.
TYPED_TEST(SixteenBits, RoundsToTheNearest) {
  using T = typename TypeParam::Type;
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const auto value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isnan(value)) continue;
    const auto got = static_cast<double>(static_cast<float>(T(value)));
    ASSERT_EQ(got, TypeParam::kFormat.nearest(static_cast<double>(value))) << value;
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << value;
  }
}

/// A NaN whose payload lies in the dropped bits only must not become an infinity.
TYPED_TEST(SixteenBits, NansStayNans) {
  using T = typename TypeParam::Type;
  for (const std::uint32_t bits : {0x7F800001U, 0x7F801000U, 0x7FC00000U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    const T rounded(std::bit_cast<float>(bits));
    EXPECT_TRUE(std::isnan(static_cast<float>(rounded))) << bits;
    EXPECT_EQ(rounded.bits >> 15, bits >> 31);
  }
}

TEST(DTypes, SizesAndNames) {
  const struct {
    DType dtype;
    std::int64_t bytes;
    const char* name;
    bool floating;
  } expected[] = {{DType::kFloat32, 4, "float32", true}, {DType::kBFloat16, 2, "bfloat16", true}, {DType::kFloat16, 2, "float16", true},
                  {DType::kFloat64, 8, "float64", true}, {DType::kBool, 1, "bool", false},        {DType::kInt32, 4, "int32", false},
                  {DType::kInt64, 8, "int64", false}};
  for (const auto& e : expected) {
    EXPECT_EQ(size_bytes(e.dtype), e.bytes) << e.name;
    EXPECT_STREQ(to_string(e.dtype), e.name);
    EXPECT_EQ(is_floating(e.dtype), e.floating) << e.name;
  }
  EXPECT_EQ(dtype_of<bfloat16>, DType::kBFloat16);
  EXPECT_EQ(dtype_of<bool>, DType::kBool);
}

}  // namespace
}  // namespace heed::test
