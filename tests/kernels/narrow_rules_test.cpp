// SPDX-License-Identifier: Apache-2.0
// What the narrow kernels promise beyond accuracy: masked slots change nothing, bits depend on a row's own data only, states join exactly.
#include <gtest/gtest.h>

#include "kernels/narrow_case.hpp"

namespace heed::test {
namespace {

class NarrowRules : public testing::TestWithParam<base::Isa> {};

const double kPoison[] = {std::nan(""), kInfinity, -kInfinity};

TEST_P(NarrowRules, SlotsThatNobodySeesChangeNothing) {
  for (const DType kv : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const Memory memory : {Memory::kCompact, Memory::kStrided}) {
      for (const std::int64_t dim : {13, 64, 128}) {
        NarrowSpec spec{.tokens = 2, .group = 3, .keys = 333, .dim = dim, .value_dim = dim + 3, .kv_type = kv, .memory = memory};
        spec.sees = [](std::int64_t i, std::int64_t, std::int64_t j) { return j >= 70 && j <= 320 + i && j % 5 != 0; };
        NarrowCase problem(spec);
        const NarrowResult clean = problem.run(GetParam());
        for (const double poison : kPoison) {
          for (std::int64_t j = 0; j < spec.keys; ++j) {
            if (spec.sees(1, 0, j)) continue;
            problem.fill_k(j, poison);
            problem.fill_v(j, poison);
          }
          EXPECT_TRUE(same_bits(problem.run(GetParam()), clean)) << to_string(kv) << " " << dim;
        }
      }
    }
  }
}

TEST_P(NarrowRules, SlotsThatOthersSeeChangeNothing) {
  for (const double poison : kPoison) {
    // Token 0 does not see key 299, token 1 does and becomes NaN or infinite.
    NarrowSpec spec{.tokens = 2, .group = 3, .keys = 300, .dim = 20, .value_dim = 37};
    spec.sees = [](std::int64_t i, std::int64_t, std::int64_t j) { return j <= 298 + i; };
    NarrowCase problem(spec);
    const NarrowResult clean = problem.run(GetParam());
    problem.fill_v(299, poison);
    NarrowResult poisoned = problem.run(GetParam());
    for (std::int64_t g = 0; g < 3; ++g) {
      for (std::int64_t d = 0; d < 37; ++d) {
        EXPECT_EQ(at(poisoned.out, {0, g, d}), at(clean.out, {0, g, d}));
        EXPECT_FALSE(std::isfinite(at(poisoned.out, {1, g, d})));
      }
    }
    EXPECT_TRUE(same_bits(poisoned.lse, clean.lse));
    problem.fill_k(299, std::nan(""));
    poisoned = problem.run(GetParam());
    for (std::int64_t g = 0; g < 3; ++g) {
      EXPECT_EQ(at(poisoned.lse, {0, g}), at(clean.lse, {0, g}));
      EXPECT_EQ(at(poisoned.row_max, {0, g}), at(clean.row_max, {0, g}));
      EXPECT_TRUE(std::isnan(at(poisoned.lse, {1, g})));
      for (std::int64_t d = 0; d < 37; ++d) EXPECT_EQ(at(poisoned.out, {0, g, d}), at(clean.out, {0, g, d}));
    }
  }
}

TEST_P(NarrowRules, SlotsUnderABiasOfMinusInfinityChangeNothing) {
  NarrowSpec spec{.group = 2, .keys = 100, .dim = 16, .value_dim = 16, .has_bias = true};
  NarrowCase problem(spec);
  for (std::int64_t g = 0; g < 2; ++g) problem.set_bias(0, g, 77, -kInfinity);
  const NarrowResult clean = problem.run(GetParam());
  for (const double poison : kPoison) {
    problem.fill_k(77, poison);
    problem.fill_v(77, poison);
    EXPECT_TRUE(same_bits(problem.run(GetParam()), clean));
  }
}

TEST_P(NarrowRules, SlackBehindTheLastKeyIsNotRead) {
  NarrowSpec spec{.keys = 300, .segments = {200, 200}};
  NarrowCase problem(spec);
  const NarrowResult clean = problem.run(GetParam());
  for (std::int64_t j = 300; j < 400; ++j) {
    problem.fill_k(j, std::nan(""));
    problem.fill_v(j, std::nan(""));
  }
  EXPECT_TRUE(same_bits(problem.run(GetParam()), clean));
}

TEST_P(NarrowRules, VisibleNaNIsNotHidden) {
  for (const bool in_k : {true, false}) {
    NarrowCase problem({.group = 2, .keys = 300});
    in_k ? problem.fill_k(5, std::nan("")) : problem.fill_v(5, std::nan(""));
    const NarrowResult got = problem.run(GetParam());
    for (const double value : values_of(got.out)) EXPECT_TRUE(std::isnan(value));
    EXPECT_EQ(std::isnan(at(got.lse, {0, 0})), in_k);
  }
  // Even when it is all that a row sees.
  NarrowCase alone({.group = 1, .keys = 1});
  alone.fill_k(0, std::nan(""));
  for (const double value : values_of(alone.run(GetParam()).out)) EXPECT_TRUE(std::isnan(value));
}

TEST_P(NarrowRules, RowsWithoutKeys) {
  NarrowSpec spec{.tokens = 2, .group = 2, .keys = 0};
  const NarrowResult none = NarrowCase(spec).run(GetParam());
  for (const double value : values_of(none.out)) EXPECT_EQ(value, 0.0);
  for (const double value : values_of(none.lse)) EXPECT_EQ(value, -kInfinity);
  for (const double value : values_of(none.row_max)) EXPECT_EQ(value, -kInfinity);
  spec.has_sinks = true;
  const NarrowCase with_sinks(spec);
  const NarrowResult sinks = with_sinks.run(GetParam());
  for (const double value : values_of(sinks.out)) EXPECT_EQ(value, 0.0);
  for (std::int64_t g = 0; g < 2; ++g) EXPECT_NEAR(at(sinks.lse, {1, g}), static_cast<double>(with_sinks.sink(g)), 1e-6);
}

TEST_P(NarrowRules, ARowsBitsDoNotDependOnOtherRows) {
  for (const DType kv : {DType::kFloat32, DType::kBFloat16}) {
    for (const std::int64_t group : {2, 3, 4, 5, 7, 8, 15}) {
      NarrowSpec spec{.group = group, .keys = 300, .dim = 72, .value_dim = 88, .kv_type = kv, .has_alibi = true, .has_sinks = true};
      const NarrowCase together(spec);
      const NarrowResult all = together.run(GetParam());
      spec.group = 1;
      for (std::int64_t g = 0; g < group; ++g) {
        NarrowCase alone(spec);
        alone.share_kv(together);
        alone.set_q(0, together, g);
        alone.set_head(0, together.slope(g), together.sink(g));
        const NarrowResult one = alone.run(GetParam());
        EXPECT_EQ(at(one.lse, {0, 0}), at(all.lse, {0, g}));
        EXPECT_EQ(at(one.row_max, {0, 0}), at(all.row_max, {0, g}));
        for (std::int64_t d = 0; d < 88; ++d) ASSERT_EQ(at(one.out, {0, 0, d}), at(all.out, {0, g, d})) << group << " " << g << " " << d;
      }
    }
  }
}

TEST_P(NarrowRules, BitsDoNotDependOnTheMasksOfOtherRows) {
  // Full tiles for one row alone, mixed ones as soon as the other row has a mask of its own.
  NarrowSpec spec{.group = 2, .keys = 300, .dim = 40, .value_dim = 40};
  const NarrowCase plain(spec);
  spec.sees = [](std::int64_t, std::int64_t g, std::int64_t j) { return g == 0 || j % 7 == 3; };
  const NarrowCase masked(spec);
  const NarrowResult a = plain.run(GetParam());
  const NarrowResult b = masked.run(GetParam());
  EXPECT_EQ(at(a.lse, {0, 0}), at(b.lse, {0, 0}));
  for (std::int64_t d = 0; d < 40; ++d) EXPECT_EQ(at(a.out, {0, 0, d}), at(b.out, {0, 0, d}));
}

TEST_P(NarrowRules, BitsDoNotDependOnTheOrderOfPieces) {
  const NarrowCase problem({.keys = 1200});
  EXPECT_TRUE(same_bits(problem.run(GetParam(), {4, 2, 0, 3, 1}), problem.run(GetParam())));
}

TEST_P(NarrowRules, BitsDoNotDependOnTheCacheLayout) {
  NarrowSpec spec{.keys = 300, .dim = 70, .value_dim = 90};
  const NarrowCase whole(spec);
  const NarrowResult expected = whole.run(GetParam());
  const auto copy_into = [&](NarrowCase& other) {
    for (std::int64_t row = 0; row < whole.rows(); ++row) other.set_q(row, whole, row);
    other.copy_kv(whole);
    return same_bits(other.run(GetParam()), expected);
  };
  spec.segments = {1, 99, 100, 37, 63};
  NarrowCase pages(spec);
  EXPECT_TRUE(copy_into(pages));
  spec.segments = {};
  spec.memory = Memory::kStrided;
  NarrowCase strided(spec);
  EXPECT_TRUE(copy_into(strided));
}

TEST_P(NarrowRules, CombineIsExactWhereArithmeticIs) {
  // Two rows, three pieces, weights that are powers of two: 2^0, 2^-1, and an empty piece.
  const float infinity = std::numeric_limits<float>::infinity();
  float max[] = {1.0F, -3.0F, 0.0F, -4.0F, -infinity, -infinity};
  float true_max[] = {1.0F, -3.0F, 0.0F, -4.0F, -infinity, -infinity};
  float sum[] = {1.0F, 3.0F, 2.0F, 2.0F, 0.0F, 0.0F};
  float out[] = {4.0F, 8.0F, -6.0F, 12.0F, 8.0F, -4.0F, 20.0F, 8.0F, 0.0F, 0.0F, 0.0F, 0.0F};
  float written[5] = {};  // the last axis is strided: elements 0 and 2, then 1 and 3
  float lse[2] = {};
  kernels::ForwardProblem problem;
  problem.value_dim = 2;
  problem.q.tokens = 1;
  problem.q.group = 2;
  problem.output = {written, DType::kFloat32, 0, 1, 2, lse, nullptr, 0, 1};
  const kernels::NarrowKernel* kernel = kernels::narrow_kernel(GetParam(), DType::kFloat32, DType::kFloat32);
  kernel->combine(problem, {max, true_max, sum, out}, 3);
  EXPECT_EQ(written[0], (4.0F + 0.5F * 8.0F) / 2.0F);
  EXPECT_EQ(written[2], (8.0F - 0.5F * 4.0F) / 2.0F);
  EXPECT_EQ(written[1], (-6.0F + 0.5F * 20.0F) / 4.0F);
  EXPECT_EQ(written[3], (12.0F + 0.5F * 8.0F) / 4.0F);
  EXPECT_EQ(written[4], 0.0F);
  EXPECT_EQ(lse[0], static_cast<float>(2.0 * std::log(2.0)));
  EXPECT_EQ(lse[1], static_cast<float>(-1.0 * std::log(2.0)));
}

INSTANTIATE_TEST_SUITE_P(Isas, NarrowRules, testing::ValuesIn(isas_that_run()),
                         [](const auto& isa) { return std::string(base::to_string(isa.param)); });

TEST(NarrowKernels, KeysAreAsWideAsQueriesOrNarrower) {
  for (const base::Isa isa : isas_that_run()) {
    EXPECT_NE(kernels::narrow_kernel(isa, DType::kFloat32, DType::kFloat32), nullptr);
    EXPECT_NE(kernels::narrow_kernel(isa, DType::kFloat32, DType::kFloat16), nullptr);
    EXPECT_NE(kernels::narrow_kernel(isa, DType::kBFloat16, DType::kBFloat16), nullptr);
    EXPECT_EQ(kernels::narrow_kernel(isa, DType::kBFloat16, DType::kFloat32), nullptr);
    EXPECT_EQ(kernels::narrow_kernel(isa, DType::kFloat64, DType::kFloat64), nullptr);
    EXPECT_EQ(kernels::narrow_kernel(isa, DType::kFloat32, DType::kInt32), nullptr);
  }
}

}  // namespace
}  // namespace heed::test
