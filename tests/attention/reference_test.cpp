// SPDX-License-Identifier: Apache-2.0
// The float64 reference itself, against numbers worked out by hand and against a second implementation that shares nothing with it.
#include <array>

#include <heed/attention.hpp>
#include <heed/reference.hpp>

#include "support/attention.hpp"

namespace heed::test {
namespace {

// q = 2, k = (3, 1), v = ((10, 0), (0, 100)), scale 1/2: scores (3, 1), weights (1, e^-2) / (1 + e^-2).
TEST(Reference, TwoKeysByHand) {
  const std::array<double, 1> q = {2.0};
  const std::array<double, 2> k = {3.0, 1.0};
  const std::array<double, 4> v = {10.0, 0.0, 0.0, 100.0};
  const AttentionState state = reference::attention_state(TensorView(q.data(), {1, 1, 1, 1}), TensorView(k.data(), {1, 2, 1, 1}),
                                                          TensorView(v.data(), {1, 2, 1, 2}), {.scale = 0.5});
  EXPECT_NEAR(element(state.out, {0, 0, 0, 0}), 8.807970779778824, 1e-14);
  EXPECT_NEAR(element(state.out, {0, 0, 0, 1}), 11.920292202211755, 1e-13);
  EXPECT_NEAR(element(state.lse, {0, 0, 0}), 3.1269280110429727, 1e-15);
}

// The same with a sink logit of 2: denominators gain e^2, so lse = log(e^3 + e + e^2).
TEST(Reference, SinkByHand) {
  const std::array<double, 1> q = {2.0};
  const std::array<double, 2> k = {3.0, 1.0};
  const std::array<double, 2> v = {10.0, -4.0};
  const std::array<float, 1> sink = {2.0F};
  const AttentionState state =
      reference::attention_state(TensorView(q.data(), {1, 1, 1, 1}), TensorView(k.data(), {1, 2, 1, 1}), TensorView(v.data(), {1, 2, 1, 1}),
                                 {.scale = 0.5, .sink_logits = TensorView(sink.data(), {1})});
  EXPECT_NEAR(element(state.lse, {0, 0, 0}), 3.40760596444438, 1e-14);
  EXPECT_NEAR(element(state.out, {0, 0, 0, 0}), 6.652409557748219 - 4.0 * 0.09003057317038046, 1e-14);
}

// One key: the weight is 1 whatever the score, so only dv is not zero.
TEST(Reference, OneKeyGradientByHand) {
  const std::array<double, 2> q = {0.3, -2.0}, k = {1.5, 0.25}, v = {4.0, 5.0}, dout = {7.0, -8.0};
  const Shape shape = {1, 1, 1, 2};
  const AttentionGrads grads = reference::attention_backward(TensorView(dout.data(), shape), TensorView(q.data(), shape),
                                                             TensorView(k.data(), shape), TensorView(v.data(), shape));
  EXPECT_EQ(element(grads.dv, {0, 0, 0, 0}), 7.0);
  EXPECT_EQ(element(grads.dv, {0, 0, 0, 1}), -8.0);
  EXPECT_EQ(max_abs(grads.dq), 0.0);
  EXPECT_EQ(max_abs(grads.dk), 0.0);
}

// Two keys of score 0 each, v = (1, 3), dout = 1: out = 2, ds = (1/2)(1 - 2), (1/2)(3 - 2) = (-1/2, 1/2).
// With q = 5, k = (2, -2), scale 1: dk = ds q = (-2.5, 2.5) and dq = sum ds k = -2; here the scores are made equal by a bias.
TEST(Reference, TwoKeyGradientByHand) {
  const std::array<double, 1> q = {5.0}, dout = {1.0};
  const std::array<double, 2> k = {2.0, -2.0}, v = {1.0, 3.0};
  const std::array<double, 2> bias = {-10.0, 10.0};
  const AttentionGrads grads = reference::attention_backward(TensorView(dout.data(), {1, 1, 1, 1}), TensorView(q.data(), {1, 1, 1, 1}),
                                                             TensorView(k.data(), {1, 2, 1, 1}), TensorView(v.data(), {1, 2, 1, 1}),
                                                             {.scale = 1.0, .bias = TensorView(bias.data(), {2})});
  EXPECT_DOUBLE_EQ(element(grads.dk, {0, 0, 0, 0}), -2.5);
  EXPECT_DOUBLE_EQ(element(grads.dk, {0, 1, 0, 0}), 2.5);
  EXPECT_DOUBLE_EQ(element(grads.dq, {0, 0, 0, 0}), -2.0);
  EXPECT_DOUBLE_EQ(element(grads.dbias, {0}), -0.5);
  EXPECT_DOUBLE_EQ(element(grads.dbias, {1}), 0.5);
  EXPECT_DOUBLE_EQ(element(grads.dv, {0, 1, 0, 0}), 0.5);
}

// Every option at once, against the tests' own straight-line implementation.
TEST(Reference, AgreesWithASecondImplementation) {
  const Tensor q = random_normal({2, 5, 6, 4}, DType::kFloat64, 1), k = random_normal({2, 9, 3, 4}, DType::kFloat64, 2);
  const Tensor v = random_normal({2, 9, 3, 7}, DType::kFloat64, 3), bias = random_normal({6, 1, 9}, DType::kFloat64, 4);
  const Tensor slopes = random_normal({2, 6}, DType::kFloat64, 5), sinks = random_normal({6}, DType::kFloat64, 6);
  const std::array<std::int64_t, 2> lengths = {9, 6};
  const AttentionOptions every = {.mask = Mask::causal() & Mask::window(4, kUnbounded),
                                  .scale = 0.7,
                                  .softcap = 1.5,
                                  .bias = bias,
                                  .alibi_slopes = slopes,
                                  .sink_logits = sinks,
                                  .kv_lengths = TensorView(lengths.data(), {2})};
  for (const Align align : {Align::kBottomRight, Align::kTopLeft}) {
    AttentionOptions options = every;
    options.align = align;
    const Forward got = run_forward(q, k, v, options);
    const Forward expected = plain_attention<double>(q, k, v, options, DType::kFloat64);
    EXPECT_LT(max_abs_difference(got.out, expected.out), 1e-14);
    EXPECT_LT(max_abs_difference(got.lse, expected.lse), 1e-14);
    EXPECT_LT(max_abs_difference(got.row_max, expected.row_max), 1e-14);
  }
}

// Heads are repeated, not tiled: query head h reads KV head h / G.
TEST(Reference, GroupedHeadsRepeat) {
  const Tensor q = random_normal({1, 3, 4, 2}, DType::kFloat64, 1);
  const Tensor k = random_normal({1, 5, 2, 2}, DType::kFloat64, 2), v = random_normal({1, 5, 2, 2}, DType::kFloat64, 3);
  const AttentionState grouped = reference::attention_state(q, k, v);
  for (std::int64_t h = 0; h < 4; ++h) {
    const AttentionState alone = reference::attention_state(
        slice(std::as_const(q).view(), 2, h, 1), slice(std::as_const(k).view(), 2, h / 2, 1), slice(std::as_const(v).view(), 2, h / 2, 1));
    EXPECT_TRUE(same_values(slice(std::as_const(grouped.out).view(), 2, h, 1), alone.out)) << h;
  }
}

TEST(Reference, WidensEveryTypeExactly) {
  for (const DType dtype : fast_dtypes()) {
    const Tensor q = random_normal({1, 3, 2, 5}, dtype, 1), k = random_normal({1, 4, 1, 5}, dtype, 2),
                 v = random_normal({1, 4, 1, 3}, dtype, 3);
    const AttentionState narrow = reference::attention_state(q, k, v);
    const AttentionState wide =
        reference::attention_state(convert(q, DType::kFloat64), convert(k, DType::kFloat64), convert(v, DType::kFloat64));
    EXPECT_EQ(narrow.out.dtype(), DType::kFloat64);
    EXPECT_TRUE(same_values(narrow.out, wide.out));
    EXPECT_TRUE(same_values(narrow.lse, wide.lse));
  }
}

}  // namespace
}  // namespace heed::test
