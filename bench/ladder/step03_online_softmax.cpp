// SPDX-License-Identifier: Apache-2.0
// Step 3: online softmax (arXiv 1805.02867). A row remembers the largest score so far, the sum of weights against it and the weighted sum of
// values; a larger score rescales both. No matrix: O(L) memory, and any number of keys.
#include <math.h>

#include "ladder/ladder.hpp"

namespace ladder::LADDER_ISA {
namespace {

constexpr int kPartials = 16;

/// We may reorder the sum where the compiler may not: kPartials independent sums, which vectorise, then one sum over them. D % 8 == 0.
float dot(const float* a, const float* b, std::int64_t count) {
  float partial[kPartials] = {};
  std::int64_t d = 0;
  for (; d + kPartials <= count; d += kPartials) {
    for (int i = 0; i < kPartials; ++i) partial[i] += a[d + i] * b[d + i];
  }
  for (int i = 0; d < count; ++d, ++i) partial[i] += a[d] * b[d];
  for (int width = kPartials / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) partial[i] += partial[i + width];
  }
  return partial[0];
}

}  // namespace

void step03_online_softmax(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  for (std::int64_t i = 0; i < L; ++i) {
    const float* q = p.q + i * D;
    float* __restrict out = p.out + i * D;
    for (std::int64_t d = 0; d < D; ++d) out[d] = 0;
    float top = -INFINITY, sum = 0;
    for (std::int64_t j = 0; j < L; ++j) {
      const float s = p.scale * dot(q, p.k + j * D, D);
      const float* v = p.v + j * D;
      if (s > top) {  // exp(-inf) is 0: the first key starts everything
        const float shrink = expf(top - s);
        top = s;
        sum *= shrink;
        for (std::int64_t d = 0; d < D; ++d) out[d] *= shrink;
      }
      const float weight = expf(s - top);
      sum += weight;
      for (std::int64_t d = 0; d < D; ++d) out[d] += weight * v[d];
    }
    for (std::int64_t d = 0; d < D; ++d) out[d] /= sum;
  }
}

}  // namespace ladder::LADDER_ISA
