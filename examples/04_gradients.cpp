// SPDX-License-Identifier: Apache-2.0
// Training by hand: q, k, v and a sink logit learn, by gradient descent, to make the attention output what we want.
#include <cstdio>

#include <heed/heed.hpp>

namespace {

void descend(heed::Tensor& parameter, const heed::Tensor& gradient) {
  for (std::int64_t n = 0; n < heed::element_count(parameter.shape()); ++n)
    parameter.data_as<float>()[n] -= 0.5F * gradient.data_as<float>()[n];
}

}  // namespace

int main() {
  using namespace heed;
  Tensor q = Tensor::zeros(DType::kFloat32, {1, 3, 1, 2}), k = Tensor::zeros(DType::kFloat32, {1, 3, 1, 2}),
         v = Tensor::zeros(DType::kFloat32, {1, 3, 1, 1});
  for (int n = 0; n < 6; ++n) {  // three tokens in different directions
    q.data_as<float>()[n] = 0.25F * static_cast<float>((n * 5) % 7 - 3);
    k.data_as<float>()[n] = 0.25F * static_cast<float>((n * 3) % 5 - 2);
  }
  Tensor sink = Tensor::zeros(DType::kFloat32, {1});
  const float wanted[3] = {1.0F, -1.0F, 0.5F};

  double first = 0.0, loss = 0.0;
  for (int step = 0; step < 400; ++step) {
    const AttentionOptions options = {.mask = Mask::causal(), .sink_logits = sink};
    const AttentionState state = attention_state(q, k, v, options);
    Tensor dout(DType::kFloat32, {1, 3, 1, 1});
    loss = 0.0;
    for (int i = 0; i < 3; ++i) {
      const float error = state.out.data_as<float>()[i] - wanted[i];
      loss += 0.5 * static_cast<double>(error) * static_cast<double>(error);
      dout.data_as<float>()[i] = error;
    }
    if (step == 0) first = loss;
    const AttentionGrads grads = attention_backward(dout, q, k, v, state, options);
    descend(q, grads.dq);
    descend(k, grads.dk);
    descend(v, grads.dv);
    descend(sink, grads.dsink_logits);
  }
  std::printf("loss fell from %.4f to %.4f\n", first, loss);
}
