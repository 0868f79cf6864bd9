// SPDX-License-Identifier: Apache-2.0
// Step 5: one query row per SIMD lane, for both products. Numbers of K and V are broadcast from where they lie; maxima, sums and rescaling are
// per-lane operations, and nothing is ever added across lanes.
#include "ladder/lanes.hpp"

namespace ladder::LADDER_ISA {
namespace {

/// S^T [kKeys][kLanes] of one block; returns the largest score of each lane. k: [kKeys][D].
Vec score_block(const float* panel, const float* k, std::int64_t head_dim, float* scores) {
  Vec top = broadcast(-INFINITY);
  for (int j = 0; j < kKeys; ++j) {
    Vec s = {};
    for (std::int64_t d = 0; d < head_dim; ++d) s += k[j * head_dim + d] * load(panel + d * kLanes);
    store(scores + j * kLanes, s);
    top = larger(top, s);
  }
  return top;
}

/// O^T [D][kLanes] = shrink * O^T + V^T P^T. v: [kKeys][D].
void add_values(const float* weights, const float* v, std::int64_t head_dim, Vec shrink, float* out) {
  for (std::int64_t d = 0; d < head_dim; ++d) {
    Vec o = shrink * load(out + d * kLanes);
    for (int j = 0; j < kKeys; ++j) o += v[j * head_dim + d] * load(weights + j * kLanes);
    store(out + d * kLanes, o);
  }
}

}  // namespace

void step05_queries_in_lanes(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  const Buffer panel(D * kLanes), out(D * kLanes), scores(kKeys * kLanes), sums(kLanes);
  for (std::int64_t i = 0; i < L; i += kLanes) {
    pack_queries(p, i, kLanes, p.scale, panel.data());
    for (std::int64_t x = 0; x < D * kLanes; ++x) out.data()[x] = 0;
    Vec top = broadcast(-INFINITY), sum = {};
    for (std::int64_t j = 0; j < L; j += kKeys) {
      const Vec new_top = larger(top, score_block(panel.data(), p.k + j * D, D, scores.data()));
      const Vec shrink = exp_by_lanes(top - new_top);
      top = new_top;
      sum *= shrink;
      for (int key = 0; key < kKeys; ++key) {
        float* s = scores.data() + key * kLanes;
        const Vec weight = exp_by_lanes(load(s) - top);
        store(s, weight);
        sum += weight;
      }
      add_values(scores.data(), p.v + j * D, D, shrink, out.data());
    }
    store(sums.data(), sum);
    write_rows(p, i, kLanes, out.data(), sums.data());
  }
}

}  // namespace ladder::LADDER_ISA
