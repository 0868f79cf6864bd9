// SPDX-License-Identifier: Apache-2.0
// Gradients of the reference against central differences of its forward pass, for every option, one element at a time.
//
// Step 2^-14: the difference quotient is off by h^2 / 6 of a third derivative (about 1e-9) and by roundoff / h (about 1e-11).
#include <array>
#include <functional>

#include <heed/attention.hpp>
#include <heed/kernels.hpp>
#include <heed/reference.hpp>

#include "support/attention.hpp"

namespace heed::test {
namespace {

constexpr double kStep = 0x1p-14;
constexpr double kTolerance = 2e-7;

struct Inputs {
  Tensor q, k, v, dout;
  Tensor bias, sinks, slopes;
};

Inputs make_inputs(std::int64_t batch = 2, std::int64_t q_tokens = 3, std::int64_t kv_tokens = 5) {
  const DType wide = DType::kFloat64;
  return {random_normal({batch, q_tokens, 4, 3}, wide, 11),
          random_normal({batch, kv_tokens, 2, 3}, wide, 12),
          random_normal({batch, kv_tokens, 2, 2}, wide, 13),
          random_normal({batch, q_tokens, 4, 2}, wide, 14),
          {},
          {},
          {}};
}

/// sum(out * dout)
double loss(const Inputs& s, const AttentionOptions& options) {
  const AttentionState state = reference::attention_state(s.q, s.k, s.v, options);
  double sum = 0.0;
  for_each_index(state.out.shape(), [&](const Extents& index) { sum += at(state.out, index) * at(s.dout, index); });
  return sum;
}

/// Moves every element of `tensor` both ways and compares the slope of the loss with `gradient`.
void expect_slope(const char* name, Inputs& inputs, Tensor& tensor, const Tensor& gradient, const AttentionOptions& options) {
  ASSERT_EQ(gradient.shape(), tensor.shape()) << name;
  for (std::int64_t n = 0; n < element_count(tensor.shape()); ++n) {
    double& x = tensor.data_as<double>()[n];
    const double saved = x;
    if (!std::isfinite(saved)) continue;
    x = saved + kStep;
    const double above = loss(inputs, options);
    x = saved - kStep;
    const double below = loss(inputs, options);
    x = saved;
    EXPECT_NEAR(gradient.data_as<double>()[n], (above - below) / (2 * kStep), kTolerance) << name << " element " << n;
  }
}

void check_gradients(Inputs& s, const AttentionOptions& options) {
  const AttentionGrads grads = reference::attention_backward(s.dout, s.q, s.k, s.v, options);
  expect_slope("dq", s, s.q, grads.dq, options);
  expect_slope("dk", s, s.k, grads.dk, options);
  expect_slope("dv", s, s.v, grads.dv, options);
  if (options.bias) expect_slope("dbias", s, s.bias, grads.dbias, options);
  if (options.sink_logits) expect_slope("dsink_logits", s, s.sinks, grads.dsink_logits, options);
  EXPECT_EQ(grads.dbias.data() != nullptr, static_cast<bool>(options.bias));
  EXPECT_EQ(grads.dsink_logits.data() != nullptr, static_cast<bool>(options.sink_logits));
}

TEST(Gradients, NoOptions) {
  Inputs s = make_inputs();
  check_gradients(s, {});
}

TEST(Gradients, Scale) {
  Inputs s = make_inputs();
  check_gradients(s, {.scale = -0.3});
  check_gradients(s, {.scale = 0.0});
}

TEST(Gradients, Softcap) {
  Inputs s = make_inputs();
  check_gradients(s, {.scale = 2.0, .softcap = 1.25});
}

TEST(Gradients, Masks) {
  Inputs s = make_inputs();
  check_gradients(s, {.mask = Mask::causal()});
  check_gradients(s, {.mask = Mask::causal(), .align = Align::kTopLeft});
  check_gradients(s, {.mask = Mask::window(1, 1) | Mask::sink_tokens(1)});
  check_gradients(s, {.mask = Mask::per_head({Mask::none(), Mask::causal(), ~Mask::causal(), Mask::sliding_window(2)})});
}

TEST(Gradients, MoreQueriesThanKeysSoSomeRowsSeeNothing) {
  Inputs s = make_inputs(1, 5, 3);
  check_gradients(s, {.mask = Mask::causal()});
}

TEST(Gradients, Alibi) {
  Inputs s = make_inputs();
  s.slopes = random_normal({2, 4}, DType::kFloat64, 20);
  check_gradients(s, {.mask = Mask::causal(), .alibi_slopes = s.slopes});
}

TEST(Gradients, BiasOfEveryBroadcastShape) {
  const std::array<Shape, 9> shapes = {Shape{2, 4, 3, 5}, Shape{1, 4, 3, 5}, Shape{2, 1, 3, 5}, Shape{2, 4, 1, 5}, Shape{2, 4, 3, 1},
                                       Shape{4, 1, 1},    Shape{3, 5},       Shape{5},          Shape{1, 1, 1, 1}};
  for (const Shape& shape : shapes) {
    SCOPED_TRACE(to_string(shape));
    Inputs s = make_inputs();
    s.bias = random_normal(shape, DType::kFloat64, 21);
    check_gradients(s, {.softcap = 3.0, .bias = s.bias});
  }
}

TEST(Gradients, BiasOfMinusInfinityHasNone) {
  Inputs s = make_inputs();
  s.bias = random_normal({3, 5}, DType::kFloat64, 21);
  for (const int n : {0, 7, 10, 11, 12, 13, 14}) s.bias.data_as<double>()[n] = -kInfinity;  // the last query sees nothing
  check_gradients(s, {.bias = s.bias});
  const AttentionGrads grads = reference::attention_backward(s.dout, s.q, s.k, s.v, {.bias = s.bias});
  for (const int n : {0, 7, 10, 14}) EXPECT_EQ(grads.dbias.data_as<double>()[n], 0.0);
}

TEST(Gradients, Sinks) {
  Inputs s = make_inputs();
  s.sinks = random_normal({4}, DType::kFloat64, 22);
  check_gradients(s, {.mask = Mask::causal(), .sink_logits = s.sinks});
}

TEST(Gradients, QueryOffsetAndLengths) {
  Inputs s = make_inputs();
  const std::array<std::int64_t, 2> offsets = {3, -1};
  const std::array<std::int32_t, 2> lengths = {5, 2};
  check_gradients(s, {.mask = Mask::causal(), .query_offset = TensorView(offsets.data(), {2})});
  check_gradients(s, {.mask = Mask::causal(), .kv_lengths = TensorView(lengths.data(), {2})});
}

TEST(Gradients, Dropout) {
  Inputs s = make_inputs();
  check_gradients(s, {.dropout = Dropout{.p = 0.4, .seed = 99}});
}

TEST(Gradients, EverythingTogether) {
  Inputs s = make_inputs();
  s.bias = random_normal({4, 1, 5}, DType::kFloat64, 21);
  s.sinks = random_normal({4}, DType::kFloat64, 22);
  s.slopes = random_normal({4}, DType::kFloat64, 20);
  const std::array<std::int64_t, 2> lengths = {5, 4};
  check_gradients(s, {.mask = Mask::causal() & Mask::window(3, kUnbounded),
                      .align = Align::kBottomRight,
                      .scale = 0.8,
                      .softcap = 2.0,
                      .bias = s.bias,
                      .alibi_slopes = s.slopes,
                      .sink_logits = s.sinks,
                      .kv_lengths = TensorView(lengths.data(), {2}),
                      .dropout = Dropout{.p = 0.25, .seed = 5}});
}

// heed::attention_backward gives gradients in the arguments' types and memory order; for float64 those of the reference.
TEST(Gradients, PublicCallFollowsTheArguments) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64}) {
    const Tensor q_bhld = random_normal({2, 4, 6, 8}, dtype, 1);
    const TensorView q = permute(std::as_const(q_bhld).view(), {0, 2, 1, 3});
    const Tensor k = random_normal({2, 9, 2, 8}, dtype, 2), v = random_normal({2, 9, 2, 5}, dtype, 3),
                 dout = random_normal({2, 6, 4, 5}, dtype, 4);
    const DType parameters = dtype == DType::kFloat64 ? dtype : DType::kFloat32;
    const Tensor bias = random_normal({4, 6, 9}, dtype, 5), sinks = random_normal({4}, parameters, 6);
    const AttentionOptions options = {.mask = Mask::causal(), .bias = bias, .sink_logits = sinks};
    const AttentionGrads grads = attention_backward(dout, q, k, v, attention_state(q, k, v, options), options);
    EXPECT_EQ(grads.dq.dtype(), dtype);
    EXPECT_EQ(grads.dq.strides(), q.strides());
    EXPECT_EQ(grads.dk.dtype(), dtype);
    EXPECT_EQ(grads.dbias.dtype(), dtype);
    EXPECT_EQ(grads.dsink_logits.dtype(), parameters);
    if (dtype != DType::kFloat64) continue;
    const AttentionGrads exact = reference::attention_backward(dout, q, k, v, options);
    EXPECT_TRUE(same_values(grads.dq, exact.dq) && same_values(grads.dk, exact.dk) && same_values(grads.dv, exact.dv));
    EXPECT_TRUE(same_values(grads.dbias, exact.dbias) && same_values(grads.dsink_logits, exact.dsink_logits));
  }
}

TEST(Gradients, AnyNumberOfThreadsGivesTheSameBits) {
  Inputs s = make_inputs(3, 90, 320);  // enough work for three threads to be woken
  s.sinks = random_normal({4}, DType::kFloat64, 22);
  const int before = get_num_threads();
  set_num_threads(1);
  const AttentionGrads one = reference::attention_backward(s.dout, s.q, s.k, s.v, {.sink_logits = s.sinks});
  for (const int threads : {2, 3}) {
    set_num_threads(threads);
    const AttentionGrads many = reference::attention_backward(s.dout, s.q, s.k, s.v, {.sink_logits = s.sinks});
    EXPECT_TRUE(same_values(one.dq, many.dq) && same_values(one.dk, many.dk) && same_values(one.dv, many.dv));
    EXPECT_TRUE(same_values(one.dsink_logits, many.dsink_logits));
  }
  set_num_threads(before);
}

}  // namespace
}  // namespace heed::test
