// SPDX-License-Identifier: Apache-2.0
// The wide forward kernels of every ISA that runs here, against float64 and against a plain program of the same dtype.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/cpu.hpp"
#include "kernels/wide_problem.hpp"

namespace heed::test {
namespace {

using kernels::WideKernel;

std::vector<base::Isa> isas_here() {
  std::vector<base::Isa> list;
  for (const base::Isa isa : base::kAllIsas) {
    if (base::runs_here(isa)) list.push_back(isa);
  }
  return list;
}

class Wide : public testing::TestWithParam<base::Isa> {
 protected:
  static const WideKernel& kernel(DType q, DType kv) {
    const WideKernel* found = kernels::wide_kernel(GetParam(), q, kv);
    EXPECT_NE(found, nullptr);
    return *found;
  }
};
INSTANTIATE_TEST_SUITE_P(Isas, Wide, testing::ValuesIn(isas_here()),
                         [](const auto& isa) { return std::string(base::to_string(isa.param)); });

/// Error at most twice that of the plain program, plus 1e-6 of the largest reference value.
void expect_accurate(const WideKernel& kernel, const WideCase& wide_case, const std::string& what) {
  WideProblem problem(wide_case);
  const WideResult exact = problem.exact();
  const WideResult plain = problem.plain();
  const WideResult got = problem.run(kernel);
  const double limit = 2.0 * worst_difference(plain.out, exact.out) + 1e-6 * largest(exact.out);
  EXPECT_LE(worst_difference(got.out, exact.out), limit) << what;
  const double lse_limit = 2.0 * worst_difference(plain.lse, exact.lse) + 1e-6 * largest(exact.lse);
  EXPECT_LE(worst_difference(got.lse, exact.lse), lse_limit) << what << " lse";
  const double max_limit = 2.0 * worst_difference(plain.row_max, exact.row_max) + 1e-6 * largest(exact.row_max);
  EXPECT_LE(worst_difference(got.row_max, exact.row_max), max_limit) << what << " row max";
}

struct Types {
  DType q, kv;
};
constexpr DType kF32 = DType::kFloat32, kBf16 = DType::kBFloat16, kF16 = DType::kFloat16;
constexpr Types kPairs[] = {{kF32, kF32}, {kBf16, kBf16}, {kF16, kF16}, {kF32, kBf16}, {kF32, kF16}, {kBf16, kF16}, {kF16, kBf16}};

std::string name(Types t) { return std::string(to_string(t.q)) + "/" + to_string(t.kv); }

Sees causal(const WideCase& c) {
  return [offset = c.keys - c.tokens](std::int64_t token, std::int64_t, std::int64_t key) { return key <= token + offset; };
}

TEST_P(Wide, MatchesFloat64ForEveryTypePair) {
  for (const Types types : kPairs) {
    WideCase c{.tokens = 101, .keys = 150, .group = 1, .head_dim = 64, .value_dim = 64, .q = types.q, .kv = types.kv};
    expect_accurate(kernel(types.q, types.kv), c, name(types) + " all");
    c.sees = causal(c);
    expect_accurate(kernel(types.q, types.kv), c, name(types) + " causal");
  }
}

TEST_P(Wide, TakesAnyHeadDimensions) {
  const std::int64_t sizes[][2] = {{1, 1}, {2, 3}, {3, 2}, {5, 8}, {17, 31}, {33, 16}, {80, 96}, {129, 127}, {576, 512}, {1024, 1023}};
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}, Types{kF16, kF16}}) {
    for (const auto& size : sizes) {
      WideCase c{.tokens = 19, .keys = 70, .group = 1, .head_dim = size[0], .value_dim = size[1], .q = types.q, .kv = types.kv};
      c.sees = causal(c);
      expect_accurate(kernel(types.q, types.kv), c, name(types) + " D " + std::to_string(size[0]) + " Dv " + std::to_string(size[1]));
    }
  }
}

TEST_P(Wide, TakesAnyLengthsAndGroups) {
  for (const std::int64_t tokens : {1, 7, 16, 33, 49, 97}) {
    for (const std::int64_t keys : {1, 2, 7, 8, 63, 64, 65, 130}) {
      for (const std::int32_t group : {1, 3, 5}) {
        WideCase c{.tokens = tokens, .keys = keys, .group = group, .head_dim = 20, .value_dim = 12};
        c.sees = causal(c);
        const std::string what = std::to_string(tokens) + " x " + std::to_string(keys) + " G " + std::to_string(group);
        expect_accurate(kernel(kF32, kF32), c, what);
        c.q = c.kv = kBf16;
        expect_accurate(kernel(kBf16, kBf16), c, what + " bfloat16");
      }
    }
  }
}

