// SPDX-License-Identifier: Apache-2.0
// The leaf below Mask::random_blocks: random keys for each query, or inside in_blocks, random key blocks for each query block.
#pragma once

#include <heed/mask.hpp>

namespace heed::mask {

struct RandomKeysPattern {
  std::int64_t per_row = 0;
  std::optional<std::int64_t> columns = {};  ///< keys to draw from; not given: those up to the query's own
  std::uint64_t seed = 0;
  RandomHeads heads = RandomHeads::kAlike;
  friend bool operator==(const RandomKeysPattern&, const RandomKeysPattern&) = default;
};

/// No more keys are drawn from.
inline constexpr std::int64_t kMostChoices = std::int64_t{1} << 62;

[[nodiscard]] Mask random_keys(const RandomKeysPattern& pattern);

}  // namespace heed::mask
