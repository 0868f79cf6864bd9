// SPDX-License-Identifier: Apache-2.0
// What the backward kernels promise beside accuracy: masked slots never matter, the same bits for any threads and neighbours, outputs in any
// strides, bounded memory.
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/kernels.hpp>

#include "attention/aligned_allocations.hpp"
#include "support/attention.hpp"

namespace heed::test {
namespace {

template <class Body>
void on_every_isa(const Body& body) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    body();
  }
}

struct Call {
  Tensor q, k, v, dout;
};

Call make_call(DType dtype, std::int64_t batch, std::int64_t q_tokens, std::int64_t kv_tokens, std::int64_t q_heads, std::int64_t kv_heads,
               std::int64_t dim, std::int64_t value_dim) {
  return {random_normal({batch, q_tokens, q_heads, dim}, dtype, 1), random_normal({batch, kv_tokens, kv_heads, dim}, dtype, 2),
          random_normal({batch, kv_tokens, kv_heads, value_dim}, dtype, 3), random_normal({batch, q_tokens, q_heads, value_dim}, dtype, 4)};
}

AttentionGrads gradients(const Call& c, const AttentionOptions& options) {
  return attention_backward(c.dout, c.q, c.k, c.v, attention_state(c.q, c.k, c.v, options), options);
}

/// Both absent, or bit for bit the same.
bool same_tensors(const Tensor& a, const Tensor& b) {
  if (a.data() == nullptr || b.data() == nullptr) return a.data() == b.data();
  const std::int64_t bytes = element_count(a.shape()) * size_bytes(a.dtype());
  return a.shape() == b.shape() && a.strides() == b.strides() && std::memcmp(a.data(), b.data(), static_cast<std::size_t>(bytes)) == 0;
}

bool same_gradients(const AttentionGrads& a, const AttentionGrads& b) {
  return same_tensors(a.dq, b.dq) && same_tensors(a.dk, b.dk) && same_tensors(a.dv, b.dv) && same_tensors(a.dbias, b.dbias) &&
         same_tensors(a.dsink_logits, b.dsink_logits);
}

/// Tokens [begin, end) of a tensor [B, L, H, D] filled with `value`.
Tensor poison(const Tensor& source, std::int64_t begin, std::int64_t end, double value) {
  Tensor wide = convert(source, DType::kFloat32);
  const std::int64_t row = wide.shape()[2] * wide.shape()[3];
  for (std::int64_t b = 0; b < wide.shape()[0]; ++b) {
    for (std::int64_t n = (b * wide.shape()[1] + begin) * row; n < (b * wide.shape()[1] + end) * row; ++n) {
      wide.data_as<float>()[n] = static_cast<float>(value);
    }
  }
  return convert(wide, source.dtype());
}

TensorView tokens(const Tensor& x, std::int64_t begin, std::int64_t end) { return slice(x.view(), 1, begin, end - begin); }

struct Hidden {
  const char* name;
  AttentionOptions options;
  std::int64_t begin, end;  ///< keys that no query sees
};

TEST(BackwardPoison, KeysThatNobodySees) {
  constexpr std::int64_t kQueries = 60, kKeys = 200;
  const std::array<std::int32_t, 2> lengths = {130, 130};
  std::array<std::int64_t, kKeys> ids{};
  for (std::size_t j = 100; j < kKeys; ++j) ids[j] = 1;
  Tensor bias = Tensor::zeros(DType::kFloat32, {kKeys});
  for (std::int64_t j = 60; j < 70; ++j) bias.data_as<float>()[j] = -static_cast<float>(kInfinity);
  const std::array<Hidden, 5> cases = {Hidden{"lengths", {.kv_lengths = TensorView(lengths.data(), {2})}, 130, 200},
                                       Hidden{"window", {.mask = Mask::window(20, 0)}, 0, 120},
                                       Hidden{"top-left causal", {.mask = Mask::causal(), .align = Align::kTopLeft}, 60, 200},
                                       Hidden{"documents", {.mask = Mask::documents(TensorView(ids.data(), {kKeys}))}, 0, 100},
                                       Hidden{"bias of -inf", {.bias = bias}, 60, 70}};
  on_every_isa([&] {
    for (std::size_t n = 0; n < cases.size(); ++n) {
      const Hidden& h = cases[n];
      const DType dtype = fast_dtypes()[n % 3];
      const Call c = make_call(dtype, 2, kQueries, kKeys, 2, 1, 12, 20);
      SCOPED_TRACE(std::string(h.name) + ", " + to_string(dtype));
      const AttentionGrads clean = gradients(c, h.options);
      EXPECT_EQ(max_abs(tokens(clean.dk, h.begin, h.end)), 0.0);
      EXPECT_EQ(max_abs(tokens(clean.dv, h.begin, h.end)), 0.0);
      EXPECT_GT(max_abs(clean.dk), 0.0);
      for (const double value : {std::nan(""), kInfinity}) {
        const Call bad = {c.q.clone(), poison(c.k, h.begin, h.end, value), poison(c.v, h.begin, h.end, value), c.dout.clone()};
        EXPECT_TRUE(same_gradients(gradients(bad, h.options), clean)) << value;
      }
    }
  });
}

