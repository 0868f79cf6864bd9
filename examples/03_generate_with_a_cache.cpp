// SPDX-License-Identifier: Apache-2.0
// Token by token over a KV cache gives what one pass over the whole text gives.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include <heed/heed.hpp>

namespace {

/// Numbers that look random and are the same everywhere.
heed::Tensor numbers(const heed::Shape& shape, unsigned seed) {
  heed::Tensor tensor(heed::DType::kFloat32, shape);
  for (std::int64_t n = 0; n < heed::element_count(shape); ++n) {
    seed = seed * 1664525U + 1013904223U;
    tensor.data_as<float>()[n] = static_cast<float>(seed >> 8) / 8388608.0F - 1.0F;
  }
  return tensor;
}

}  // namespace

int main() {
  using namespace heed;
  constexpr std::int64_t kTokens = 300, kQueryHeads = 8, kKvHeads = 2, kHeadDim = 32;
  const Tensor q = numbers({1, kTokens, kQueryHeads, kHeadDim}, 1), k = numbers({1, kTokens, kKvHeads, kHeadDim}, 2),
               v = numbers({1, kTokens, kKvHeads, kHeadDim}, 3);
  const Tensor whole = attention(q, k, v, {.mask = Mask::causal()});

  KvCache cache({.layers = 1, .kv_heads = kKvHeads, .head_dim = kHeadDim, .capacity_tokens = kTokens});
  double difference = 0.0;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    cache.append(0, slice(k.view(), 1, t, 1), slice(v.view(), 1, t, 1));
    const Tensor step = attention(slice(q.view(), 1, t, 1), cache.layer(0), {.mask = Mask::causal()});
    cache.commit(1);
    for (std::int64_t h = 0; h < kQueryHeads; ++h) {
      for (std::int64_t d = 0; d < kHeadDim; ++d) {
        difference = std::max(difference, std::abs(element(step, {0, 0, h, d}) - element(whole, {0, t, h, d})));
      }
    }
  }
  // Two kernels, so the sums run in another order: float32's last digits.
  std::printf("largest difference from the full pass: %.1e, %s\n", difference, difference < 1e-6 ? "as expected" : "too much");
  return difference < 1e-6 ? 0 : 1;
}
