// SPDX-License-Identifier: Apache-2.0
// How much of an imagined call a mask shows and a kernel visits.
#pragma once

#include <cstdint>

#include <heed/mask.hpp>

namespace heed::mask {

/// The call with every field set: batch and heads of 1 become what the mask is made for. Throws InvalidArgument on behalf of `function`.
[[nodiscard]] MaskCall fitted(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, MaskCall call);

/// Takes the memory of one row of tiles, and the time of planning the call once for each batch entry and head that the mask tells apart.
[[nodiscard]] TileStatistics tile_statistics(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens,
                                             const MaskCall& call);

}  // namespace heed::mask