TEST_P(Wide, AppliesEveryScoreOption) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}, Types{kF16, kF16}}) {
    WideCase base_case{.tokens = 30, .keys = 100, .group = 2, .head_dim = 20, .value_dim = 12, .q = types.q, .kv = types.kv};
    for (int options = 0; options < 64; ++options) {
      WideCase c = base_case;
      if ((options & 1) != 0) c.sees = causal(c);
      c.softcap = (options & 2) != 0 ? 1.5 : 0.0;
      c.bias = (options & 4) != 0;
      c.bias_masks = (options & 8) != 0;
      if (c.bias_masks && !c.bias) continue;
      c.bias_16bit = c.bias_masks;
      c.alibi = (options & 16) != 0;
      c.query_offset = c.alibi ? c.keys - c.tokens : 0;
      c.sinks = (options & 32) != 0;
      expect_accurate(kernel(types.q, types.kv), c, name(types) + " options " + std::to_string(options));
    }
  }
}

TEST_P(Wide, TakesAnyScale) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}}) {
    for (const double scale : {0.0, 1.0, -0.3, 0.01}) {  // 0 times a masked -inf would be NaN
      WideCase c{.tokens = 50, .keys = 90, .group = 1, .head_dim = 32, .value_dim = 32, .q = types.q, .kv = types.kv};
      c.scale = scale;
      expect_accurate(kernel(types.q, types.kv), c, name(types) + " all, scale " + std::to_string(scale));
      c.sees = causal(c);
      expect_accurate(kernel(types.q, types.kv), c, name(types) + " scale " + std::to_string(scale));
      c.softcap = 0.7;
      expect_accurate(kernel(types.q, types.kv), c, name(types) + " softcap, scale " + std::to_string(scale));
    }
  }
}

/// Logits of +-1e5: one key takes all the weight, and nothing overflows on the way there.
TEST_P(Wide, HugeLogitsStayFinite) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}}) {
    WideCase c{.tokens = 48, .keys = 200, .group = 1, .head_dim = 16, .value_dim = 8, .q = types.q, .kv = types.kv};
    c.magnitude = 1e5;
    WideProblem problem(c);
    const WideResult exact = problem.exact();
    const WideResult got = problem.run(kernel(types.q, types.kv));
    EXPECT_GT(largest(exact.row_max), 1e5);
    EXPECT_LE(worst_difference(got.row_max, exact.row_max), 1e-6 * largest(exact.row_max)) << name(types);
    EXPECT_LE(worst_difference(got.out, exact.out), 0.02 * largest(exact.out)) << name(types);
  }
}

TEST_P(Wide, RowsWithoutKeysAreZero) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}, Types{kF16, kF16}}) {
    WideCase c{.tokens = 70, .keys = 130, .group = 1, .head_dim = 16, .value_dim = 9, .q = types.q, .kv = types.kv};
    c.sees = [](std::int64_t token, std::int64_t, std::int64_t key) { return token % 3 == 0 && key > 70 && token < 60; };
    for (const bool sinks : {false, true}) {
      c.sinks = sinks;
      WideProblem problem(c);
      const WideResult got = problem.run(kernel(types.q, types.kv));
      expect_accurate(kernel(types.q, types.kv), c, name(types));
      for (std::int64_t token = 0; token < c.tokens; ++token) {
        if (token % 3 == 0 && token < 60) continue;
        const auto row = static_cast<std::size_t>(token);
        EXPECT_EQ(got.lse[row], sinks ? -2.0 : -INFINITY);
        EXPECT_EQ(got.row_max[row], -INFINITY);
        for (std::size_t d = 0; d < 9; ++d) EXPECT_EQ(got.out[row * 9 + d], 0.0);
      }
    }
  }
}

bool same_bits(const WideResult& a, const WideResult& b) {
  const auto same = [](const std::vector<double>& x, const std::vector<double>& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
  };
  return same(a.out, b.out) && same(a.lse, b.lse) && same(a.row_max, b.row_max);
}

/// NaN and infinities in masked keys and values change nothing, bit for bit.
TEST_P(Wide, MaskedSlotsMayHoldAnything) {
  const float poisons[] = {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY};
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}, Types{kF16, kF16}, Types{kF32, kBf16}}) {
    for (const bool by_bias : {false, true}) {
      WideCase c{.tokens = 100, .keys = 150, .group = 1, .head_dim = 24, .value_dim = 24, .q = types.q, .kv = types.kv};
      const Sees hides = [](std::int64_t token, std::int64_t, std::int64_t key) { return key % 5 != 3 && key <= token + 50 && key < 140; };
      c.bias = by_bias;
      if (!by_bias) c.sees = hides;
      WideProblem clean(c);
      if (by_bias) {
        for (std::int64_t r = 0; r < clean.rows; ++r) {
          for (std::int64_t j = 0; j < c.keys; ++j) {
            if (!hides(r, 0, j)) clean.bias.set(r, j, -INFINITY);
          }
        }
      }
      WideProblem poisoned = clean;
      for (std::int64_t j = 0; j < c.keys; ++j) {
        if (j % 5 != 3 && j < 140) continue;
        for (std::int64_t d = 0; d < 24; ++d) {
          poisoned.k.set(j, d, poisons[(j + d) % 3]);
          poisoned.v.set(j, d, poisons[(j + d + 1) % 3]);
        }
      }
      const WideResult a = clean.run(kernel(types.q, types.kv));
      const WideResult b = poisoned.run(kernel(types.q, types.kv));
      EXPECT_TRUE(same_bits(a, b)) << name(types) << (by_bias ? " by bias" : " by mask");
      EXPECT_LT(largest(a.out), 10.0);
    }
  }
}

