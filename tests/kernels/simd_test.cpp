// SPDX-License-Identifier: Apache-2.0
// The SIMD layer of every ISA that runs here, against scalar arithmetic in float64 and against bit-level definitions written here.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/cpu.hpp"
#include "base/philox.hpp"
#include "kernels/simd_ops.hpp"

namespace heed::test {
namespace {

const SimdOps* ops_of(base::Isa isa) {
  switch (isa) {
    case base::Isa::kGeneric: return &kernels::generic::simd_ops;
#if defined(HEED_HAVE_NEON)
    case base::Isa::kNeon: return &kernels::neon::simd_ops;
#endif
#if defined(HEED_HAVE_AVX2)
    case base::Isa::kAvx2: return &kernels::avx2::simd_ops;
#endif
#if defined(HEED_HAVE_AVX512)
    case base::Isa::kAvx512: return &kernels::avx512::simd_ops;
#endif
#if defined(HEED_HAVE_AVX512BF16)
    case base::Isa::kAvx512Bf16: return &kernels::avx512bf16::simd_ops;
#endif
    default: return nullptr;
  }
}

std::vector<base::Isa> isas_here() {
  std::vector<base::Isa> list;
  for (const base::Isa isa : base::kAllIsas) {
    if (base::runs_here(isa) && ops_of(isa) != nullptr) list.push_back(isa);
  }
  return list;
}

class Simd : public testing::TestWithParam<base::Isa> {
 protected:
  const SimdOps& ops = *ops_of(GetParam());
  const int lanes = ops.lanes;
};
INSTANTIATE_TEST_SUITE_P(Isas, Simd, testing::ValuesIn(isas_here()),
                         [](const auto& isa) { return std::string(base::to_string(isa.param)); });

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// Distance to `exact` in units of the last place of the float32 nearest to it.
double ulps(float got, double exact) {
  const auto near = static_cast<float>(std::abs(exact));
  const double ulp = static_cast<double>(std::nextafter(near, kInf)) - near;
  return std::abs(got - exact) / ulp;
}

TEST_P(Simd, Exp2IsWithinTwoUlp) {
  constexpr int kCount = 1 << 21;
  std::vector<float> x(kCount), y(kCount);
  for (int i = 0; i < kCount; ++i) x[static_cast<std::size_t>(i)] = -125.99F + 253.0F * static_cast<float>(i) / kCount;
  ops.exp2(x.data(), y.data(), kCount);
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp2(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 2.0);
  for (int i = 0; i < kCount; ++i) x[static_cast<std::size_t>(i)] = -1.0F + 2.0F * static_cast<float>(i) / kCount;
  ops.exp2(x.data(), y.data(), kCount);
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::exp2(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 2.0);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST_P(Simd, Exp2OfSpecialValues) {
  const std::array<float, 16> x = {-kInf, kInf,   kNan,    0.0F, -0.0F, 1.0F,   -126.0F, 127.0F,
                                   -1e5F, -3e38F, -200.0F, 1e5F, 3e38F, 128.0F, -5.0F,   10.0F};
  std::array<float, 16> y{};
  ops.exp2(x.data(), y.data(), 16);
  const std::array<float, 16> expected = {0.0F, kInf, kNan, 1.0F, 1.0F, 2.0F, 0x1p-126F, 0x1p127F,
                                          0.0F, 0.0F, 0.0F, kInf, kInf, kInf, 0x1p-5F,   1024.0F};
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(expected[i])) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(y[i], expected[i]) << x[i];
      EXPECT_FALSE(std::signbit(y[i])) << x[i];
    }
  }
}

TEST_P(Simd, TanhIsWithinFourUlp) {
  constexpr int kCount = 1 << 18;
  std::vector<float> x(kCount), y(kCount);
  for (int i = 0; i < kCount; ++i) x[static_cast<std::size_t>(i)] = -12.0F + 24.0F * (static_cast<float>(i) + 0.3F) / kCount;
  x[0] = 1e-30F, x[1] = -1e-20F, x[2] = kInf, x[3] = -kInf, x[4] = 1e-3F, x[5] = 0.0F;
  ops.tanh(x.data(), y.data(), kCount);
  double worst = 0.0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, ulps(y[i], std::tanh(static_cast<double>(x[i]))));
  EXPECT_LE(worst, 4.0);
}

