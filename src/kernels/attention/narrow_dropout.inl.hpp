// SPDX-License-Identifier: Apache-2.0
// Dropout in the narrow path: between the weights and the values, so that sums never see it. Kept weights are divided by 1 - p when the
// pieces are joined.

namespace decode {

/// Dropped weights become 0 and hidden, so that no value of theirs is ever multiplied.
static void drop_weights(const ForwardProblem& problem, Piece& p) {
  for (int t = 0; t < p.tile_count; ++t) {
    const Tile& tile = p.tiles[t];
    std::uint64_t kept[kBlockKeys];  // [key], a bit per row
    kept_rows(problem.scoring.dropout, {0, p.rows, problem.q.group}, p.first_key + tile.first, tile.keys, kept);
    for (int r = 0; r < p.rows; ++r) {
      std::uint64_t keys = 0;
      for (int j = 0; j < tile.keys; ++j) keys |= (kept[j] >> r & 1U) << j;
      std::uint64_t& shown = p.shown[r * kTiles + t];
      shown = p.may_hide[t] ? shown & keys : keys;
      for (int j = 0; j < tile.keys; j += kLanes) {
        float* at = p.scores + r * kPieceKeys + tile.first + j;
        store(at, select(mask_from_bits(keys >> j), load(at), zero()));
      }
    }
    p.may_hide[t] = true;
  }
}

}  // namespace decode
