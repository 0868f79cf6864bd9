// SPDX-License-Identifier: Apache-2.0
// One call: four tokens, two query heads that share one key/value head, causal.
//
//   token 0: 0
//   token 1: 5
//   token 2: 10
//   token 3: 15
#include <cstdio>

#include <heed/heed.hpp>

int main() {
  using namespace heed;
  const Tensor q = Tensor::zeros(DType::kFloat32, {1, 4, 2, 8});  // [batch, tokens, query heads, head dim]
  const Tensor k = Tensor::zeros(DType::kFloat32, {1, 4, 1, 8});  // [batch, tokens, key/value heads, head dim]
  Tensor v(DType::kFloat32, {1, 4, 1, 1});                        // values may have another head dim
  for (int j = 0; j < 4; ++j) v.data_as<float>()[j] = 10.0F * static_cast<float>(j);

  // All scores are equal, so every token gets the mean of the values it sees: its own and those before it.
  const Tensor out = attention(q, k, v, {.mask = Mask::causal()});
  for (std::int64_t i = 0; i < 4; ++i) std::printf("token %d: %g\n", static_cast<int>(i), element(out, {0, i, 0, 0}));
}