/// Every bit pattern, against ldexp.
TEST_P(Simd, WidensEveryHalf) {
  std::vector<std::uint16_t> bits(65536);
  for (std::size_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<std::uint16_t>(i);
  std::vector<bfloat16> brain(bits.size());
  std::vector<float16> half(bits.size());
  for (std::size_t i = 0; i < bits.size(); ++i) brain[i] = bfloat16::from_bits(bits[i]);
  for (std::size_t i = 0; i < bits.size(); ++i) half[i] = float16::from_bits(bits[i]);
  std::vector<float> y(bits.size());
  ops.widen_bfloat16(brain.data(), y.data(), 65536);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(y[i]), static_cast<std::uint32_t>(i) << 16);
  }
  ops.widen_float16(half.data(), y.data(), 65536);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const int exponent = (bits[i] >> 10) & 31, mantissa = bits[i] & 1023;
    const double magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    if (std::isnan(magnitude)) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(std::abs(y[i]), magnitude) << i;
      EXPECT_EQ(std::signbit(y[i]), (bits[i] & 0x8000) != 0);
    }
  }
}

/// Nearest by trying both neighbours: independent of any bit trick.
float nearest(float x, int fraction_bits, int least_exponent, double largest) {
  if (!std::isfinite(x) || x == 0.0F) return x;
  const int exponent = std::max(std::ilogb(x), least_exponent);
  const double unit = std::ldexp(1.0, exponent - fraction_bits);
  const double rounded = std::nearbyint(x / unit) * unit;  // ties to even
  return std::abs(rounded) > largest ? std::copysign(kInf, x) : static_cast<float>(rounded);
}

TEST_P(Simd, NarrowsToTheNearestEven) {
  std::vector<float> x;
  std::uint32_t state = 1;
  for (int i = 0; i < 200000; ++i) {
    state = state * 1664525U + 1013904223U;
    x.push_back(std::bit_cast<float>(state));
  }
  for (std::uint32_t i = 0; i < 32768; ++i) {  // halves of float16 and bfloat16 steps
    x.push_back(std::bit_cast<float>(0x38000000U + (i << 12)));
    x.push_back(std::bit_cast<float>((i << 16) | 0x8000U));
    x.push_back(static_cast<float>(std::ldexp(i + 0.5, -25)));
  }
  for (const float special : {65504.0F, 65519.99F, 65520.0F, 3.4e38F, kInf, -kInf, kNan, -kNan, 0.0F, -0.0F, 5e-8F, 2.9e-8F, 1e-45F})
    x.push_back(special);
  while (x.size() % 16 != 0) x.push_back(1.0F);
  const int n = static_cast<int>(x.size());
  std::vector<bfloat16> brain(x.size());
  std::vector<float16> half(x.size());
  ops.narrow_bfloat16(x.data(), brain.data(), n);
  ops.narrow_float16(x.data(), half.data(), n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) {
      EXPECT_EQ(brain[i].bits & 0x7fc0, 0x7fc0);
      EXPECT_EQ(half[i].bits & 0x7e00, 0x7e00);
      continue;
    }
    const float brain_expected = nearest(x[i], 7, -126, 3.3895313892515355e38), half_expected = nearest(x[i], 10, -14, 65504.0);
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(brain[i])), std::bit_cast<std::uint32_t>(brain_expected)) << x[i];
    ASSERT_EQ(std::bit_cast<std::uint32_t>(static_cast<float>(half[i])), std::bit_cast<std::uint32_t>(half_expected)) << x[i];
  }
}

/// Memory past the n elements is another page's: vectors of exactly n elements let the address sanitizer see an overrun.
TEST_P(Simd, PartialAccessTouchesNothingElse) {
  for (int n = 0; n <= lanes; ++n) {
    const auto count = static_cast<std::size_t>(n);
    std::vector<float> x(count), all(static_cast<std::size_t>(lanes)), y(static_cast<std::size_t>(lanes), -1.0F);
    std::vector<bfloat16> brain(count);
    std::vector<float16> half(count);
    for (std::size_t i = 0; i < count; ++i) {
      x[i] = static_cast<float>(i + 1);
      brain[i] = bfloat16(x[i]);
      half[i] = float16(x[i]);
    }
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<float>(i + 1);
    const auto check = [&] {
      for (int i = 0; i < lanes; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], i < n ? static_cast<float>(i + 1) : 0.0F);
    };
    ops.load_partial(x.data(), n, y.data());
    check();
    ops.load_partial_bfloat16(brain.data(), n, y.data());
    check();
    ops.load_partial_float16(half.data(), n, y.data());
    check();
    std::vector<float> stored(static_cast<std::size_t>(lanes), -7.0F);
    ops.store_partial(all.data(), n, stored.data());
    std::vector<bfloat16> stored_brain(static_cast<std::size_t>(lanes), bfloat16(-7.0F));
    ops.store_partial_bfloat16(all.data(), n, stored_brain.data());
    std::vector<float16> stored_half(static_cast<std::size_t>(lanes), float16(-7.0F));
    ops.store_partial_float16(all.data(), n, stored_half.data());
    for (int i = 0; i < lanes; ++i) {
      const float expected = i < n ? static_cast<float>(i + 1) : -7.0F;
      EXPECT_EQ(stored[static_cast<std::size_t>(i)], expected);
      EXPECT_EQ(static_cast<float>(stored_brain[static_cast<std::size_t>(i)]), expected);
      EXPECT_EQ(static_cast<float>(stored_half[static_cast<std::size_t>(i)]), expected);
    }
  }
}

