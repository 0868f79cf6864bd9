// SPDX-License-Identifier: Apache-2.0
// Step 2: the same matrix, but every inner loop walks along memory and adds to a different element each time, so that the compiler may
// vectorise it. A dot product it may not: that would reorder a sum, and float additions do not commute with rounding.
#include <math.h>

#include "ladder/ladder.hpp"

namespace ladder::LADDER_ISA {
namespace {

void softmax(float* row, std::int64_t count) {
  float top = row[0], sum = 0;
  for (std::int64_t j = 1; j < count; ++j) top = row[j] > top ? row[j] : top;
  for (std::int64_t j = 0; j < count; ++j) {
    row[j] = expf(row[j] - top);
    sum += row[j];
  }
  for (std::int64_t j = 0; j < count; ++j) row[j] /= sum;
}

/// to[i] += factor * from[i]: two loads and a store for each multiply-add.
void add_scaled(float* __restrict to, const float* __restrict from, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

void fill(float* to, float value, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = value;
}

}  // namespace

void step02_contiguous(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  const Buffer matrix(L * L), transposed(D * L);
  float* s = matrix.data();       // [L][L]
  float* kt = transposed.data();  // [D][L]
  for (std::int64_t j = 0; j < L; ++j) {
    for (std::int64_t d = 0; d < D; ++d) kt[d * L + j] = p.scale * p.k[j * D + d];
  }
  for (std::int64_t i = 0; i < L; ++i) {
    fill(s + i * L, 0, L);
    for (std::int64_t d = 0; d < D; ++d) add_scaled(s + i * L, kt + d * L, p.q[i * D + d], L);
  }
  for (std::int64_t i = 0; i < L; ++i) softmax(s + i * L, L);
  for (std::int64_t i = 0; i < L; ++i) {
    fill(p.out + i * D, 0, D);
    for (std::int64_t j = 0; j < L; ++j) add_scaled(p.out + i * D, p.v + j * D, s[i * L + j], D);
  }
}

}  // namespace ladder::LADDER_ISA
