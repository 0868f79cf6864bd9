// SPDX-License-Identifier: Apache-2.0
// Step 6: three vectors of rows at a time and the register tile, 24 accumulators where there are 32 registers. The rest is step 5.
#include "ladder/register_tile.hpp"

namespace ladder::LADDER_ISA {
namespace {

/// Scores of one vector of rows to weights against `top`; returns their sum.
Vec weigh(float* scores, Vec top) {
  Vec sum = {};
  for (int key = 0; key < kKeys; ++key) {
    const Vec weight = exp_by_lanes(load(scores + key * kWidth) - top);
    store(scores + key * kWidth, weight);
    sum += weight;
  }
  return sum;
}

}  // namespace

void step06_register_tile(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  const Buffer panel(D * kWidth), out(D * kWidth), scores(kKeys * kWidth), sums(kWidth);
  for (std::int64_t i = 0; i < L; i += kWidth) {
    pack_queries(p, i, kWidth, p.scale, panel.data());
    for (std::int64_t x = 0; x < D * kWidth; ++x) out.data()[x] = 0;
    Vec top[kVectors], sum[kVectors] = {};
    for (Vec& x : top) x = broadcast(-INFINITY);
    for (std::int64_t j = 0; j < L; j += kKeys) {
      Vec new_top[kVectors];
      for (int v = 0; v < kVectors; ++v) new_top[v] = top[v];
      score_block(panel.data(), p.k + j * D, D, scores.data(), new_top);
      for (int v = 0; v < kVectors; ++v) {
        const Vec shrink = exp_by_lanes(top[v] - new_top[v]);
        top[v] = new_top[v];
        rescale(out.data(), D, v, shrink);
        sum[v] = shrink * sum[v] + weigh(scores.data() + v * kLanes, top[v]);
      }
      add_values(scores.data(), p.v + j * D, D, out.data());
    }
    for (int v = 0; v < kVectors; ++v) store(sums.data() + v * kLanes, sum[v]);
    write_rows(p, i, kWidth, out.data(), sums.data());
  }
}

}  // namespace ladder::LADDER_ISA
