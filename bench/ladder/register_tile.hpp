// SPDX-License-Identifier: Apache-2.0
// Step 6's idea: kTile x kVectors accumulators stay in registers for a whole inner loop. A number of K or V is broadcast once and meets kVectors
// vectors of rows; a vector of rows is loaded once and meets kTile numbers.
#pragma once

#include "ladder/lanes.hpp"

#if defined(__clang__)
#define LADDER_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LADDER_UNROLL _Pragma("GCC unroll 64")  // else an array of accumulators is an array in memory
#endif

namespace ladder::LADDER_ISA {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kTile = 8;  ///< 8 x 3 accumulators, 3 vectors of rows, a broadcast: 28 of 32 registers
#else
constexpr int kTile = 4;  ///< 4 x 3, 3 and a broadcast: all 16
#endif
constexpr int kVectors = 3;
constexpr int kWidth = kVectors * kLanes;  ///< rows of a block: 48, 24, 12

/// c[i][v] += sum over n of numbers[i * tile_stride + n * step] * vectors[n][v]. Both products are this loop.
static inline void multiply_tile(const float* numbers, std::int64_t tile_stride, std::int64_t step, const float* vectors,
                                 std::int64_t count, Vec (&c)[kTile][kVectors]) {
  for (std::int64_t n = 0; n < count; ++n) {
    Vec x[kVectors];
    LADDER_UNROLL
    for (int v = 0; v < kVectors; ++v) x[v] = load(vectors + n * kWidth + v * kLanes);
    LADDER_UNROLL
    for (int i = 0; i < kTile; ++i) {
      const Vec number = broadcast(numbers[i * tile_stride + n * step]);
      LADDER_UNROLL
      for (int v = 0; v < kVectors; ++v) c[i][v] += number * x[v];
    }
  }
}

/// S^T [kKeys][kWidth] of one block; raises `top` to the largest score of each lane. k: [kKeys][D].
[[gnu::noinline]] static void score_block(const float* panel, const float* k, std::int64_t head_dim, float* scores, Vec (&top)[kVectors]) {
  for (int key = 0; key < kKeys; key += kTile) {
    Vec c[kTile][kVectors] = {};
    multiply_tile(k + key * head_dim, head_dim, 1, panel, head_dim, c);
    LADDER_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Vec largest = top[v];  // a copy: for all the compiler knows, a store to `scores` changes `top`
      LADDER_UNROLL
      for (int i = 0; i < kTile; ++i) {
        store(scores + (key + i) * kWidth + v * kLanes, c[i][v]);
        largest = larger(largest, c[i][v]);
      }
      top[v] = largest;
    }
  }
}

/// O^T [D][kWidth] += V^T P^T. O^T is loaded and stored once per block of keys. v: [kKeys][D].
[[gnu::noinline]] static void add_values(const float* weights, const float* values, std::int64_t head_dim, float* out) {
  for (std::int64_t d = 0; d < head_dim; d += kTile) {
    Vec c[kTile][kVectors];
    LADDER_UNROLL
    for (int i = 0; i < kTile * kVectors; ++i) c[i / kVectors][i % kVectors] = load(out + d * kWidth + i * kLanes);
    multiply_tile(values + d, 1, head_dim, weights, kKeys, c);
    LADDER_UNROLL
    for (int i = 0; i < kTile * kVectors; ++i) store(out + d * kWidth + i * kLanes, c[i / kVectors][i % kVectors]);
  }
}

/// O^T [D][kWidth] *= factor.
static inline void rescale(float* out, std::int64_t head_dim, int v, Vec factor) {
  for (std::int64_t d = 0; d < head_dim; ++d) store(out + d * kWidth + v * kLanes, factor * load(out + d * kWidth + v * kLanes));
}

}  // namespace ladder::LADDER_ISA
