// SPDX-License-Identifier: Apache-2.0
// A mask as kernels see it: which (row block, key block) tiles to visit, and the visibility bits of the mixed ones. No mask types,
// no positions, no heads here; src/mask/plan.cpp compiles it.
#pragma once

#include <cstdint>

namespace heed::kernels {

/// Keys per tile for every kernel, on a grid that starts at key 0. The last tile of a row may be shorter.
inline constexpr int kBlockKeys = 64;
/// Most rows per tile: the bits of one key fit one word.
inline constexpr int kMaxBlockRows = 64;

/// Consecutive key blocks [first_block, first_block + block_count) of one row block.
/// bits < 0: every row sees every key of all of them. Otherwise block_count is 1 and the tile's bits are at TilePlan::bits + bits * kBlockKeys.
struct TileRun {
  std::int32_t first_block;
  std::int32_t block_count;
  std::int64_t bits;
};

/// One (batch, KV head) class. Row r is packed: token r / group, query head r % group of the KV head's group.
struct TilePlan {
  std::int64_t rows = 0;                    ///< tokens * group
  std::int64_t keys = 0;                    ///< keys that exist (kv_length)
  std::int32_t block_rows = 0;              ///< <= kMaxBlockRows
  const std::int64_t* run_begin = nullptr;  ///< [row blocks + 1]: runs of row block i are runs[run_begin[i] .. run_begin[i + 1])
  const TileRun* runs = nullptr;            ///< rising and disjoint within a row block; tiles without a visible slot are absent
  const std::uint64_t* bits =
      nullptr;  ///< [mixed tiles][kBlockKeys]: bit r of word j is set when row r of the block sees key j of the tile
};

}  // namespace heed::kernels
