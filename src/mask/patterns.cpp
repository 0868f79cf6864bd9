// SPDX-License-Identifier: Apache-2.0
// Patterns of the literature that are combinations of others: equality, text and skipped tiles follow from their parts.
#include <numeric>
#include <vector>

#include "mask/numbers.hpp"
#include "mask/random_keys.hpp"

namespace heed {

Mask Mask::random_blocks(const RandomBlocksPattern& pattern) {
  const Mask keys = mask::random_keys({pattern.per_row, pattern.columns, pattern.seed, pattern.heads});
  mask::require_at_least(1, "Mask::random_blocks", "block", pattern.block);
  return in_blocks(pattern.block, keys);
}

Mask Mask::vertical_slash(std::span<const std::int64_t> columns, std::span<const std::int64_t> diagonals) {
  return causal() & (Mask::columns(columns) | Mask::diagonals(diagonals));
}

Mask Mask::longformer(std::int64_t side, std::span<const std::int64_t> globals) { return window(side, side) | global_tokens(globals); }

Mask Mask::big_bird(const BigBirdPattern& pattern) {
  constexpr const char* kFunction = "Mask::big_bird";
  constexpr std::int64_t kMostGlobals = 65'536;  // they are listed one by one
  mask::require_at_least(1, kFunction, "block", pattern.block);
  mask::require_at_least(1, kFunction, "window_blocks", pattern.window_blocks);
  if (pattern.window_blocks % 2 == 0) {
    base::throw_invalid(kFunction, "window_blocks", "an odd number", std::to_string(pattern.window_blocks));
  }
  mask::require_at_least(0, kFunction, "global_blocks", pattern.global_blocks);
  if (pattern.global_blocks > kMostGlobals) {
    base::throw_invalid(kFunction, "global_blocks", "at most " + std::to_string(kMostGlobals), std::to_string(pattern.global_blocks));
  }
  mask::require_at_least(0, kFunction, "random_blocks", pattern.random_blocks);
  mask::require_at_least(0, kFunction, "columns", pattern.columns.value_or(0));
  std::vector<std::int64_t> globals(static_cast<std::size_t>(pattern.global_blocks));
  std::iota(globals.begin(), globals.end(), 0);
  const std::int64_t side = pattern.window_blocks / 2;
  return in_blocks(pattern.block, window(side, side) | global_tokens(globals) |
                                      mask::random_keys({pattern.random_blocks, pattern.columns, pattern.seed, pattern.heads}));
}

Mask Mask::sinks_and_window(std::int64_t sinks, std::int64_t window) {
  mask::require_at_least(0, "Mask::sinks_and_window", "sinks", sinks);
  mask::require_at_least(1, "Mask::sinks_and_window", "window", window);
  return causal() & (sink_tokens(sinks) | sliding_window(window));
}

Mask Mask::a_shape(std::int64_t initial, std::int64_t local) {
  mask::require_at_least(0, "Mask::a_shape", "initial", initial);
  mask::require_at_least(1, "Mask::a_shape", "local", local);
  return sinks_and_window(initial, local);
}

}  // namespace heed
