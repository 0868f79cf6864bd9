// SPDX-License-Identifier: Apache-2.0
// Every scaling rule against values computed outside of this project in float64, and against its own definition.
#include <cmath>
#include <new>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <heed/error.hpp>
#include <heed/rope.hpp>

namespace heed {
namespace {

constexpr double kRelative = 1e-12;

double theta(std::int64_t d, double base, std::int64_t i) {
  return std::exp(-2.0 * static_cast<double>(i) / static_cast<double>(d) * std::log(base));
}

void expect_close(double actual, double expected, double relative = kRelative) {
  EXPECT_NEAR(actual, expected, relative * std::abs(expected));
}

std::string message_of(const RopeConfig& config, std::int64_t length = 16) {
  try {
    static_cast<void>(rope_frequencies(config, length));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

/// First pair that is not plain, and first pair that is divided by the whole factor.
std::pair<std::int64_t, std::int64_t> blended_range(const RopeConfig& config, double factor) {
  const auto f = rope_frequencies(config, 1).radians_per_token;
  std::int64_t first = -1;
  std::int64_t last = -1;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(f.size()); ++i) {
    const double plain = theta(config.rotary_dim, config.base, i);
    const double actual = f[static_cast<std::size_t>(i)];
    if (first < 0 && std::abs(actual / plain - 1.0) > 1e-10) first = i;
    if (last < 0 && std::abs(actual * factor / plain - 1.0) < 1e-10) last = i;
  }
  return {first, last};
}

TEST(RopeFrequencies, PlainIsAPowerOfTheBase) {
  const RopeFrequencies f = rope_frequencies({.rotary_dim = 64, .base = 10000.0}, 7);
  ASSERT_EQ(f.radians_per_token.size(), 32U);
  EXPECT_EQ(f.magnitude, 1.0);
  EXPECT_EQ(f.radians_per_token[0], 1.0);
  expect_close(f.radians_per_token[16], 0.01);
  expect_close(f.radians_per_token[31], theta(64, 10000.0, 31));
}

TEST(RopeFrequencies, LinearDividesEveryAngle) {
  const auto f = rope_frequencies({.rotary_dim = 8, .base = 100.0, .scaling = RopeLinear{4.0}}, 7).radians_per_token;
  for (std::int64_t i = 0; i < 4; ++i) expect_close(f[static_cast<std::size_t>(i)], theta(8, 100.0, i) / 4.0);
}

TEST(RopeFrequencies, NtkChangesTheBase) {
  const std::pair<double, double> golden[] = {{2.0, 20221.2617}, {4.0, 40889.9424}, {8.0, 82684.6226}};
  for (const auto& [alpha, base] : golden) {
    const auto f = rope_frequencies({.rotary_dim = 128, .scaling = RopeNtk{alpha}}, 1).radians_per_token;
    expect_close(std::pow(f[1], -64.0), base, 1e-8);
    EXPECT_EQ(f[0], 1.0);
    expect_close(f[63], theta(128, 10000.0, 63) / alpha);
  }
  EXPECT_EQ(rope_frequencies({.rotary_dim = 2, .scaling = RopeNtk{4.0}}, 1).radians_per_token[0], 1.0);
}

TEST(RopeFrequencies, DynamicFollowsTheLength) {
  const RopeConfig config{.rotary_dim = 128, .scaling = RopeDynamic{2.0, 4096}};
  expect_close(std::pow(rope_frequencies(config, 8192).radians_per_token[1], -64.0), 30527.7367, 1e-8);
  expect_close(std::pow(rope_frequencies(config, 16384).radians_per_token[1], -64.0), 72195.8601, 1e-8);
  const auto plain = rope_frequencies({.rotary_dim = 128}, 1).radians_per_token;
  EXPECT_EQ(rope_frequencies(config, 4096).radians_per_token, plain);
  EXPECT_EQ(rope_frequencies(config, 12).radians_per_token, plain);  // and a short sequence after a long one is plain again
  const RopeConfig identity{.rotary_dim = 128, .scaling = RopeDynamic{1.0, 4096}};
  expect_close(rope_frequencies(identity, 8192).radians_per_token[63], theta(128, 10000.0, 63) / 2.0);
}

TEST(RopeFrequencies, YarnGoldenValues) {
  const RopeFrequencies f = rope_frequencies({.rotary_dim = 128, .scaling = RopeYarn{.factor = 16.0, .original_length = 4096}}, 1);
  expect_close(f.radians_per_token[20], 0.05623413251903491);
  expect_close(f.radians_per_token[32], 0.005673076923076923);
  expect_close(f.radians_per_token[45], 1.517716047318249e-4);
  expect_close(f.radians_per_token[63], 7.217387404309114e-6);
  expect_close(f.magnitude, 1.2772588722239782);
}

TEST(RopeFrequencies, YarnRange) {
  struct Case {
    std::int64_t d;
    double base;
    std::int64_t length, low, high;
  };
  const Case cases[] = {
      {128, 1e4, 4096, 20, 46}, {128, 1e4, 2048, 16, 41}, {128, 1e6, 32768, 23, 40}, {64, 150000.0, 4096, 8, 18}, {32, 1e4, 256, 0, 7}};
  for (const Case& c : cases) {
    const RopeConfig config{c.d, c.base, RopeYarn{.factor = 4.0, .original_length = c.length}};
    const auto [first, last] = blended_range(config, 4.0);
    EXPECT_EQ(first, c.low + 1) << c.d << " " << c.base;  // the ramp is 0 at `low` itself
    EXPECT_EQ(last, c.high) << c.d << " " << c.base;
  }
}

TEST(RopeFrequencies, YarnWithoutTruncationKeepsTheDecimals) {
  const RopeYarn yarn{.factor = 32.0, .original_length = 4096, .truncate = RopeYarn::Truncate::kNo};
  const auto f = rope_frequencies({64, 150000.0, yarn}, 1).radians_per_token;
  const double low = 8.0928;
  const double high = 17.3980;
  for (std::int64_t i = 9; i <= 17; ++i) {
    const double ramp = (static_cast<double>(i) - low) / (high - low);
    const double plain = theta(64, 150000.0, i);
    EXPECT_NEAR(f[static_cast<std::size_t>(i)] / plain, 1.0 - ramp + ramp / 32.0, 1e-4) << i;
  }
}

TEST(RopeFrequencies, YarnMagnitude) {
  const std::pair<double, double> golden[] = {{2.0, 1.0693147}, {4.0, 1.1386294}, {8.0, 1.2079442}, {16.0, 1.2772589}, {32.0, 1.3465736}};
  for (const auto& [factor, m] : golden) {
    const RopeYarn yarn{.factor = factor, .original_length = 4096};
    EXPECT_NEAR(rope_frequencies({.rotary_dim = 64, .scaling = yarn}, 1).magnitude, m, 5e-8);
  }
  RopeYarn yarn{.factor = 40.0, .original_length = 4096, .mscale = 1.0, .mscale_all_dim = 1.0};
  EXPECT_EQ(rope_frequencies({.rotary_dim = 64, .scaling = yarn}, 1).magnitude, 1.0);
  yarn.mscale = 0.707;
  expect_close(rope_frequencies({.rotary_dim = 64, .scaling = yarn}, 1).magnitude,
               (0.0707 * std::log(40.0) + 1.0) / (0.1 * std::log(40.0) + 1.0));
  yarn.attention_factor = 1.5;
  EXPECT_EQ(rope_frequencies({.rotary_dim = 64, .scaling = yarn}, 1).magnitude, 1.5);
  EXPECT_EQ(rope_frequencies({.rotary_dim = 64, .scaling = RopeYarn{.factor = 1.0, .original_length = 4096}}, 1).magnitude, 1.0);
}

RopeLong long_rope(double factor) {
  return {.short_factors = {1.0, 2.0}, .long_factors = {4.0, 8.0}, .factor = factor, .original_length = 4096};
}

TEST(RopeFrequencies, LongSwitchesAfterTheOriginalLength) {
  const RopeConfig config{.rotary_dim = 4, .base = 100.0, .scaling = long_rope(2.0)};
  expect_close(rope_frequencies(config, 4096).radians_per_token[1], 0.1 / 2.0);
  expect_close(rope_frequencies(config, 4097).radians_per_token[1], 0.1 / 8.0);
  expect_close(rope_frequencies(config, 4097).radians_per_token[0], 1.0 / 4.0);
}

TEST(RopeFrequencies, LongMagnitude) {
  const std::pair<double, double> golden[] = {{2.0, 1.0408330}, {4.0, 1.0801234}, {8.0, 1.1180340}, {16.0, 1.1547005}, {32.0, 1.1902381}};
  for (const auto& [factor, m] : golden) {
    EXPECT_NEAR(rope_frequencies({.rotary_dim = 4, .scaling = long_rope(factor)}, 1).magnitude, m, 5e-8);
  }
  RopeLong given = long_rope(32.0);
  given.attention_factor = 1.0;
  EXPECT_EQ(rope_frequencies({.rotary_dim = 4, .scaling = given}, 1).magnitude, 1.0);
  EXPECT_EQ(rope_frequencies({.rotary_dim = 4, .scaling = long_rope(1.0)}, 1).magnitude, 1.0);
}

TEST(RopeFrequencies, Llama3GoldenValues) {
  const RopeConfig config{.rotary_dim = 128, .base = 5e5, .scaling = RopeLlama3{}};
  const auto f = rope_frequencies(config, 1).radians_per_token;
  expect_close(f[29], 0.002166570763503359);
  expect_close(f[32], 5.248461609929547e-4);
  expect_close(f[35], 9.556212353964683e-5);
  expect_close(f[63], 3.068925988914511e-7);
  EXPECT_EQ(blended_range(config, 8.0), (std::pair<std::int64_t, std::int64_t>{29, 35}));
}

TEST(RopeFrequencies, ProportionalKeepsTheFullDimInTheExponent) {
  const auto f =
      rope_frequencies({.rotary_dim = 32, .base = 1e6, .scaling = RopeProportional{.proportion = 0.3, .factor = 2.0}}, 1).radians_per_token;
  ASSERT_EQ(f.size(), 16U);
  for (std::int64_t i = 0; i < 4; ++i) expect_close(f[static_cast<std::size_t>(i)], theta(32, 1e6, i) / 2.0);  // int(0.3 * 32 / 2) = 4
  for (std::size_t i = 4; i < 16; ++i) EXPECT_EQ(f[i], 0.0);
}

TEST(RopeFrequencies, DivisorsDivide) {
  const auto f = rope_frequencies({.rotary_dim = 4, .base = 100.0, .scaling = RopeDivisors{{1.0, 8.0}}}, 1).radians_per_token;
  EXPECT_EQ(f[0], 1.0);
  expect_close(f[1], 0.1 / 8.0);
}

TEST(RopeFrequencies, ErrorsNameTheField) {
  const double nan = std::nan("");
  const std::pair<RopeConfig, const char*> cases[] = {
      {{.rotary_dim = 3}, "rotary_dim"},
      {{.rotary_dim = 0}, "rotary_dim"},
      {{.rotary_dim = 4, .base = 1.0}, "base"},
      {{.rotary_dim = 4, .base = nan}, "base"},
      {{4, 1e4, RopeLinear{0.0}}, "scaling.factor"},
      {{4, 1e4, RopeNtk{-1.0}}, "scaling.alpha"},
      {{4, 1e4, RopeDynamic{2.0, 0}}, "scaling.max_positions"},
      {{4, 1e4, RopeYarn{.factor = 2.0}}, "scaling.original_length"},
      {{4, 1e4, RopeYarn{.factor = nan, .original_length = 8}}, "scaling.factor"},
      {{4, 1e4, RopeYarn{.factor = 2.0, .original_length = 8, .beta_fast = 0.0}}, "scaling.beta_fast"},
      {{4, 1e4, RopeYarn{.factor = 2.0, .original_length = 8, .beta_slow = 0.0}}, "scaling.beta_slow"},
      {{6, 1e4, long_rope(2.0)}, "scaling.short_factors"},
      {{4, 1e4, RopeLong{.short_factors = {1.0, 1.0}, .long_factors = {1.0}, .original_length = 8}}, "scaling.long_factors"},
      {{4, 1e4, RopeLong{.short_factors = {1.0, 1.0}, .long_factors = {1.0, 0.0}, .original_length = 8}}, "scaling.long_factors"},
      {{4, 1e4, RopeLong{.short_factors = {1.0, 1.0}, .long_factors = {1.0, 1.0}}}, "scaling.original_length"},
      {{4, 1e4, RopeLlama3{.low_freq_factor = 4.0}}, "scaling.high_freq_factor"},
      {{4, 1e4, RopeProportional{.proportion = 1.5}}, "scaling.proportion"},
      {{4, 1e4, RopeDivisors{{1.0}}}, "scaling.divisors"},
      {{4, 1e4, RopeYarn{.factor = 2.0, .original_length = 8, .mscale = NAN, .mscale_all_dim = 1.0}}, "scaling"},
      {{4, 1e4, RopeYarn{.factor = 2.0, .original_length = 8, .mscale = INFINITY, .mscale_all_dim = INFINITY}}, "scaling"},
      {{4, 1e4, RopeNtk{.alpha = 1e-300}}, "scaling"},
      {{4, 1e4, RopeDivisors{{1.0, 1e-320}}}, "scaling"},
  };
  for (const auto& [config, field] : cases) {
    EXPECT_EQ(message_of(config).rfind("rope_frequencies: " + std::string(field) + ": expected", 0), 0U) << message_of(config);
  }
  EXPECT_NE(message_of({.rotary_dim = 4}, -1).find("length"), std::string::npos);
  EXPECT_EQ(message_of({.rotary_dim = 4, .base = 1e-300}), "rope_frequencies: base: expected a finite number above 1, got 1e-300");
  EXPECT_THROW(static_cast<void>(rope_frequencies({.rotary_dim = std::int64_t{1} << 62}, 1)), std::bad_alloc);
}

TEST(RopeTable, AnglesAreFloat64AndMagnitudeIsInBoth) {
  const RopeConfig config{.rotary_dim = 8, .base = 10000.0, .scaling = RopeYarn{.factor = 4.0, .original_length = 64}};
  const std::int64_t length = 100001;
  const RopeTable table = rope_table(config, length);
  const RopeFrequencies f = rope_frequencies(config, length);
  ASSERT_EQ(table.cos.shape(), (Shape{length, 4}));
  ASSERT_EQ(table.sin.shape(), (Shape{length, 4}));
  for (const std::int64_t p : {std::int64_t{0}, std::int64_t{1}, std::int64_t{4095}, length - 1}) {
    for (std::int64_t i = 0; i < 4; ++i) {
      const double angle = static_cast<double>(p) * f.radians_per_token[static_cast<std::size_t>(i)];
      EXPECT_NEAR(element(table.cos, {p, i}), f.magnitude * std::cos(angle), 1e-7);
      EXPECT_NEAR(element(table.sin, {p, i}), f.magnitude * std::sin(angle), 1e-7);
    }
  }
  EXPECT_EQ(rope_table({.rotary_dim = 8}, 0).cos.shape(), (Shape{0, 4}));
}

}  // namespace
}  // namespace heed