TEST_P(Simd, MasksFollowTheirBits) {
  std::array<float, 16> a{}, b{}, y{};
  for (std::size_t i = 0; i < 16; ++i) a[i] = 1.0F + static_cast<float>(i), b[i] = -a[i];
  for (std::uint64_t bits = 0; bits < 65536; bits += 257) {
    ops.select_bits(bits | (std::uint64_t{0xabcd} << 40), a.data(), b.data(), y.data());
    for (int i = 0; i < lanes; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)] > 0.0F, ((bits >> i) & 1U) != 0);
    const std::uint64_t low = (std::uint64_t{1} << lanes) - 1;
    EXPECT_EQ(ops.less(b.data(), y.data()), bits & low);
  }
  a.fill(kNan);
  EXPECT_EQ(ops.less(a.data(), b.data()), 0U);
}

TEST_P(Simd, ReducesAndTransposes) {
  std::vector<float> square(static_cast<std::size_t>(lanes * lanes));
  for (std::size_t i = 0; i < square.size(); ++i) square[i] = static_cast<float>((i * 37) % 101);
  float sum = 0.0F, top = -kInf;
  for (int i = 0; i < lanes; ++i) {
    sum += square[static_cast<std::size_t>(i)];
    top = std::max(top, square[static_cast<std::size_t>(i)]);
  }
  EXPECT_EQ(ops.reduce_add(square.data()), sum);  // small integers: exact in any order
  EXPECT_EQ(ops.reduce_max(square.data()), top);
  std::vector<float> turned = square;
  ops.transpose(turned.data());
  for (int i = 0; i < lanes; ++i) {
    for (int j = 0; j < lanes; ++j)
      EXPECT_EQ(turned[static_cast<std::size_t>(i * lanes + j)], square[static_cast<std::size_t>(j * lanes + i)]);
  }
}

TEST_P(Simd, LoadsColumnsOfMisalignedRows) {
  const int stride = lanes + 3;
  std::vector<float> rows(static_cast<std::size_t>(1 + lanes * stride)), columns(static_cast<std::size_t>(lanes * lanes));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i);
  ops.load_columns(rows.data() + 1, stride, columns.data());
  for (int i = 0; i < lanes; ++i) {
    for (int j = 0; j < lanes; ++j) EXPECT_EQ(columns[static_cast<std::size_t>(i * lanes + j)], static_cast<float>(1 + j * stride + i));
  }
}

