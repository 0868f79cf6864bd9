// SPDX-License-Identifier: Apache-2.0
#include "mask/count.hpp"

#include <vector>

#include "mask/node.hpp"
#include "mask/numbers.hpp"
#include "mask/plan.hpp"

namespace heed::mask {
namespace {

constexpr std::int32_t kTileRows = 48;

void require_at_most(std::int64_t most, const char* function, const char* argument, std::int64_t value) {
  if (value <= most) return;
  base::throw_invalid(function, argument, "at most " + std::to_string(most), std::to_string(value));
}

/// What a mask is made for, or the caller's number where it is made for any.
std::int64_t fitted_axis(const char* function, const char* argument, std::int64_t wanted, std::int64_t given) {
  if (wanted == 0 || given == wanted) return given;
  if (given == 1) return wanted;
  base::throw_invalid(function, argument, std::to_string(wanted) + ", which this mask is made for", std::to_string(given));
}

/// Heads that see the same as this one and none before it, itself included; 0 where one before it does.
std::int64_t share_of(const MaskNode& mask, std::int64_t head, std::int64_t heads) noexcept {
  if (!mask.traits().uses_head) return head == 0 ? heads : 0;
  for (std::int64_t other = 0; other < head; ++other) {
    if (mask.heads_alike(other, head)) return 0;
  }
  std::int64_t alike = 1;
  for (std::int64_t other = head + 1; other < heads; ++other) alike += mask.heads_alike(head, other) ? 1 : 0;
  return alike;
}

}  // namespace

MaskCall fitted(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, MaskCall call) {
  constexpr std::int64_t kMostKeys = std::int64_t{1} << 36;  // key blocks are counted in 32 bits
  constexpr std::int64_t kMostHeads = 65'536;
  constexpr std::int64_t kFarthest = (std::int64_t{1} << 61) - 1;
  require_at_least(0, function, "q_tokens", q_tokens);
  require_at_least(0, function, "k_tokens", k_tokens);
  require_at_least(1, function, "batch", call.batch);
  require_at_least(1, function, "heads", call.heads);
  require_at_most(kMostHeads, function, "heads", call.heads);
  call.batch = fitted_axis(function, "batch", mask.node().traits().batch, call.batch);
  call.heads = fitted_axis(function, "heads", mask.node().traits().heads, call.heads);
  if (!call.query_offset) call.query_offset = k_tokens - q_tokens;
  const std::int64_t elements = element_count({call.batch, call.heads, q_tokens, k_tokens});  // its own error where it does not fit
  if (elements == 0) return call;
  require_at_most(kMostKeys, function, "k_tokens", k_tokens);
  require_at_least(-kFarthest, function, "query_offset", *call.query_offset);
  require_at_most(kFarthest, function, "query_offset", *call.query_offset);
  return call;
}

TileStatistics tile_statistics(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens,
                               const MaskCall& given) {
  const MaskCall call = fitted(function, mask, q_tokens, k_tokens, given);
  const bool each_batch = mask.node().traits().uses_batch;
  const std::int64_t row_blocks = (q_tokens + kTileRows - 1) / kTileRows;
  const std::int64_t key_blocks = (k_tokens + kernels::kBlockKeys - 1) / kernels::kBlockKeys;
  TileStatistics all = {.tiles = call.batch * call.heads * row_blocks * key_blocks,
                        .elements = element_count({call.batch, call.heads, q_tokens, k_tokens})};
  if (all.elements == 0) return all;
  for (std::int64_t b = 0; b < (each_batch ? call.batch : 1); ++b) {
    for (std::int64_t head = 0; head < (mask.node().traits().uses_head ? call.heads : 1); ++head) {
      const std::int64_t times = share_of(mask.node(), head, call.heads) * (each_batch ? 1 : call.batch);
      if (times == 0) continue;
      const TileCounts one = count_tiles(mask, {q_tokens, k_tokens, *call.query_offset, b}, head, kTileRows);
      all.visited += times * one.visited;
      all.partial += times * one.partial;
      all.visible += times * one.visible;
    }
  }
  return all;
}

}  // namespace heed::mask

namespace heed {

double Mask::density(std::int64_t q_tokens, std::int64_t k_tokens, const MaskCall& call) const {
  return mask::tile_statistics("Mask::density", *this, q_tokens, k_tokens, call).density();
}

TileStatistics Mask::tile_statistics(std::int64_t q_tokens, std::int64_t k_tokens, const MaskCall& call) const {
  return mask::tile_statistics("Mask::tile_statistics", *this, q_tokens, k_tokens, call);
}

}  // namespace heed
