// SPDX-License-Identifier: Apache-2.0
#include "base/philox.hpp"

#include <cmath>

namespace heed::base {
namespace {

// The multipliers and Weyl increments of the paper's table 2.
constexpr std::uint64_t kMultiplier0 = 0xD2511F53U;
constexpr std::uint64_t kMultiplier1 = 0xCD9E8D57U;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9U;
constexpr std::uint32_t kWeyl1 = 0xBB67AE85U;
constexpr int kRounds = 10;

}  // namespace

Philox4 philox4x32_10(Philox4 counter, std::uint64_t key) noexcept {
  auto key0 = static_cast<std::uint32_t>(key);
  auto key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kMultiplier0 * counter[0];
    const std::uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<std::uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

std::uint32_t dropout_draw(std::uint64_t seed, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key) noexcept {
  const Philox4 counter = {static_cast<std::uint32_t>(key / 4), static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(h),
                           static_cast<std::uint32_t>(b)};
  return philox4x32_10(counter, seed)[static_cast<std::size_t>(key % 4)];
}

std::uint64_t dropout_threshold(double p) noexcept { return static_cast<std::uint64_t>(std::ceil(std::ldexp(p, 32))); }

}  // namespace heed::base
