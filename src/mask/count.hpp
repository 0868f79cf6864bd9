// SPDX-License-Identifier: Apache-2.0
// How much of an imagined call a mask shows and a kernel visits.
#pragma once

#include <cstdint>

#include <heed/mask.hpp>

namespace heed::mask {

/// Tiles are those of the AVX-512 kernels for one query head per KV head: 48 queries x 64 keys.
struct TileStatistics {
  std::int64_t tiles = 0;     ///< of all batch entries and heads
  std::int64_t visited = 0;   ///< with a visible element
  std::int64_t partial = 0;   ///< visited, and not wholly visible
  std::int64_t elements = 0;  ///< B * Hq * Lq * Lk
  std::int64_t visible = 0;

  [[nodiscard]] double density() const noexcept {
    return elements > 0 ? static_cast<double>(visible) / static_cast<double>(elements) : 0.0;
  }
};

/// The call with every field set: batch and heads of 1 become what the mask is made for. Throws InvalidArgument on behalf of `function`.
[[nodiscard]] MaskCall fitted(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, MaskCall call);

/// Takes the memory of one row of tiles, and the time of planning the call once for each batch entry and head that the mask tells apart.
[[nodiscard]] TileStatistics tile_statistics(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens,
                                             const MaskCall& call);

}  // namespace heed::mask
