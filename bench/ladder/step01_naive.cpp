// SPDX-License-Identifier: Apache-2.0
// Step 1: the formula as it stands in a textbook. Stores the L x L matrix, sums every product in one chain of additions.
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

}  // namespace

void step01_naive(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  const Buffer matrix(L * L);
  float* s = matrix.data();  // [L][L]: the scores, then the weights
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t j = 0; j < L; ++j) {
      float dot = 0;
      for (std::int64_t d = 0; d < D; ++d) dot += p.q[i * D + d] * p.k[j * D + d];
      s[i * L + j] = p.scale * dot;
    }
  }
  for (std::int64_t i = 0; i < L; ++i) softmax(s + i * L, L);
  for (std::int64_t i = 0; i < L; ++i) {
    for (std::int64_t d = 0; d < D; ++d) {
      float sum = 0;
      for (std::int64_t j = 0; j < L; ++j) sum += s[i * L + j] * p.v[j * D + d];  // steps through memory D floats at a time
      p.out[i * D + d] = sum;
    }
  }
}

}  // namespace ladder::LADDER_ISA