TEST_P(Simd, WidensBytesAndNibbles) {
  std::array<float, 16> table{};
  for (std::size_t i = 0; i < 16; ++i) table[i] = static_cast<float>(i * i) - 8.0F;
  for (int first = 0; first < 256; first += lanes) {
    std::array<std::uint8_t, 16> x{};
    for (int i = 0; i < lanes; ++i) x[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(first + i);
    std::array<float, 16> u{}, s{}, low{}, high{}, looked_up{};
    ops.bytes(x.data(), u.data(), s.data(), low.data(), high.data());
    ops.lookup(table.data(), x.data(), looked_up.data());
    for (int i = 0; i < lanes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const int value = first + i;
      EXPECT_EQ(u[at], static_cast<float>(value));
      EXPECT_EQ(s[at], static_cast<float>(value < 128 ? value : value - 256));
      EXPECT_EQ(low[at], static_cast<float>(value % 16));
      EXPECT_EQ(high[at], static_cast<float>(value / 16));
      EXPECT_EQ(looked_up[at], table[static_cast<std::size_t>(value % 16)]);
    }
  }
}

TEST_P(Simd, UnsignedIntegers) {
  const std::array<std::uint32_t, 6> edges = {0, 1, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};
  std::mt19937 engine(1);
  for (int round = 0; round < 200; ++round) {
    std::array<std::uint32_t, 16> a{}, b{}, y{};
    for (std::size_t i = 0; i < 16; ++i) {
      a[i] = engine() % 3 == 0 ? edges[engine() % 6] : static_cast<std::uint32_t>(engine());
      b[i] = engine() % 3 == 0 ? edges[engine() % 6] : static_cast<std::uint32_t>(engine());
    }
    const auto n = static_cast<std::size_t>(lanes);
    const std::uint64_t greater = ops.greater_unsigned(a.data(), b.data());
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ((greater >> i & 1U) != 0, a[i] > b[i]);
    EXPECT_EQ(greater >> n, 0U);
    ops.bit_xor(a.data(), b.data(), y.data());
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(y[i], a[i] ^ b[i]);
    ops.multiply_even(a.data(), b.data(), y.data());
    for (std::size_t i = 0; i < n; i += 2) {
      const std::uint64_t product = std::uint64_t{a[i]} * b[i];
      EXPECT_EQ(y[i], static_cast<std::uint32_t>(product));
      EXPECT_EQ(y[i + 1], static_cast<std::uint32_t>(product >> 32));
    }
    ops.odd_lanes(a.data(), y.data());
    for (std::size_t i = 0; i < n; i += 2) EXPECT_EQ(y[i], a[i + 1]);
    ops.join_lanes(a.data(), b.data(), y.data());
    for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(y[i], i % 2 == 0 ? a[i] : b[i - 1]);
  }
}

// Row, head, batch and key from small to beyond 32 bits, thresholds from the first to the last draw.
TEST_P(Simd, KeptRowsAreThePhiloxDraws) {
  std::mt19937_64 engine(2);
  const std::array<std::uint32_t, 5> thresholds = {0, 1, 0x40000000, 0xcccccccc, 0xffffffff};
  for (int round = 0; round < 60; ++round) {
    const kernels::DropoutRule rule = {.seed = engine(),
                                       .last_dropped = thresholds[engine() % 5],
                                       .batch = static_cast<std::uint32_t>(engine() % 9),
                                       .first_head = static_cast<std::uint32_t>(engine() % 40),
                                       .factor = 1.0F};
    const std::int64_t far = round % 3 == 0 ? std::int64_t{1} << 34 : 1000;
    const DropoutBlock block = {.first_row = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(far)),
                                .rows = static_cast<int>(1 + engine() % 64),
                                .group = static_cast<std::int32_t>(1 + engine() % 9),
                                .first_key = static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(far)) * 4,
                                .keys = static_cast<int>(1 + engine() % 64)};
    std::array<std::uint64_t, 65> kept{};
    kept.fill(0x5555);
    ops.kept_rows(rule, block, kept.data());
    for (int k = 0; k < block.keys; ++k) {
      for (int r = 0; r < block.rows; ++r) {
        const std::int64_t row = block.first_row + r;
        const std::uint32_t draw =
            base::dropout_draw(rule.seed, rule.batch, rule.first_head + row % block.group, row / block.group, block.first_key + k);
        ASSERT_EQ((kept[static_cast<std::size_t>(k)] >> r & 1U) != 0, draw > rule.last_dropped) << round << " key " << k << " row " << r;
      }
    }
    EXPECT_EQ(kept[static_cast<std::size_t>(block.keys)], 0x5555U);
  }
}

TEST_P(Simd, Bf16PairDotIsExactOnSmallIntegers) {
  std::array<float, 16> a{}, b{}, c{}, d{}, y{};
  for (std::size_t i = 0; i < 16; ++i) {
    a[i] = static_cast<float>(i), b[i] = 3.0F - static_cast<float>(i), c[i] = 2.0F, d[i] = static_cast<float>(i) + 1.0F, y[i] = 5.0F;
  }
  ops.dot_bf16(a.data(), b.data(), c.data(), d.data(), y.data());
  for (int i = 0; i < lanes; ++i) {
    const auto x = static_cast<float>(i);
    EXPECT_EQ(y[static_cast<std::size_t>(i)], 5.0F + 2.0F * x + (3.0F - x) * (x + 1.0F));
  }
}

}  // namespace
}  // namespace heed::test
