// SPDX-License-Identifier: Apache-2.0
// A bad argument is an exception that says which one; explain() says what a good call would run.
#include <cstdio>

#include <heed/heed.hpp>

int main() {
  using namespace heed;
  const Tensor q = Tensor::zeros(DType::kFloat32, {1, 4, 2, 8}), k = Tensor::zeros(DType::kFloat32, {1, 4, 1, 9}),
               v = Tensor::zeros(DType::kFloat32, {1, 4, 1, 8});
  try {
    static_cast<void>(attention(q, k, v));
  } catch (const InvalidArgument& error) {
    std::printf("%s\n", error.what());
  }
  std::printf("%s\n", explain({1, 2048, 8, 128}, {1, 2048, 2, 128}, DType::kBFloat16, {.mask = Mask::causal()}).c_str());
}
