// SPDX-License-Identifier: Apache-2.0
// Step 4: tiles of 64 rows x 64 keys (arXiv 2205.14135). A block of K and V is loaded into the first-level cache once and meets 64 rows there;
// the loops over keys inside of a tile have a fixed length, so the compiler keeps a row of 64 scores in registers.
#include <math.h>

#include "ladder/ladder.hpp"

namespace ladder::LADDER_ISA {
namespace {

constexpr int kRows = 64, kKeys = 64;

/// [keys][D] -> [D][kKeys], times scale.
void transpose_keys(const Problem& p, std::int64_t first, float* kt) {
  for (int j = 0; j < kKeys; ++j) {
    for (std::int64_t d = 0; d < p.head_dim; ++d) kt[d * kKeys + j] = p.scale * p.k[(first + j) * p.head_dim + d];
  }
}

void score_row(const float* __restrict q, const float* __restrict kt, std::int64_t head_dim, float* __restrict scores) {
  float s[kKeys] = {};
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (int j = 0; j < kKeys; ++j) s[j] += q[d] * kt[d * kKeys + j];
  }
  for (int j = 0; j < kKeys; ++j) scores[j] = s[j];
}

/// One row meets one block: scores become weights, the row's state moves on once per block rather than once per key.
void update_row(float* s, const float* v, std::int64_t head_dim, float& top, float& sum, float* __restrict out) {
  float new_top = top;
  for (int j = 0; j < kKeys; ++j) new_top = s[j] > new_top ? s[j] : new_top;
  const float shrink = expf(top - new_top);
  top = new_top;
  sum *= shrink;
  for (std::int64_t d = 0; d < head_dim; ++d) out[d] *= shrink;
  for (int j = 0; j < kKeys; ++j) {
    s[j] = expf(s[j] - top);
    sum += s[j];
  }
  for (int j = 0; j < kKeys; ++j) {
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] += s[j] * v[j * head_dim + d];
  }
}

}  // namespace

void step04_cache_tiles(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  const Buffer keys(D * kKeys);
  float s[kKeys], top[kRows], sum[kRows];
  for (std::int64_t i = 0; i < L; i += kRows) {
    for (int r = 0; r < kRows; ++r) top[r] = -INFINITY, sum[r] = 0;
    for (std::int64_t x = i * D; x < (i + kRows) * D; ++x) p.out[x] = 0;
    for (std::int64_t j = 0; j < L; j += kKeys) {
      transpose_keys(p, j, keys.data());
      for (int r = 0; r < kRows; ++r) {
        score_row(p.q + (i + r) * D, keys.data(), D, s);
        update_row(s, p.v + j * D, D, top[r], sum[r], p.out + (i + r) * D);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (std::int64_t d = 0; d < D; ++d) p.out[(i + r) * D + d] /= sum[r];
    }
  }
}

}  // namespace ladder::LADDER_ISA
