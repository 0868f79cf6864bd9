// SPDX-License-Identifier: Apache-2.0
// Attention over a long context in pieces: each part keeps its lse, and merging them is exact. Here with scores that are all equal.
#include <cstdio>
#include <vector>

#include <heed/heed.hpp>

int main() {
  using namespace heed;
  const Tensor q = Tensor::zeros(DType::kFloat32, {1, 1, 1, 4}), k = Tensor::zeros(DType::kFloat32, {1, 6, 1, 4});
  Tensor v(DType::kFloat32, {1, 6, 1, 4});
  for (int j = 0; j < 6; ++j) {
    for (int d = 0; d < 4; ++d) v.data_as<float>()[4 * j + d] = static_cast<float>(d + 1) + (j % 2 == 0 ? 1.0F : -1.0F);
  }
  std::vector<AttentionState> parts;
  for (const std::int64_t begin : {0, 2, 3}) {  // keys [0, 2), [2, 3), [3, 6)
    const std::int64_t count = begin == 0 ? 2 : begin == 2 ? 1 : 3;
    parts.push_back(attention_state(q, slice(k.view(), 1, begin, count), slice(v.view(), 1, begin, count)));
    std::printf("part of %d keys: lse %.4f\n", static_cast<int>(count), element(parts.back().lse, {0, 0, 0}));
  }
  const AttentionState whole = merge_states(parts);
  std::printf("together:");
  for (std::int64_t d = 0; d < 4; ++d) std::printf(" %.6g", element(whole.out, {0, 0, 0, d}));
  std::printf("\n");
}