/// A value that some rows may not see, and that is not finite, reaches exactly the rows that see it.
TEST_P(Wide, VisibleInfinityReachesItsRowsOnly) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}}) {
    WideCase c{.tokens = 96, .keys = 96, .group = 1, .head_dim = 16, .value_dim = 16, .q = types.q, .kv = types.kv};
    c.sees = causal(c);
    WideProblem problem(c);
    problem.v.set(40, 3, INFINITY);
    const WideResult got = problem.run(kernel(types.q, types.kv));
    for (std::size_t r = 0; r < 96; ++r) {
      for (std::size_t d = 0; d < 16; ++d) EXPECT_EQ(std::isfinite(got.out[r * 16 + d]), r < 40 || d != 3) << r << " " << d;
    }
  }
}

TEST_P(Wide, StridesAndSegmentsChangeNoBit) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}, Types{kF16, kF16}, Types{kF32, kF16}}) {
    for (const std::int64_t dims : {24, 31}) {
      WideCase c{.tokens = 60, .keys = 131, .group = 2, .head_dim = dims, .value_dim = dims, .q = types.q, .kv = types.kv};
      c.sees = [](std::int64_t token, std::int64_t, std::int64_t key) { return key <= token + 40; };
      const WideResult compact = WideProblem(c).run(kernel(types.q, types.kv));
      c.row_padding = 13;
      EXPECT_TRUE(same_bits(compact, WideProblem(c).run(kernel(types.q, types.kv)))) << name(types) << " padded rows";
      c.dim_stride = 3;
      EXPECT_TRUE(same_bits(compact, WideProblem(c).run(kernel(types.q, types.kv)))) << name(types) << " strided dims";
      for (const std::int64_t segment_rows : {1, 16, 50, 64}) {
        c.segment_rows = segment_rows;
        EXPECT_TRUE(same_bits(compact, WideProblem(c).run(kernel(types.q, types.kv)))) << name(types) << " segments of " << segment_rows;
      }
    }
  }
}

/// Rows 4 KB apart are copied; in place or not, the bits are the same.
TEST_P(Wide, RowsOnePageApartChangeNoBit) {
  WideCase c{.tokens = 60, .keys = 131, .group = 1, .head_dim = 64, .value_dim = 64};
  const WideResult compact = WideProblem(c).run(kernel(kF32, kF32));
  c.row_padding = 1024 - 64;
  EXPECT_TRUE(same_bits(compact, WideProblem(c).run(kernel(kF32, kF32))));
}

TEST_P(Wide, SuperBlocksChangeNoBit) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}}) {
    WideCase c{.tokens = 300, .keys = 320, .group = 1, .head_dim = 16, .value_dim = 16, .q = types.q, .kv = types.kv};
    c.sees = [](std::int64_t token, std::int64_t, std::int64_t key) { return key <= token && key + 90 > token; };
    const WideResult one = WideProblem(c).run(kernel(types.q, types.kv), 1);
    for (std::int32_t super = 2; super <= kernel(types.q, types.kv).super_block_count; ++super) {
      EXPECT_TRUE(same_bits(one, WideProblem(c).run(kernel(types.q, types.kv), super))) << name(types) << super;
    }
  }
}

/// A row alone has the bits it has among others, in any lane and whatever its neighbours' scores do.
TEST_P(Wide, NeighboursChangeNoBit) {
  for (const Types types : {Types{kF32, kF32}, Types{kBf16, kBf16}, Types{kF16, kF16}}) {
    WideCase c{.tokens = 120, .keys = 200, .group = 1, .head_dim = 32, .value_dim = 20, .q = types.q, .kv = types.kv};
    c.magnitude = 8.0;  // references move often
    c.sees = [](std::int64_t token, std::int64_t, std::int64_t key) { return key <= token + 80; };
    WideProblem all(c);
    const WideResult together = all.run(kernel(types.q, types.kv));
    for (const std::int64_t token : {0, 1, 17, 47, 48, 100, 119}) {
      WideCase single = c;
      single.tokens = 1;
      single.sees = [token](std::int64_t, std::int64_t, std::int64_t key) { return key <= token + 80; };
      WideProblem alone(single);
      alone.k = all.k;
      alone.v = all.v;
      for (std::int64_t d = 0; d < c.head_dim; ++d) alone.q.set(0, d, all.q.get(token, d));
      const WideResult got = alone.run(kernel(types.q, types.kv));
      const auto row = static_cast<std::size_t>(token);
      EXPECT_EQ(got.lse[0], together.lse[row]) << name(types) << " row " << token;
      for (std::size_t d = 0; d < 20; ++d) EXPECT_EQ(got.out[d], together.out[row * 20 + d]) << name(types) << " row " << token;
    }
  }
}

}  // namespace
}  // namespace heed::test
