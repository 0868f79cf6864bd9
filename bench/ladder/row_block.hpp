// SPDX-License-Identifier: Apache-2.0
// Step 8's idea: a row's weights are taken against a reference that need not be its largest score, only near it. 2^8 of headroom costs float32
// nothing, so the reference moves only when a score exceeds it by more than 8, and most blocks rescale nothing.
#pragma once

#include "ladder/exp2.hpp"
#include "ladder/register_tile.hpp"

namespace ladder::LADDER_ISA {

/// What kWidth rows know so far. A lane's reference depends on its own row only, so a row's bits do not depend on its neighbours.
struct RowBlock {
  std::int64_t first;       ///< row
  float *panel, *out;       ///< Q^T, O^T: [D][kWidth]
  Vec reference[kVectors];  ///< log2 domain
  Vec sum[kVectors];        ///< of the weights
};

static inline void start(const Problem& p, std::int64_t first, float* panel, float* out, RowBlock& b) {
  b = {first, panel, out, {}, {}};
  for (Vec& x : b.reference) x = broadcast(-INFINITY);
  pack_queries(p, first, kWidth, p.scale * kLog2E, panel);
  for (std::int64_t x = 0; x < p.head_dim * kWidth; ++x) out[x] = 0;
}

static inline bool any(IVec mask) {
  std::int32_t lanes[kLanes], all = 0;
  __builtin_memcpy(lanes, &mask, sizeof mask);
  for (int i = 0; i < kLanes; ++i) all |= lanes[i];
  return all != 0;
}

static inline void move_reference(RowBlock& b, int v, Vec top, std::int64_t head_dim) {
  const IVec moves = top > b.reference[v] + 8.0F;
  if (!any(moves)) return;
  const Vec moved = moves ? top : b.reference[v];
  const Vec shrink = exp2(b.reference[v] - moved);  // 1 exactly in the lanes that stay
  b.reference[v] = moved;
  b.sum[v] *= shrink;
  rescale(b.out, head_dim, v, shrink);
}

/// Scores of one vector of rows to weights against `reference`; returns their sum.
static inline Vec weigh(float* scores, Vec reference) {
  Vec sum = {};
  for (int key = 0; key < kKeys; ++key) {
    const Vec weight = exp2(load(scores + key * kWidth) - reference);
    store(scores + key * kWidth, weight);
    sum += weight;
  }
  return sum;
}

/// One row block meets one block of keys. scores: [kKeys][kWidth], scratch. k, v: [kKeys][D].
static inline void visit(RowBlock& b, const float* k, const float* values, std::int64_t head_dim, float* scores) {
  Vec top[kVectors];
  for (Vec& x : top) x = broadcast(-INFINITY);
  score_block(b.panel, k, head_dim, scores, top);
  for (int v = 0; v < kVectors; ++v) {
    move_reference(b, v, top[v], head_dim);
    b.sum[v] += weigh(scores + v * kLanes, b.reference[v]);
  }
  add_values(scores, values, head_dim, b.out);
}

static inline void finish(const Problem& p, const RowBlock& b) {
  float sums[kWidth];
  for (int v = 0; v < kVectors; ++v) store(sums + v * kLanes, b.sum[v]);
  write_rows(p, b.first, kWidth, b.out, sums);
}

}  // namespace ladder::LADDER_ISA