// Under a causal mask key j hears from the queries at and behind it only, and query i from the keys up to it.
TEST(BackwardPoison, StaysWithinWhatSeesIt) {
  constexpr std::int64_t kTokens = 150, kRow = 70;
  on_every_isa([&] {
    const Call c = make_call(DType::kFloat32, 1, kTokens, kTokens, 2, 1, 9, 8);
    const AttentionOptions options = {.mask = Mask::causal()};
    const AttentionGrads clean = gradients(c, options);
    for (const bool in_dout : {false, true}) {  // a query's row, or the gradient that comes to it
      Call bad = {in_dout ? c.q.clone() : poison(c.q, kRow, kRow + 1, std::nan("")), c.k.clone(), c.v.clone(),
                  in_dout ? poison(c.dout, kRow, kRow + 1, kInfinity) : c.dout.clone()};
      const AttentionGrads got = gradients(bad, options);
      EXPECT_TRUE(same_values(tokens(got.dq, 0, kRow), tokens(clean.dq, 0, kRow)));
      EXPECT_TRUE(same_values(tokens(got.dq, kRow + 1, kTokens), tokens(clean.dq, kRow + 1, kTokens)));
      EXPECT_TRUE(same_values(tokens(got.dk, kRow + 1, kTokens), tokens(clean.dk, kRow + 1, kTokens)));
      EXPECT_TRUE(same_values(tokens(got.dv, kRow + 1, kTokens), tokens(clean.dv, kRow + 1, kTokens)));
      EXPECT_FALSE(std::isfinite(element(got.dv, {0, kRow, 0, 0})) && std::isfinite(element(got.dk, {0, kRow, 0, 0})));
    }
    const Call bad_key = {c.q.clone(), poison(c.k, kRow, kRow + 1, std::nan("")), poison(c.v, kRow, kRow + 1, kInfinity), c.dout.clone()};
    const AttentionGrads got = gradients(bad_key, options);
    EXPECT_TRUE(same_values(tokens(got.dq, 0, kRow), tokens(clean.dq, 0, kRow)));
    EXPECT_TRUE(std::isnan(element(got.dq, {0, kRow, 0, 0})));
  });
}

// Rows without weights: gradients 0, and whatever they hold reaches nobody.
TEST(BackwardPoison, RowsWithoutKeys) {
  on_every_isa([] {
    const Call c = make_call(DType::kFloat32, 1, 90, 40, 2, 2, 8, 8);
    const Tensor sinks = random_normal({2}, DType::kFloat32, 5);  // such rows see their sink alone, and their lse is finite
    const Call bad = {poison(c.q, 0, 50, std::nan("")), c.k.clone(), c.v.clone(), poison(c.dout, 0, 50, kInfinity)};
    for (const TensorView& sink_logits : {TensorView(), sinks.view()}) {
      const AttentionOptions options = {.mask = Mask::causal(), .sink_logits = sink_logits};  // queries 0 to 49 sit before every key
      const AttentionGrads clean = gradients(c, options);
      EXPECT_EQ(max_abs(tokens(clean.dq, 0, 50)), 0.0);
      EXPECT_TRUE(same_gradients(gradients(bad, options), clean)) << (sink_logits ? "with sinks" : "without");
    }
  });
}

// Several ranges of keys, and every way in which tasks can share a bias.
TEST(BackwardBits, AnyNumberOfThreads) {
  const int before = get_num_threads();
  const std::vector<Shape> biases = {{2, 4, 110, 700}, {1, 1, 110, 700}, {4, 1, 700}, {110, 1}, {2, 1, 1, 700}};
  on_every_isa([&] {
    const Call c = make_call(DType::kFloat32, 2, 110, 700, 4, 2, 8, 16);
    const Tensor sinks = random_normal({4}, DType::kFloat32, 7);
    const std::array<std::int64_t, 2> lengths = {700, 450};
    std::vector<AttentionOptions> all = {{.mask = Mask::causal()},
                                         {.mask = Mask::causal() & Mask::window(200, 0), .sink_logits = sinks},
                                         {.kv_lengths = TensorView(lengths.data(), {2})}};
    std::vector<Tensor> kept;
    for (const Shape& shape : biases) kept.push_back(random_normal(shape, DType::kFloat32, 8));
    for (const Tensor& bias : kept) all.push_back({.bias = bias});
    all.push_back({.bias = kept[1], .kv_lengths = TensorView(lengths.data(), {2})});
    for (const AttentionOptions& options : all) {
      set_num_threads(1);
      const AttentionGrads one = gradients(c, options);
      for (const int threads : {2, 3, 8}) {
        set_num_threads(threads);
        EXPECT_TRUE(same_gradients(gradients(c, options), one)) << threads << " threads, bias " << to_string(options.bias.shape());
      }
    }
  });
  set_num_threads(before);
}

