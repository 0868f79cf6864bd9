// SPDX-License-Identifier: Apache-2.0
// Dropout: which weights go, by the documented counter, and that nothing else has a say in it.
#include <heed/attention.hpp>
#include <heed/reference.hpp>

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

// float32 and 16-bit calls give the rounded reference.
TEST(Dropout, PublicCallRoundsTheReference) {
  for (const DType dtype : fast_dtypes()) {
    const Tensor q = random_normal({1, 20, 2, 8}, dtype, 1), k = random_normal({1, 30, 1, 8}, dtype, 2),
                 v = random_normal({1, 30, 1, 8}, dtype, 3);
    const AttentionOptions options = {.mask = Mask::causal(), .dropout = Dropout{0.2, 17}};
    const AttentionState got = attention_state(q, k, v, options);
    const AttentionState exact = reference::attention_state(q, k, v, options);
    EXPECT_TRUE(same_values(got.out, convert(exact.out, dtype)));
    EXPECT_TRUE(same_values(got.lse, convert(exact.lse, DType::kFloat32)));
  }
}

}  // namespace
}  // namespace heed::test
