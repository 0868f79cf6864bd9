// SPDX-License-Identifier: Apache-2.0
// A vector of floats as GCC and Clang offer it in the language, as wide as the flags of the file allow: no intrinsics, one source for all
// instruction sets. One query row sits in each lane. Used from step 5 on.
#pragma once

#include <math.h>

#include <cstdint>

#include "ladder/ladder.hpp"

#if defined(__AVX512F__)
#define LADDER_LANES 16
#elif defined(__AVX2__)
#define LADDER_LANES 8
#else
#define LADDER_LANES 4
#endif

namespace ladder::LADDER_ISA {

constexpr int kLanes = LADDER_LANES;
using Vec = float __attribute__((vector_size(4 * kLanes)));
using IVec = std::int32_t __attribute__((vector_size(4 * kLanes)));

constexpr int kKeys = 64;  ///< per block: 64 keys of 48 rows are 12 KB of scores, a quarter of a first-level cache

static inline Vec load(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
static inline void store(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }
static inline Vec broadcast(float x) { return x - Vec{}; }  // x - 0 is x for every x, so the subtraction disappears
static inline Vec larger(Vec a, Vec b) { return a > b ? a : b; }

/// Lane by lane through the C library: what step 7 replaces.
static inline Vec exp_by_lanes(Vec x) {
  for (int i = 0; i < kLanes; ++i) x[i] = expf(x[i]);
  return x;
}

/// Rows [first, first + width) of Q, times factor, as the panel Q^T [D][width]. Rows past the end are zeros: they cost time, nothing else.
static inline void pack_queries(const Problem& p, std::int64_t first, int width, float factor, float* panel) {
  for (int r = 0; r < width; ++r) {
    for (std::int64_t d = 0; d < p.head_dim; ++d)
      panel[d * width + r] = first + r < p.length ? factor * p.q[(first + r) * p.head_dim + d] : 0;
  }
}

/// O^T [D][width], divided by the sums, as rows of the output.
static inline void write_rows(const Problem& p, std::int64_t first, int width, const float* out, const float* sum) {
  for (int r = 0; r < width && first + r < p.length; ++r) {
    for (std::int64_t d = 0; d < p.head_dim; ++d) p.out[(first + r) * p.head_dim + d] = out[d * width + r] / sum[r];
  }
}

}  // namespace ladder::LADDER_ISA
