// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10 against Random123's published known-answer vectors, and what dropout draws from it.
#include <gtest/gtest.h>

#include "base/philox.hpp"

namespace heed::test {
namespace {

using base::dropout_draw;
using base::dropout_threshold;
using base::Philox4;
using base::philox4x32_10;

/// The three philox4x32-10 lines of Random123's tests/kat_vectors.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, 0), (Philox4{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff),
            (Philox4{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  // Digits of pi; the key's low word comes first.
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822),
            (Philox4{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

/// Counter (key / 4, row, head, batch), word key % 4.
TEST(Dropout, DrawsFollowTheManual) {
  const std::uint64_t seed = 0x0123456789abcdef;
  for (std::int64_t key = 0; key < 9; ++key) {
    const Philox4 counter = {static_cast<std::uint32_t>(key / 4), 7, 3, 2};
    EXPECT_EQ(dropout_draw(seed, 2, 3, 7, key), philox4x32_10(counter, seed)[static_cast<std::size_t>(key % 4)]);
  }
  EXPECT_NE(dropout_draw(seed, 0, 1, 2, 3), dropout_draw(seed, 0, 2, 1, 3));
  EXPECT_NE(dropout_draw(seed, 1, 0, 2, 3), dropout_draw(seed, 0, 1, 2, 3));
}

TEST(Dropout, ThresholdIsPRoundedUp) {
  EXPECT_EQ(dropout_threshold(0.0), 0U);
  EXPECT_EQ(dropout_threshold(0.5), std::uint64_t{1} << 31);
  EXPECT_EQ(dropout_threshold(0.1), 429496730U);  // 429496729.6
  EXPECT_EQ(dropout_threshold(0x1p-33), 1U);
  EXPECT_EQ(dropout_threshold(1.0 - 0x1p-32), 0xffffffffU);
}

/// Binomial with n = 2^16, p = 0.25: six standard deviations are 665.
TEST(Dropout, KeepsTheRightShare) {
  const std::uint64_t threshold = dropout_threshold(0.25);
  int dropped = 0;
  for (std::int64_t row = 0; row < 256; ++row) {
    for (std::int64_t key = 0; key < 256; ++key) dropped += dropout_draw(5, 0, 0, row, key) < threshold ? 1 : 0;
  }
  EXPECT_NEAR(dropped, 16384, 665);
}

}  // namespace
}  // namespace heed::test
