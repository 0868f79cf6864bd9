// SPDX-License-Identifier: Apache-2.0
// Sequences of 2, 1 and 3 tokens behind each other, without padding: each token sees its own sequence and nothing else.
//
//   0 5 | 20 | 30 35 40
#include <cstdint>
#include <cstdio>

#include <heed/heed.hpp>

int main() {
  using namespace heed;
  constexpr int kTokens = 6;
  const std::int64_t offsets[] = {0, 2, 3, kTokens};  // sequence s owns rows offsets[s] .. offsets[s + 1]
  const TensorView starts(offsets, {4});

  const Tensor q = Tensor::zeros(DType::kFloat32, {kTokens, 2, 8});  // [all tokens, query heads, head dim]
  const Tensor k = Tensor::zeros(DType::kFloat32, {kTokens, 1, 8});
  Tensor v(DType::kFloat32, {kTokens, 1, 1});
  for (int j = 0; j < kTokens; ++j) v.data_as<float>()[j] = 10.0F * static_cast<float>(j);

  // All scores are equal, so every token gets the mean of the values it sees: its own and those before it in its sequence.
  const Tensor out = attention_varlen(q, k, v, starts, starts, {.mask = Mask::causal()});
  for (int i = 0; i < kTokens; ++i) {
    const bool begins = i == 2 || i == 3;
    std::printf("%s%g", i == 0 ? "" : begins ? " | " : " ", element(out, {i, 0, 0}));
  }
  std::printf("\n");
}
