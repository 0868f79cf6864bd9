// SPDX-License-Identifier: Apache-2.0
// Dropout: which weights go, by the documented counter, and that nothing else has a say in it.
#include <array>
#include <cmath>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include <heed/attention.hpp>
#include <heed/reference.hpp>

#include "base/parallel.hpp"
#include "base/philox.hpp"
#include "support/attention.hpp"

namespace heed::test {
namespace {

// Known answers of the paper's own distribution (Random123, kat_vectors, philox4x32 with 10 rounds).
TEST(Dropout, PhiloxKnownAnswers) {
  EXPECT_EQ(base::philox4x32_10({0, 0, 0, 0}, 0), (base::Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(base::philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (base::Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(base::philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (base::Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

/// Weights after dropout: with V the identity, `out` is the weights themselves. [B, Lq, Hq, Lk]
Tensor weights_of(const Tensor& q, const Tensor& k, std::int64_t kv_tokens, const AttentionOptions& options) {
  Tensor identity = Tensor::zeros(DType::kFloat64, {q.shape()[0], kv_tokens, 1, kv_tokens});
  for (std::int64_t n = 0; n < q.shape()[0] * kv_tokens; ++n) identity.data_as<double>()[n * kv_tokens + n % kv_tokens] = 1.0;
  return reference::attention_state(q, k, identity, options).out.clone();
}

TEST(Dropout, KeepsExactlyWhatTheCounterSays) {
  const Tensor q = random_normal({2, 7, 3, 4}, DType::kFloat64, 1), k = random_normal({2, 11, 1, 4}, DType::kFloat64, 2);
  const double p = 0.3;
  const std::uint64_t seed = 0x123456789abcdef0;
  const Tensor plain = weights_of(q, k, 11, {});
  const Tensor dropped = weights_of(q, k, 11, {.dropout = Dropout{p, seed}});
  for_each_index(plain.shape(), [&](const Extents& index) {
    const std::int64_t b = index[0], row = index[1], h = index[2], key = index[3];
    const base::Philox4 draws = base::philox4x32_10({static_cast<std::uint32_t>(key / 4), static_cast<std::uint32_t>(row),
                                                     static_cast<std::uint32_t>(h), static_cast<std::uint32_t>(b)},
                                                    seed);
    const bool kept = draws[static_cast<std::size_t>(key % 4)] >= p * 0x1p32;
    EXPECT_DOUBLE_EQ(at(dropped, index), kept ? at(plain, index) / (1.0 - p) : 0.0);
  });
}

// 64 * 64 * 4 draws: the kept share has a standard deviation of 0.0034 at most, so five of them are 0.017.
TEST(Dropout, KeepsTheRightShare) {
  const Tensor q = Tensor::zeros(DType::kFloat64, {1, 64, 4, 1}), k = Tensor::zeros(DType::kFloat64, {1, 64, 1, 1});
  for (const double p : {0.1, 0.5, 0.9}) {
    const Tensor weights = weights_of(q, k, 64, {.dropout = Dropout{p, 7}});
    double kept = 0.0;
    for_each_index(weights.shape(), [&](const Extents& index) { kept += at(weights, index) != 0.0 ? 1.0 : 0.0; });
    EXPECT_NEAR(kept / (64 * 64 * 4), 1.0 - p, 0.02) << p;
  }
}

TEST(Dropout, ZeroChangesNothingAndTheSeedMatters) {
  const Tensor q = random_normal({1, 6, 2, 4}, DType::kFloat64, 1), k = random_normal({1, 40, 1, 4}, DType::kFloat64, 2);
  EXPECT_TRUE(same_values(weights_of(q, k, 40, {}), weights_of(q, k, 40, {.dropout = Dropout{0.0, 1}})));
  const Tensor one = weights_of(q, k, 40, {.dropout = Dropout{0.5, 1}});
  EXPECT_TRUE(same_values(one, weights_of(q, k, 40, {.dropout = Dropout{0.5, 1}})));
  EXPECT_FALSE(same_values(one, weights_of(q, k, 40, {.dropout = Dropout{0.5, 2}})));
}

// lse is that of the softmax, before dropout.
TEST(Dropout, LeavesLseAlone) {
  const Tensor q = random_normal({1, 6, 2, 4}, DType::kFloat64, 1), k = random_normal({1, 9, 1, 4}, DType::kFloat64, 2),
               v = random_normal({1, 9, 1, 4}, DType::kFloat64, 3);
  EXPECT_TRUE(same_values(reference::attention_state(q, k, v).lse, reference::attention_state(q, k, v, {.dropout = Dropout{0.7, 3}}).lse));
}

/// A kernel's path, as (ISA, type, Lq): 2 tokens of 3 heads take the narrow one, 40 the wide one; 600 keys are three pieces, ten tiles.
struct Way {
  base::Isa isa;
  DType dtype;
  std::int64_t q_tokens;
};
/// Else GoogleTest prints its bytes, padding included, into the test's name.
void PrintTo(const Way& way, std::ostream* out) {
  *out << base::to_string(way.isa) << ' ' << to_string(way.dtype) << ", Lq " << way.q_tokens;
}
std::vector<Way> ways() {
  std::vector<Way> list;
  for (const base::Isa isa : isas_here()) {
    for (const DType dtype : fast_dtypes()) {
      for (const std::int64_t q_tokens : {2, 40}) list.push_back({isa, dtype, q_tokens});
    }
  }
  return list;
}
std::string way_name(const ::testing::TestParamInfo<Way>& info) {
  return std::string(base::to_string(info.param.isa)) + "_" + to_string(info.param.dtype) +
         (info.param.q_tokens == 2 ? "_narrow" : "_wide");
}

class DropoutKernels : public ::testing::TestWithParam<Way> {
 protected:
  static constexpr std::int64_t kKeys = 600;
  static constexpr std::int64_t kBatch = 2, kHeads = 6;

  [[nodiscard]] std::int64_t tokens() const { return GetParam().q_tokens; }
  [[nodiscard]] Tensor zeros(const Shape& shape) const { return Tensor::zeros(GetParam().dtype, shape); }

  /// Equal scores and V the identity, so that `out` is the weights: [B, Lq, Hq, Lk]. Two KV heads of G 3.
  [[nodiscard]] Tensor weights(const AttentionOptions& options) const {
    Tensor identity = Tensor::zeros(DType::kFloat32, {kBatch, kKeys, 2, kKeys});
    for (std::int64_t n = 0; n < kBatch * kKeys * 2; ++n) identity.data_as<float>()[n * kKeys + n / 2 % kKeys] = 1.0F;
    return attention(zeros({kBatch, tokens(), kHeads, 8}), zeros({kBatch, kKeys, 2, 8}), convert(identity, GetParam().dtype), options);
  }

  const base::ForceIsa forced_{GetParam().isa};
};
INSTANTIATE_TEST_SUITE_P(Ways, DropoutKernels, ::testing::ValuesIn(ways()), way_name);

bool keeps(const Dropout& dropout, const Extents& index) {
  return base::dropout_draw(dropout.seed, index[0], index[2], index[1], index[3]) >= dropout.p * 0x1p32;
}

TEST_P(DropoutKernels, KeepExactlyWhatTheCounterSays) {
  for (const Dropout dropout : {Dropout{0.3, 0x123456789abcdef0}, Dropout{0.875, 99}}) {
    const Tensor got = weights({.dropout = dropout});
    const double kept = 1.0 / (kKeys * (1.0 - dropout.p));
    std::int64_t wrong = 0;
    for_each_index(got.shape(), [&](const Extents& index) {
      const double expected = keeps(dropout, index) ? kept : 0.0;
      // One rounding of the result, and in float32 a few of the sum and the quotient.
      if (!(std::abs(at(got, index) - expected) <= expected * (roundoff(GetParam().dtype) + 4.0 * roundoff(DType::kFloat32)))) ++wrong;
    });
    EXPECT_EQ(wrong, 0);
  }
}

// p at both ends: a draw of 0 alone is dropped, or every one.
TEST_P(DropoutKernels, ExtremeProbabilities) {
  const Tensor plain = weights({});
  EXPECT_TRUE(same_values(weights({.dropout = Dropout{1e-300, 5}}), plain));
  EXPECT_TRUE(same_values(weights({.dropout = Dropout{0.0, 5}}), plain));
  EXPECT_EQ(max_abs(weights({.dropout = Dropout{1.0 - 0x1p-53, 5}})), 0.0);
}

// 2 * 6 * Lq * 600 draws, four standard deviations; and as many between any two heads, batch entries and seeds, whose agreement is
// p^2 + (1 - p)^2 when they are independent.
TEST_P(DropoutKernels, StatisticsAreThoseOfIndependentCoins) {
  const double p = 0.25;
  const Tensor a = weights({.dropout = Dropout{p, 7}}), b = weights({.dropout = Dropout{p, 8}});
  const auto near = [](double share, double expected, double draws) {
    return std::abs(share - expected) <= 4.0 * std::sqrt(expected * (1.0 - expected) / draws);
  };
  const double row = static_cast<double>(tokens() * kKeys), agreement = p * p + (1.0 - p) * (1.0 - p);
  double kept = 0.0, same_seeds = 0.0, same_heads = 0.0, same_batches = 0.0, same_rows = 0.0;
  for_each_index(a.shape(), [&](const Extents& n) {
    const bool here = at(a, n) != 0.0;
    kept += here ? 1.0 : 0.0;
    same_seeds += here == (at(b, n) != 0.0) ? 1.0 : 0.0;
    if (n[2] == 0) same_heads += here == (at(a, {n[0], n[1], 1, n[3]}) != 0.0) ? 1.0 : 0.0;
    if (n[0] == 0) same_batches += here == (at(a, {1, n[1], n[2], n[3]}) != 0.0) ? 1.0 : 0.0;
    if (n[1] == 0) same_rows += here == (at(a, {n[0], 1, n[2], n[3]}) != 0.0) ? 1.0 : 0.0;
  });
  EXPECT_TRUE(near(kept / (kBatch * kHeads * row), 1.0 - p, kBatch * kHeads * row)) << kept;
  EXPECT_TRUE(near(same_seeds / (kBatch * kHeads * row), agreement, kBatch * kHeads * row)) << same_seeds;
  EXPECT_TRUE(near(same_heads / (kBatch * row), agreement, kBatch * row)) << same_heads;
  EXPECT_TRUE(near(same_batches / (kHeads * row), agreement, kHeads * row)) << same_batches;
  EXPECT_TRUE(near(same_rows / (kBatch * kHeads * kKeys), agreement, kBatch * kHeads * kKeys)) << same_rows;
}

// A dropped weight's value row is not read: NaN and infinity reach exactly the rows that keep them.
TEST_P(DropoutKernels, DroppedValuesNeverLeak) {
  const DType dtype = GetParam().dtype;
  const Tensor q = random_normal({kBatch, tokens(), kHeads, 8}, dtype, 1), k = random_normal({kBatch, kKeys, 2, 8}, dtype, 2);
  Tensor wide = random_normal({kBatch, kKeys, 2, 20}, DType::kFloat32, 3);
  const std::array<std::int64_t, 4> bad = {0, 63, 300, 599};
  for (std::int64_t b = 0; b < kBatch; ++b) {
    for (const std::int64_t key : bad) {
      for (std::int64_t n = 0; n < 40; ++n) {
        wide.data_as<float>()[(b * kKeys + key) * 40 + n] =
            key == 63 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
  const Dropout dropout = {0.8, 31};
  const Tensor got = attention(q, k, convert(wide, dtype), {.dropout = dropout});
  for_each_index(got.shape(), [&](const Extents& n) {
    bool finite = true;
    for (const std::int64_t key : bad) finite = finite && !keeps(dropout, {n[0], n[1], n[2], key});
    EXPECT_EQ(std::isfinite(at(got, n)), finite) << to_string(n);
  });
}

// Nor in the float64 gradients: a row that drops the key with NaN has finite ones.
TEST(Dropout, DroppedValuesNeverLeakIntoGradients) {
  constexpr std::int64_t kTokens = 40, kBad = 5;
  const Tensor q = random_normal({1, kTokens, 2, 4}, DType::kFloat64, 1), k = random_normal({1, 12, 1, 4}, DType::kFloat64, 2),
               dout = random_normal({1, kTokens, 2, 3}, DType::kFloat64, 4);
  Tensor v = random_normal({1, 12, 1, 3}, DType::kFloat64, 3);
  for (std::int64_t d = 0; d < 3; ++d) v.data_as<double>()[kBad * 3 + d] = std::numeric_limits<double>::quiet_NaN();
  const Dropout dropout = {0.8, 31};
  const AttentionGrads got = reference::attention_backward(dout, q, k, v, {.dropout = dropout});
  std::int64_t dropped = 0;
  for_each_index(got.dq.shape(), [&](const Extents& n) {
    const bool keeps_bad = keeps(dropout, {n[0], n[1], n[2], kBad});
    EXPECT_EQ(std::isfinite(at(got.dq, n)), !keeps_bad) << to_string(n);
    dropped += keeps_bad ? 0 : 1;
  });
  EXPECT_GT(dropped, 0);
}

// lse and row max are those of the softmax, before dropout, to the bit.
TEST_P(DropoutKernels, LeaveStatisticsAlone) {
  const DType dtype = GetParam().dtype;
  const Tensor q = random_normal({kBatch, tokens(), kHeads, 24}, dtype, 1), k = random_normal({kBatch, kKeys, 2, 24}, dtype, 2),
               v = random_normal({kBatch, kKeys, 2, 24}, dtype, 3);
  const Forward plain = run_forward(q, k, v, {.mask = Mask::causal()});
  const Forward dropped = run_forward(q, k, v, {.mask = Mask::causal(), .dropout = Dropout{0.4, 3}});
  EXPECT_TRUE(same_values(plain.lse, dropped.lse) && same_values(plain.row_max, dropped.row_max));
  EXPECT_FALSE(same_values(plain.out, dropped.out));
}

TEST_P(DropoutKernels, SameBitsForAnyNumberOfThreads) {
  const DType dtype = GetParam().dtype;
  const Tensor q = random_normal({kBatch, tokens(), kHeads, 24}, dtype, 1), k = random_normal({kBatch, kKeys, 2, 24}, dtype, 2);
  const AttentionOptions options = {.mask = Mask::causal(), .dropout = Dropout{0.4, 3}};
  const int before = base::num_threads();
  base::set_num_threads(1);
  const Tensor one = attention(q, k, k, options);
  base::set_num_threads(5);
  EXPECT_TRUE(same_values(attention(q, k, k, options), one));
  base::set_num_threads(before);
}

}  // namespace
}  // namespace heed::test