TEST(BackwardBits, BatchNeighbours) {
  on_every_isa([] {
    const Call c = make_call(DType::kFloat32, 3, 100, 600, 2, 1, 16, 16);
    const AttentionGrads together = gradients(c, {.mask = Mask::causal()});
    for (std::int64_t b = 0; b < 3; ++b) {
      const auto entry = [b](const Tensor& x) { return convert(slice(x.view(), 0, b, 1), x.dtype()); };
      const Call one = {entry(c.q), entry(c.k), entry(c.v), entry(c.dout)};
      const AttentionGrads alone = gradients(one, {.mask = Mask::causal()});
      EXPECT_TRUE(same_values(alone.dq, entry(together.dq)) && same_values(alone.dk, entry(together.dk)) &&
                  same_values(alone.dv, entry(together.dv)));
    }
  });
}

// Scores of 102400 and one 256 below it: float32's lse has a resolution of 2^-7 there, so weights, and with them dv, are good to 1 %.
TEST(BackwardScores, HugeLogits) {
  on_every_isa([] {
    Call c = make_call(DType::kFloat32, 1, 20, 3, 1, 1, 1, 4);
    for (std::int64_t i = 0; i < 20; ++i) c.q.data_as<float>()[i] = 256.0F;
    for (std::int64_t j = 0; j < 3; ++j) c.k.data_as<float>()[j] = j == 2 ? 399.0F : 400.0F;
    const AttentionGrads got = gradients(c, {.scale = 1.0});
    const AttentionGrads exact = reference::attention_backward(c.dout, c.q, c.k, c.v, {.scale = 1.0});
    EXPECT_LE(max_abs_difference(got.dv, exact.dv), 0.01 * max_abs(exact.dv));
    EXPECT_TRUE(std::isfinite(max_abs(got.dq)) && std::isfinite(max_abs(got.dk)));
  });
}

// Outputs may lie anywhere; what is between their elements keeps its value.
TEST(BackwardInto, AnyStrides) {
  on_every_isa([] {
    const Call c = make_call(DType::kFloat32, 2, 50, 70, 4, 2, 24, 20);
    const Tensor bias = random_normal({4, 50, 70}, DType::kFloat32, 5), sinks = random_normal({4}, DType::kFloat32, 6);
    const AttentionOptions options = {.bias = bias, .sink_logits = sinks};
    const AttentionState state = attention_state(c.q, c.k, c.v, options);
    const AttentionGrads expected = attention_backward(c.dout, c.q, c.k, c.v, state, options);
    const float untouched = 77.0F;
    Tensor memory[5];
    MutableTensorView views[5];
    const TensorView like[5] = {c.q, c.k, c.v, bias, sinks};
    for (int n = 0; n < 5; ++n) {  // every second element, axes reversed
      std::int64_t stride = 2;
      Strides strides = like[n].strides();
      for (int axis = 0; axis < like[n].rank(); ++axis) {
        strides[axis] = stride;
        stride *= like[n].size(axis);
      }
      memory[n] = Tensor(DType::kFloat32, {stride});
      for (std::int64_t i = 0; i < stride; ++i) memory[n].data_as<float>()[i] = untouched;
      views[n] = MutableTensorView(memory[n].data(), DType::kFloat32, like[n].shape(), strides);
    }
    attention_backward_into({.dq = views[0], .dk = views[1], .dv = views[2], .dbias = views[3], .dsink_logits = views[4]}, c.dout, c.q, c.k,
                            c.v, state.out, state.lse, options);
    EXPECT_TRUE(same_values(views[0], expected.dq) && same_values(views[1], expected.dk) && same_values(views[2], expected.dv));
    EXPECT_TRUE(same_values(views[3], expected.dbias) && same_values(views[4], expected.dsink_logits));
    for (const Tensor& m : memory) {
      for (std::int64_t i = 1; i < m.shape()[0]; i += 2) ASSERT_EQ(m.data_as<float>()[i], untouched);
    }
  });
}

TEST(BackwardInto, RefusesWhatDoesNotFit) {
  const Call c = make_call(DType::kFloat32, 1, 4, 5, 2, 2, 8, 8);
  const AttentionState state = attention_state(c.q, c.k, c.v);
  Tensor dq = c.q.clone(), dk = c.k.clone(), dv = c.v.clone(), extra(DType::kFloat32, {2});
  Tensor narrow(DType::kBFloat16, c.k.shape());
  const auto message = [&](const AttentionGradOutputs& gradients, const TensorView& lse) {
    try {
      attention_backward_into(gradients, c.dout, c.q, c.k, c.v, state.out, lse);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_NE(message({.dq = dq, .dk = dk}, state.lse).find("dv"), std::string::npos);
  EXPECT_NE(message({.dq = dq, .dk = narrow, .dv = dv}, state.lse).find("dk"), std::string::npos);
  EXPECT_NE(message({.dq = dq, .dk = dk, .dv = dk}, state.lse).find("overlap"), std::string::npos);
  EXPECT_NE(message({.dq = dq, .dk = dk, .dv = dv, .dsink_logits = extra}, state.lse).find("dsink_logits"), std::string::npos);
  EXPECT_NE(message({.dq = dq, .dk = dk, .dv = dv}, convert(state.lse, DType::kFloat64)).find("lse"), std::string::npos);
  EXPECT_EQ(message({.dq = dq, .dk = dk, .dv = dv}, state.lse), "no error");
}

TEST(BackwardInto, EmptySizes) {
  on_every_isa([] {
    for (const auto& [batch, q_tokens, kv_tokens] : {std::array<std::int64_t, 3>{0, 3, 4}, {2, 0, 4}, {2, 3, 0}}) {
      const Call c = make_call(DType::kFloat32, batch, q_tokens, kv_tokens, 2, 1, 8, 8);
      const Tensor sinks = random_normal({2}, DType::kFloat32, 9), bias = random_normal({2, 1, 1}, DType::kFloat32, 9);
      const AttentionGrads got = gradients(c, {.bias = bias, .sink_logits = sinks});
      for (const Tensor* gradient : {&got.dq, &got.dk, &got.dv, &got.dbias, &got.dsink_logits}) EXPECT_EQ(max_abs(*gradient), 0.0);
    }
  });
}

// Packed tensors without a sequence: zeros in their place. A float64 copy of q, k and v would take 24 times kElements bytes.
TEST(BackwardMemory, NoSequenceNoCopies) {
  constexpr std::int64_t kElements = std::int64_t{1024} * 64;
  const Tensor x = random_normal({1024, 1, 64}, DType::kFloat32, 1), start = Tensor::zeros(DType::kInt64, {1});
  const Tensor sinks = random_normal({1}, DType::kFloat32, 2);
  const AttentionOptions options = {.sink_logits = sinks};
  const AttentionState state = attention_varlen_state(x, x, x, start, start, options);
  Tensor dq = x.clone(), dk = x.clone(), dv = x.clone(), dsinks = sinks.clone();
  const std::size_t before = aligned_bytes();
  attention_varlen_backward_into({.dq = dq, .dk = dk, .dv = dv, .dsink_logits = dsinks}, x, x, x, x, state.out, state.lse, start, start,
                                 options);
  EXPECT_LT(aligned_bytes() - before, std::size_t{kElements});
  for (const Tensor* gradient : {&dq, &dk, &dv, &dsinks}) EXPECT_EQ(max_abs(*gradient), 0.0);
}

// Beside inputs and outputs at most 4 * L * D floats; the mask's plan is not counted, it grows with L alone.
TEST(BackwardMemory, GrowsWithLengthTimesHeadDim) {
  constexpr std::int64_t kTokens = 65536, kDim = 64;
  const Call c = make_call(DType::kFloat32, 1, kTokens, kTokens, 1, 1, kDim, kDim);
  const AttentionOptions options = {.mask = Mask::window(64, 0)};
  const AttentionState state = attention_state(c.q, c.k, c.v, options);
  Tensor dq(DType::kFloat32, c.q.shape()), dk(DType::kFloat32, c.q.shape()), dv(DType::kFloat32, c.q.shape());
  const std::size_t before = aligned_bytes();
  attention_backward_into({.dq = dq, .dk = dk, .dv = dv}, c.dout, c.q, c.k, c.v, state.out, state.lse, options);
  EXPECT_LE(aligned_bytes() - before, std::size_t{4 * kTokens * kDim * 4});
}

}  // namespace
}  // namespace heed::test
