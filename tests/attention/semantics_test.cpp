// SPDX-License-Identifier: Apache-2.0
// The rules of attention that bite, one test each, on every ISA of this machine, for every fast type, on both paths.
#include <array>
#include <atomic>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/kernels.hpp>
#include <heed/kv_cache.hpp>

#include "support/attention.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace heed::test {
namespace {

/// Narrow: up to 15 packed rows. Wide: more; extra query heads of one KV head make any call wide.
enum class Kind { kNarrow, kWide };

void for_each_type_and_path(const std::function<void(DType, Kind)>& f) {
  for (const DType dtype : fast_dtypes()) {
    for (const Kind kind : {Kind::kNarrow, Kind::kWide}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + (kind == Kind::kWide ? ", wide" : ", narrow"));
      f(dtype, kind);
    }
  }
}

/// f(dtype, kind) on every ISA, with the ISA forced.
void everywhere(const std::function<void(DType, Kind)>& f) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    for_each_type_and_path(f);
  }
}

/// Query heads per KV head that put `q_tokens` queries on a path. Narrow needs q_tokens <= 15.
std::int64_t group_for(Kind kind, std::int64_t q_tokens) { return kind == Kind::kWide ? (16 + q_tokens - 1) / q_tokens : 1; }

Tensor filled(DType dtype, const Shape& shape, double value) {
  Tensor wide(DType::kFloat64, shape);
  std::fill_n(wide.data_as<double>(), element_count(shape), value);
  return convert(wide, dtype);
}

/// V of which key j is the j-th unit vector: `out` then shows the weights. [B, Lk, Hkv, Lk]
Tensor identity_values(DType dtype, std::int64_t batch, std::int64_t kv_tokens, std::int64_t kv_heads = 1) {
  Tensor wide = Tensor::zeros(DType::kFloat64, {batch, kv_tokens, kv_heads, std::max<std::int64_t>(kv_tokens, 1)});
  for_each_index({batch, kv_tokens, kv_heads},
                 [&](const Extents& n) { wide.data_as<double>()[((n[0] * kv_tokens + n[1]) * kv_heads + n[2]) * kv_tokens + n[1]] = 1.0; });
  return convert(wide, dtype);
}

/// Who sees whom, drawn from the weights of a real call with all scores equal. Every head and batch entry b must agree.
std::string picture(DType dtype, Kind kind, std::int64_t q_tokens, std::int64_t kv_tokens, const AttentionOptions& options,
                    std::int64_t batch = 1, std::int64_t b = 0) {
  const std::int64_t heads = group_for(kind, q_tokens);
  const Tensor q = filled(dtype, {batch, q_tokens, heads, 4}, 0.0), k = filled(dtype, {batch, kv_tokens, 1, 4}, 1.0);
  const Tensor weights = attention(q, k, identity_values(dtype, batch, kv_tokens), options);
  std::string text;
  for (std::int64_t i = 0; i < q_tokens; ++i) {
    if (i > 0) text += '/';
    for (std::int64_t j = 0; j < kv_tokens; ++j) {
      const bool seen = element(weights, {b, i, 0, j}) > 0.0;
      for (std::int64_t h = 1; h < heads; ++h) EXPECT_EQ(element(weights, {b, i, h, j}) > 0.0, seen) << "head " << h;
      text += seen ? '1' : '0';
    }
  }
  return text;
}

using test::same_bits;

bool same_bits(const Forward& a, const Forward& b) {
  return same_bits(a.out, b.out) && same_bits(a.lse, b.lse) && same_bits(a.row_max, b.row_max);
}

TensorView batch_entry(const Tensor& tensor, std::int64_t b) { return slice(tensor.view(), 0, b, 1); }
TensorView query(const Tensor& tensor, std::int64_t i) { return slice(tensor.view(), 1, i, 1); }

TEST(Semantics, Row01_PositionsAreExplicit) {
  const std::array<std::int64_t, 2> lengths = {4, 2}, offsets = {1, -1};
  everywhere([&](DType dtype, Kind kind) {
    const auto causal = [&](std::int64_t lq, std::int64_t lk, Align align) {
      return picture(dtype, kind, lq, lk, {.mask = Mask::causal(), .align = align});
    };
    EXPECT_EQ(causal(2, 4, Align::kBottomRight), "1110/1111");
    EXPECT_EQ(causal(3, 2, Align::kBottomRight), "00/10/11");
    EXPECT_EQ(causal(2, 4, Align::kTopLeft), "1000/1100");
    EXPECT_EQ(causal(3, 2, Align::kTopLeft), "10/11/11");
    EXPECT_EQ(causal(3, 3, Align::kBottomRight), "100/110/111");
    EXPECT_EQ(causal(3, 3, Align::kTopLeft), "100/110/111");
    // Per sequence, the last query sits at its own last key.
    const AttentionOptions by_length = {.mask = Mask::causal(), .kv_lengths = TensorView(lengths.data(), {2})};
    EXPECT_EQ(picture(dtype, kind, 2, 4, by_length, 2, 0), "1110/1111");
    EXPECT_EQ(picture(dtype, kind, 2, 4, by_length, 2, 1), "1000/1100");
    // An offset overrides align.
    const AttentionOptions by_offset = {.mask = Mask::causal(), .align = Align::kTopLeft, .query_offset = TensorView(offsets.data(), {2})};
    EXPECT_EQ(picture(dtype, kind, 2, 4, by_offset, 2, 0), "1100/1110");
    EXPECT_EQ(picture(dtype, kind, 2, 4, by_offset, 2, 1), "0000/1000");
    // Windows, prefixes and documents count from the same position.
    EXPECT_EQ(picture(dtype, kind, 2, 4, {.mask = Mask::window(1, 0)}), "0110/0011");
    EXPECT_EQ(picture(dtype, kind, 2, 4, {.mask = Mask::window(1, 0), .align = Align::kTopLeft}), "1000/1100");
    EXPECT_EQ(picture(dtype, kind, 3, 4, {.mask = Mask::prefix_lm(2), .align = Align::kTopLeft}), "1100/1100/1110");
    const std::array<std::int32_t, 4> ids = {7, 7, 8, 8};
    const Mask documents = Mask::documents(TensorView(ids.data(), {4}));
    EXPECT_EQ(picture(dtype, kind, 2, 4, {.mask = documents}), "0011/0011");
    EXPECT_EQ(picture(dtype, kind, 2, 4, {.mask = documents, .align = Align::kTopLeft}), "1100/1100");
  });
}

TEST(Semantics, Row02_RowWithoutKeysIsZero) {
  everywhere([](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 3);
    const Tensor q = random_normal({2, 3, heads, 5}, dtype, 1), k = random_normal({2, 2, 1, 5}, dtype, 2),
                 v = random_normal({2, 2, 1, 7}, dtype, 3);
    const Forward some = run_forward(q, k, v, {.mask = Mask::causal()});  // query 0 sits before every key
    EXPECT_EQ(max_abs(query(some.out, 0)), 0.0);
    EXPECT_TRUE(same_values(slice(some.lse.view(), 2, 0, 1), filled(DType::kFloat32, {2, heads, 1}, -kInfinity)));
    EXPECT_TRUE(same_values(slice(some.row_max.view(), 2, 0, 1), filled(DType::kFloat32, {2, heads, 1}, -kInfinity)));
    EXPECT_GT(max_abs(query(some.out, 1)), 0.0);

    const Tensor none(dtype, {2, 0, 1, 5}), no_values(dtype, {2, 0, 1, 7});
    const Forward empty = run_forward(q, none, no_values, {});
    EXPECT_EQ(max_abs(empty.out), 0.0);
    EXPECT_TRUE(same_values(empty.lse, filled(DType::kFloat32, {2, heads, 3}, -kInfinity)));
    const std::array<std::int32_t, 2> lengths = {0, 2};
    const Forward short_one = run_forward(q, k, v, {.kv_lengths = TensorView(lengths.data(), {2})});
    EXPECT_EQ(max_abs(batch_entry(short_one.out, 0)), 0.0);
    EXPECT_GT(max_abs(batch_entry(short_one.out, 1)), 0.0);

    EXPECT_EQ(attention(Tensor(dtype, {2, 0, heads, 5}), k, v).shape(), (Shape{2, 0, heads, 7}));
    EXPECT_EQ(attention(Tensor(dtype, {0, 3, heads, 5}), Tensor(dtype, {0, 2, 1, 5}), Tensor(dtype, {0, 2, 1, 7})).shape(),
              (Shape{0, 3, heads, 7}));

    const Tensor dout = random_normal({2, 3, heads, 7}, dtype, 4);
    const AttentionOptions causal = {.mask = Mask::causal()};
    const AttentionGrads grads = attention_backward(dout, q, k, v, attention_state(q, k, v, causal), causal);
    EXPECT_EQ(max_abs(query(grads.dq, 0)), 0.0);
    EXPECT_TRUE(std::isfinite(max_abs(grads.dk)) && std::isfinite(max_abs(grads.dv)));
    const AttentionGrads nothing = attention_backward(dout, q, none, no_values, attention_state(q, none, no_values));
    EXPECT_EQ(max_abs(nothing.dq), 0.0);
  });
}

// One query, two keys: every step of the order moves the weights, so another order gives other numbers.
TEST(Semantics, Row03_OrderOfOperations) {
  const double scale = 0.5, cap = 2.0, slope = 0.125, sink = 0.25;
  const std::array<float, 2> biases = {-0.5F, 0.75F};
  const auto score = [&](double dot, double bias, double distance) { return cap * std::tanh(scale * dot / cap) + bias - slope * distance; };
  const double e0 = std::exp(score(6.0, biases[0], 1.0)), e1 = std::exp(score(2.0, biases[1], 0.0));
  const double sum = e0 + e1 + std::exp(sink);
  everywhere([&](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 1);
    const Tensor q = filled(dtype, {1, 1, heads, 1}, 2.0);
    Tensor k = filled(DType::kFloat32, {1, 2, 1, 1}, 3.0);
    k.data_as<float>()[1] = 1.0F;
    const Tensor slopes = filled(DType::kFloat32, {heads}, slope), sinks = filled(DType::kFloat32, {heads}, sink);
    const Forward got = run_forward(q, convert(k, dtype), identity_values(dtype, 1, 2),
                                    {.mask = Mask::causal(),
                                     .scale = scale,
                                     .softcap = cap,
                                     .bias = TensorView(biases.data(), {2}),
                                     .alibi_slopes = slopes,
                                     .sink_logits = sinks});
    // Rounding the weights and the output, and 16-bit's own sums: a few units of the type.
    const double unit = roundoff(dtype) + 0x1p-22;
    for (std::int64_t h = 0; h < heads; ++h) {
      EXPECT_NEAR(element(got.out, {0, 0, h, 0}), e0 / sum, 2 * unit);
      EXPECT_NEAR(element(got.out, {0, 0, h, 1}), e1 / sum, 2 * unit);
      EXPECT_NEAR(element(got.lse, {0, h, 0}), std::log(sum), 1e-6);
      EXPECT_NEAR(element(got.row_max, {0, h, 0}), std::log(std::max(e0, e1)), 1e-6);
    }
  });
}

// A scale of 0 makes every visible score 0 and must not touch the masked ones: -inf * 0 is NaN. A negative one turns the order round.
TEST(Semantics, Row03_ScaleMayBeZeroOrNegative) {
  for_each_type_and_path([](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 3);
    for (const double scale : {0.0, -0.8}) {
      check_against_exact(random_normal({1, 3, heads, 9}, dtype, 1), random_normal({1, 77, 1, 9}, dtype, 2),
                          random_normal({1, 77, 1, 6}, dtype, 3), {.mask = Mask::causal() & Mask::window(30, 0), .scale = scale});
    }
  });
}

/// A call in which no query, in any batch entry, sees the `hidden` keys.
class Poisoned {
 public:
  Poisoned(const char* label, const AttentionOptions& masking, const std::vector<std::int64_t>& unseen)
      : name(label), options(masking), hidden(unseen) {}
  const char* name;
  AttentionOptions options;
  std::vector<std::int64_t> hidden;
};

constexpr std::int64_t kPoisonQueries = 5, kPoisonKeys = 200;

Tensor poison(const Tensor& source, const std::vector<std::int64_t>& keys, double value) {
  Tensor wide = convert(source, DType::kFloat32);
  for (const std::int64_t key : keys) {
    for_each_index({wide.shape()[0], wide.shape()[2], wide.shape()[3]}, [&](const Extents& n) {
      wide.data_as<float>()[((n[0] * wide.shape()[1] + key) * wide.shape()[2] + n[1]) * wide.shape()[3] + n[2]] = static_cast<float>(value);
    });
  }
  return convert(wide, source.dtype());
}

std::vector<std::int64_t> range(std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> values;
  for (std::int64_t n = begin; n < end; ++n) values.push_back(n);
  return values;
}

TEST(Semantics, Row04_MaskedSlotsNeverMatter) {
  const std::array<std::int32_t, 2> lengths = {130, 130};
  std::array<std::int64_t, kPoisonKeys> ids{};
  for (std::size_t j = 100; j < kPoisonKeys; ++j) ids[j] = 1;
  Tensor bias = Tensor::zeros(DType::kFloat32, {kPoisonKeys});
  for (std::int64_t j = 60; j < 70; ++j) bias.data_as<float>()[j] = -static_cast<float>(kInfinity);
  std::vector<Poisoned> cases;
  cases.emplace_back(Poisoned{"lengths", {.kv_lengths = TensorView(lengths.data(), {2})}, range(130, 200)});
  cases.emplace_back(Poisoned{"window", {.mask = Mask::window(20, 0)}, range(0, 175)});
  cases.emplace_back(Poisoned{"top-left causal", {.mask = Mask::causal(), .align = Align::kTopLeft}, range(5, 200)});
  cases.emplace_back(Poisoned{"documents", {.mask = Mask::documents(TensorView(ids.data(), {kPoisonKeys}))}, range(0, 100)});
  cases.emplace_back(Poisoned{"bias of -inf", {.bias = bias}, range(60, 70)});
  cases.emplace_back(Poisoned{"one key in a tile", {.mask = ~Mask::window(130, 0) & Mask::causal()}, {70, 71, 100, 199}});
  everywhere([&](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, kPoisonQueries);
    const Tensor q = random_normal({2, kPoisonQueries, heads, 24}, dtype, 1);
    const Tensor k = random_normal({2, kPoisonKeys, 1, 24}, dtype, 2), v = random_normal({2, kPoisonKeys, 1, 20}, dtype, 3);
    for (const Poisoned& c : cases) {
      SCOPED_TRACE(c.name);
      const Forward clean = run_forward(q, k, v, c.options);
      for (const double value : {std::nan(""), kInfinity, -kInfinity}) {
        const Tensor bad_k = poison(k, c.hidden, value), bad_v = poison(v, c.hidden, value);
        EXPECT_TRUE(same_bits(run_forward(q, bad_k, bad_v, c.options), clean)) << value;
        EXPECT_TRUE(same_bits(run_forward(q, bad_k, v, c.options), clean)) << value;
        EXPECT_TRUE(same_bits(run_forward(q, k, bad_v, c.options), clean)) << value;
      }
    }
  });
}

// Only -inf masks. Frameworks pad with their lowest finite number: a row that has nothing else still gets its mean, as in torch.
TEST(Semantics, Row04_AFiniteBiasNeverMasks) {
  const Tensor lowest = filled(DType::kFloat32, {90}, std::numeric_limits<float>::lowest());
  everywhere([&](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 2);
    const Tensor q = filled(dtype, {1, 2, heads, 4}, 1.0), k = filled(dtype, {1, 90, 1, 4}, 1.0), v = filled(dtype, {1, 90, 1, 3}, 0.5);
    const Forward got = run_forward(q, k, v, {.bias = lowest});
    EXPECT_TRUE(same_values(got.out, filled(dtype, {1, 2, heads, 3}, 0.5)));
    EXPECT_TRUE(std::isfinite(max_abs(got.lse)) && std::isfinite(max_abs(got.row_max)));
  });
}

// A poisoned key that some rows of a tile see: those become NaN, their neighbours keep every bit.
TEST(Semantics, Row04_PoisonStaysInTheRowsThatSeeIt) {
  everywhere([](DType dtype, Kind kind) {
    const std::int64_t q_tokens = kind == Kind::kWide ? 70 : 10;
    const Tensor q = random_normal({1, q_tokens, 1, 16}, dtype, 1), k = random_normal({1, 90, 1, 16}, dtype, 2),
                 v = random_normal({1, 90, 1, 18}, dtype, 3);
    const std::int64_t key = 85;  // at causal bottom-right, seen by the last five queries only
    const AttentionOptions options = {.mask = Mask::causal()};
    const Forward clean = run_forward(q, k, v, options);
    for (const bool in_k : {true, false}) {
      const Tensor bad = poison(in_k ? k : v, {key}, std::nan(""));
      const Forward got = in_k ? run_forward(q, bad, v, options) : run_forward(q, k, bad, options);
      for (std::int64_t i = 0; i < q_tokens; ++i) {
        if (i + 90 - q_tokens >= key) {
          EXPECT_TRUE(std::isnan(element(got.out, {0, i, 0, 0}))) << i;
        } else {
          EXPECT_TRUE(same_bits(query(got.out, i), query(clean.out, i))) << i;
          EXPECT_TRUE(same_bits(slice(got.lse.view(), 2, i, 1), slice(clean.lse.view(), 2, i, 1))) << i;
        }
      }
    }
  });
}

TEST(Semantics, Row04_BackwardNeverReadsMaskedSlots) {
  const std::array<std::int32_t, 2> lengths = {6, 6};
  for (const DType dtype : fast_dtypes()) {
    const Tensor q = random_normal({2, 4, 2, 5}, dtype, 1), k = random_normal({2, 9, 1, 5}, dtype, 2),
                 v = random_normal({2, 9, 1, 3}, dtype, 3);
    const Tensor dout = random_normal({2, 4, 2, 3}, dtype, 4);
    const AttentionOptions options = {.mask = Mask::causal(), .kv_lengths = TensorView(lengths.data(), {2})};
    const AttentionGrads clean = attention_backward(dout, q, k, v, attention_state(q, k, v, options), options);
    const Tensor bad_k = poison(k, {6, 7, 8}, std::nan("")), bad_v = poison(v, {6, 7, 8}, kInfinity);
    const AttentionGrads got = attention_backward(dout, q, bad_k, bad_v, attention_state(q, bad_k, bad_v, options), options);
    EXPECT_TRUE(same_bits(got.dq, clean.dq) && same_bits(got.dk, clean.dk) && same_bits(got.dv, clean.dv));
    EXPECT_EQ(max_abs(slice(std::as_const(got.dk).view(), 1, 6, 3)), 0.0);
    EXPECT_EQ(max_abs(slice(std::as_const(got.dv).view(), 1, 6, 3)), 0.0);
    // A query that sees nothing: its own row and its gradient may hold anything.
    const std::array<std::int64_t, 1> offset = {-1};
    const AttentionOptions far = {.mask = Mask::causal(), .query_offset = TensorView(offset.data(), {1})};
    const AttentionGrads before = attention_backward(dout, q, k, v, attention_state(q, k, v, far), far);
    const AttentionGrads after =
        attention_backward(poison(dout, {0}, std::nan("")), poison(q, {0}, std::nan("")), k, v, attention_state(q, k, v, far), far);
    EXPECT_TRUE(same_bits(before.dq, after.dq) && same_bits(before.dk, after.dk) && same_bits(before.dv, after.dv));
  }
}

TEST(Semantics, Row04_HugeLogits) {
  everywhere([](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 1);
    for (const double sign : {1.0, -1.0}) {
      const Tensor q = filled(dtype, {1, 1, heads, 1}, sign * 256.0);
      Tensor k = filled(DType::kFloat32, {1, 3, 1, 1}, 400.0);  // scores +-102400, the last one 256 further down
      k.data_as<float>()[2] = static_cast<float>(400.0 - 2.0 * sign);
      const Forward got = run_forward(q, convert(k, dtype), identity_values(dtype, 1, 3), {.scale = 1.0});
      for (std::int64_t h = 0; h < heads; ++h) {
        EXPECT_EQ(element(got.out, {0, 0, h, 0}), 0.5);
        EXPECT_EQ(element(got.out, {0, 0, h, 1}), 0.5);
        EXPECT_EQ(element(got.out, {0, 0, h, 2}), 0.0);
        EXPECT_NEAR(element(got.lse, {0, h, 0}), sign * 102400.0 + std::log(2.0), 0.02);  // float32's own step there is 0.008
        EXPECT_NEAR(element(got.row_max, {0, h, 0}), sign * 102400.0, 0.02);
      }
    }
  });
}

TEST(Semantics, Row05_WindowsCountInclusiveDistances) {
  everywhere([](DType dtype, Kind kind) {
    const auto draw = [&](const Mask& mask) { return picture(dtype, kind, 4, 4, {.mask = mask}); };
    EXPECT_EQ(draw(Mask::window(0, 0)), "1000/0100/0010/0001");
    EXPECT_EQ(draw(Mask::window(1, 0)), "1000/1100/0110/0011");
    EXPECT_EQ(draw(Mask::window(0, 2)), "1110/0111/0011/0001");
    EXPECT_EQ(draw(Mask::window(kUnbounded, 0)), "1000/1100/1110/1111");
    EXPECT_EQ(draw(Mask::window(1, kUnbounded)), "1111/1111/0111/0011");
    EXPECT_EQ(draw(Mask::sliding_window(1)), "1000/0100/0010/0001");
    EXPECT_EQ(draw(Mask::sliding_window(2)), "1000/1100/0110/0011");
    EXPECT_EQ(draw(Mask::sliding_window(9)), "1000/1100/1110/1111");
    EXPECT_EQ(draw(Mask::causal() & (Mask::sliding_window(2) | Mask::sink_tokens(1))), "1000/1100/1110/1011");
  });
}

TEST(Semantics, Row06_LseIsTheWholeDenominator) {
  everywhere([](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 2);
    const Tensor q = random_normal({1, 2, heads, 6}, dtype, 1), k = random_normal({1, 150, 1, 6}, dtype, 2),
                 v = random_normal({1, 150, 1, 6}, dtype, 3);
    const Tensor bias = random_normal({heads, 1, 150}, DType::kFloat32, 4), sinks = random_normal({heads}, DType::kFloat32, 5);
    const AttentionOptions options = {.mask = Mask::causal(), .scale = 0.9, .bias = bias, .sink_logits = sinks};
    const Forward got = run_forward(q, k, v, options);
    for_each_index({heads, 2}, [&](const Extents& n) {
      double sum = std::exp(element(sinks, {n[0]}));
      double max = -kInfinity;
      for (std::int64_t j = 0; j <= 148 + n[1]; ++j) {
        double dot = 0.0;
        for (std::int64_t d = 0; d < 6; ++d) dot += element(q, {0, n[1], n[0], d}) * element(k, {0, j, 0, d});
        const double score = 0.9 * dot + element(bias, {n[0], 0, j});
        sum += std::exp(score);
        max = std::max(max, score);
      }
      const double tolerance = 1e-6 * std::max(1.0, std::abs(max));
      EXPECT_NEAR(element(got.lse, {0, n[0], n[1]}), std::log(sum), tolerance);
      EXPECT_NEAR(element(got.row_max, {0, n[0], n[1]}), max, tolerance);
    });
    // Without a visible key: the sink logit, and a zero row.
    const Forward nothing = run_forward(q, Tensor(dtype, {1, 0, 1, 6}), Tensor(dtype, {1, 0, 1, 6}), {.sink_logits = sinks});
    EXPECT_EQ(max_abs(nothing.out), 0.0);
    for_each_index({heads, 2}, [&](const Extents& n) {
      EXPECT_FLOAT_EQ(static_cast<float>(element(nothing.lse, {0, n[0], n[1]})), static_cast<float>(element(sinks, {n[0]})));
      EXPECT_EQ(element(nothing.row_max, {0, n[0], n[1]}), -kInfinity);
    });
  });
}

TEST(Semantics, Row07_TrueMeansMayAttend) {
  const std::array<bool, 8> may = {true, false, false, true, false, false, true, true};
  everywhere([&](DType dtype, Kind kind) {
    EXPECT_EQ(picture(dtype, kind, 2, 4, {.mask = Mask::from_tensor(TensorView(may.data(), {2, 4}))}), "1001/0011");
    EXPECT_EQ(picture(dtype, kind, 2, 4, {.mask = ~Mask::from_tensor(TensorView(may.data(), {2, 4}))}), "0110/1100");
  });
}

// ALiBi counts from absolute positions, so the last row of a full pass is what a cached step computes.
TEST(Semantics, Row08_AlibiOfACachedStepIsThatOfTheFullPass) {
  everywhere([](DType dtype, Kind kind) {
    const std::int64_t heads = kind == Kind::kWide ? 16 : 2, length = 75;
    const Tensor q = random_normal({1, length, heads, 8}, dtype, 1), k = random_normal({1, length, 1, 8}, dtype, 2),
                 v = random_normal({1, length, 1, 8}, dtype, 3);
    Tensor slopes(DType::kFloat32, {heads});
    for (std::int64_t h = 0; h < heads; ++h) slopes.data_as<float>()[h] = std::exp2(-static_cast<float>(h % 8 + 1));
    const AttentionOptions options = {.mask = Mask::causal(), .alibi_slopes = slopes};
    const Forward exact = run_exact(q, k, v, options);
    const TensorView last = query(q, length - 1);
    const Forward step = run_forward(last, k, v, options);
    const Forward plain = plain_attention<float>(last, k, v, options, dtype);
    expect_within_rule("out", step.out, query(exact.out, length - 1), plain.out, max_abs(exact.out));
    expect_within_rule("lse", step.lse, slice(exact.lse.view(), 2, length - 1, 1), plain.lse, max_abs(exact.row_max));
  });
  // Without causality distances to later keys count as well.
  for_each_type_and_path([](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 2);
    const Tensor slopes = filled(DType::kFloat32, {heads}, 0.25);
    check_against_exact(random_normal({1, 2, heads, 8}, dtype, 1), random_normal({1, 75, 1, 8}, dtype, 2),
                        random_normal({1, 75, 1, 8}, dtype, 3), {.align = Align::kTopLeft, .alibi_slopes = slopes});
  });
}

TEST(Semantics, Row09_SameBitsForAnyThreadsBatchAndCacheLayout) {
  const int threads_before = get_num_threads();
  everywhere([&](DType dtype, Kind kind) {
    // Big enough that three threads are woken, and that keys are split into several pieces.
    const std::int64_t q_tokens = kind == Kind::kWide ? 65 : 2, kv_tokens = kind == Kind::kWide ? 200 : 2100, heads = 4;
    const Tensor q = random_normal({3, q_tokens, heads, 40}, dtype, 1), k = random_normal({3, kv_tokens, 2, 40}, dtype, 2),
                 v = random_normal({3, kv_tokens, 2, 40}, dtype, 3);
    const Tensor sinks = random_normal({heads}, DType::kFloat32, 4);
    const AttentionOptions options = {.mask = Mask::causal(), .sink_logits = sinks};
    set_num_threads(1);
    const Forward one = run_forward(q, k, v, options);
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      EXPECT_TRUE(same_bits(run_forward(q, k, v, options), one)) << threads << " threads";
    }
    set_num_threads(threads_before);
    for (std::int64_t b = 0; b < 3; ++b) {
      const Forward alone = run_forward(batch_entry(q, b), batch_entry(k, b), batch_entry(v, b), options);
      EXPECT_TRUE(same_bits(alone.out, batch_entry(one.out, b)) && same_bits(alone.lse, batch_entry(one.lse, b))) << "batch entry " << b;
    }
    const KvFormat format = dtype == DType::kFloat32    ? KvFormat::kFloat32
                            : dtype == DType::kBFloat16 ? KvFormat::kBFloat16
                                                        : KvFormat::kFloat16;
    KvCache cache({.batch = 3, .kv_heads = 2, .head_dim = 40, .capacity_tokens = kv_tokens + 100, .format = format});
    cache.append(0, k, v);
    Forward cached{Tensor(dtype, one.out.shape()), Tensor(DType::kFloat32, one.lse.shape()), Tensor(DType::kFloat32, one.lse.shape())};
    attention_into({.out = cached.out, .lse = cached.lse, .row_max = cached.row_max}, q, cache.layer(0), options);
    EXPECT_TRUE(same_bits(cached, one));
    EXPECT_TRUE(same_bits(attention(q, cache.layer(0), options), one.out));
    EXPECT_TRUE(same_bits(attention_state(q, cache.layer(0), options).lse, one.lse));
  });
}

TEST(Semantics, Row09_SeveralCallersAtOnce) {
  const Tensor q = random_normal({2, 40, 4, 24}, DType::kFloat32, 1), k = random_normal({2, 90, 2, 24}, DType::kFloat32, 2),
               v = random_normal({2, 90, 2, 24}, DType::kFloat32, 3);
  const Forward alone = run_forward(q, k, v, {.mask = Mask::causal()});
  std::array<std::atomic<int>, 3> same{};
  std::vector<std::thread> callers;
  for (std::atomic<int>& count : same) {
    callers.emplace_back([&] {
      for (int n = 0; n < 20; ++n) count += same_bits(run_forward(q, k, v, {.mask = Mask::causal()}), alone) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const std::atomic<int>& count : same) EXPECT_EQ(count.load(), 20);
}

// Scratch is for the threads that find work, not for those that were allowed.
TEST(Semantics, Row09_FarMoreThreadsThanWork) {
  const Tensor q = random_normal({1, 1, 4, 24}, DType::kFloat32, 1), k = random_normal({1, 600, 2, 24}, DType::kFloat32, 2),
               v = random_normal({1, 600, 2, 24}, DType::kFloat32, 3);
  const Forward alone = run_forward(q, k, v, {});
  const int before = get_num_threads();
  set_num_threads(std::numeric_limits<int>::max());
  EXPECT_TRUE(same_bits(run_forward(q, k, v, {}), alone));
  set_num_threads(before);
}

// Rows past a sequence's end change nothing either: a longer buffer with kv_lengths equals the short one.
TEST(Semantics, Row09_SameBitsForAnyBufferLength) {
  everywhere([](DType dtype, Kind kind) {
    const std::int64_t q_tokens = 3, heads = group_for(kind, 3);
    const Tensor q = random_normal({1, q_tokens, heads, 16}, dtype, 1), k = random_normal({1, 700, 1, 16}, dtype, 2),
                 v = random_normal({1, 700, 1, 16}, dtype, 3);
    for (const std::int64_t length : {1, 63, 64, 65, 255, 256, 257, 511, 600}) {
      const std::array<std::int64_t, 1> lengths = {length};
      const Forward longer = run_forward(q, k, v, {.mask = Mask::causal(), .kv_lengths = TensorView(lengths.data(), {1})});
      const Forward exact = run_forward(q, slice(k.view(), 1, 0, length), slice(v.view(), 1, 0, length), {.mask = Mask::causal()});
      EXPECT_TRUE(same_bits(longer, exact)) << length;
    }
  });
}

#if defined(__SSE2__)
constexpr unsigned kFlushAndDenormalsAreZero = 0x8040;

TEST(Semantics, Row09_FlushToZeroOfTheCallerChangesNothing) {
  everywhere([](DType dtype, Kind kind) {
    // Denormal inputs and results: the smallest numbers of each type.
    const double tiny = dtype == DType::kFloat16 ? 0x1p-22 : 0x1p-130;
    const std::int64_t heads = group_for(kind, 2);
    const Tensor q = random_normal({1, 2, heads, 8}, dtype, 1), k = random_normal({1, 40, 1, 8}, dtype, 2);
    const Tensor v = convert(random_normal({1, 40, 1, 8}, DType::kFloat32, 3, tiny), dtype);
    const Forward before = run_forward(q, k, v, {});
    const AttentionState exact = reference::attention_state(q, k, v);
    const unsigned saved = _mm_getcsr();
    _mm_setcsr(saved | kFlushAndDenormalsAreZero);
    const Forward flushed = run_forward(q, k, v, {});
    const AttentionState exact_flushed = reference::attention_state(q, k, v);
    const unsigned left = _mm_getcsr();
    _mm_setcsr(saved);
    EXPECT_EQ(left & kFlushAndDenormalsAreZero, kFlushAndDenormalsAreZero) << "the caller's settings must come back";
    EXPECT_TRUE(same_bits(flushed, before));
    EXPECT_TRUE(same_bits(exact_flushed.out, exact.out));
    EXPECT_GT(max_abs(exact.out), 0.0);
  });
}
#endif

TEST(Semantics, Row10_AnyHeadDims) {
  for_each_type_and_path([](DType dtype, Kind kind) {
    const std::int64_t heads = group_for(kind, 2);
    for (const auto& [dim, value_dim] : std::vector<std::pair<std::int64_t, std::int64_t>>{
             {1, 1}, {3, 5}, {17, 33}, {64, 64}, {72, 9}, {127, 129}, {192, 128}, {576, 512}, {1024, 1}, {1, 1024}, {1023, 1024}}) {
      SCOPED_TRACE("D " + std::to_string(dim) + ", Dv " + std::to_string(value_dim));
      check_against_exact(random_normal({1, 2, heads, dim}, dtype, 1), random_normal({1, 70, 1, dim}, dtype, 2),
                          random_normal({1, 70, 1, value_dim}, dtype, 3), {.mask = Mask::causal()});
    }
  });
}

TEST(Semantics, Row10_AnyGroup) {
  for (const DType dtype : fast_dtypes()) {
    for (const std::int64_t group : {1, 2, 3, 5, 6, 7, 12, 15, 16, 17, 47, 48, 49, 71}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + ", group " + std::to_string(group));
      check_against_exact(random_normal({1, 1, 2 * group, 12}, dtype, 1), random_normal({1, 80, 2, 12}, dtype, 2),
                          random_normal({1, 80, 2, 12}, dtype, 3), {});
      check_against_exact(random_normal({1, 3, group, 8}, dtype, 1), random_normal({1, 5, 1, 8}, dtype, 2),
                          random_normal({1, 5, 1, 8}, dtype, 3), {.mask = Mask::causal()});
    }
  }
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
/// Address space without memory behind it, until it is touched.
class Reserved {
 public:
  explicit Reserved(std::int64_t bytes)
      : bytes_(static_cast<std::size_t>(bytes)),
        data_(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() {
    if (data_ != MAP_FAILED) munmap(data_, bytes_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;
  [[nodiscard]] void* data() const { return data_ == MAP_FAILED ? nullptr : data_; }

 private:
  std::size_t bytes_;
  void* data_;
};

/// `source` copied to memory in which every axis but the last lies `step` elements and more apart.
TensorView spread(const Tensor& source, void* memory, std::int64_t step) {
  Strides strides = source.strides();
  std::int64_t stride = step;
  for (int axis = source.shape().rank() - 2; axis >= 0; --axis) {
    strides[axis] = stride;
    stride *= std::max<std::int64_t>(source.shape()[axis], 1);
  }
  const std::int64_t width = size_bytes(source.dtype());
  for_each_index(source.shape(), [&](const Extents& index) {
    std::int64_t to = 0, from = 0;
    for (int axis = 0; axis < index.rank(); ++axis) {
      to += index[axis] * strides[axis];
      from += index[axis] * source.strides()[axis];
    }
    std::memcpy(static_cast<std::byte*>(memory) + to * width, static_cast<const std::byte*>(source.data()) + from * width,
                static_cast<std::size_t>(width));
  });
  return TensorView(memory, source.dtype(), source.shape(), strides);
}

TEST(Semantics, Row10_MoreThan2To31Elements) {
  constexpr std::int64_t kStep = (std::int64_t{1} << 31) + 7;
  const Reserved q_memory(kStep * 16 * 4), k_memory(kStep * 5 * 4), v_memory(kStep * 5 * 4), bias_memory(kStep * 16 * 4),
      out_memory(kStep * 16 * 4);
  for (const Reserved* memory : {&q_memory, &k_memory, &v_memory, &bias_memory, &out_memory}) {
    if (memory->data() == nullptr) GTEST_SKIP() << "this system does not reserve 128 GiB of address space";
  }
  everywhere([&](DType dtype, Kind kind) {
    const std::int64_t heads = kind == Kind::kWide ? 16 : 2;
    const Tensor q = random_normal({1, 1, heads, 3}, dtype, 1), k = random_normal({1, 4, 1, 3}, dtype, 2),
                 v = random_normal({1, 4, 1, 3}, dtype, 3), bias = random_normal({1, heads, 1, 4}, DType::kFloat32, 4);
    const Forward close = run_forward(q, k, v, {.bias = bias});
    const TensorView far_out = spread(Tensor::zeros(dtype, close.out.shape()), out_memory.data(), kStep);
    attention_into({.out = MutableTensorView(out_memory.data(), dtype, far_out.shape(), far_out.strides())},
                   spread(q, q_memory.data(), kStep), spread(k, k_memory.data(), kStep), spread(v, v_memory.data(), kStep),
                   {.bias = spread(bias, bias_memory.data(), kStep)});
    EXPECT_TRUE(same_bits(far_out, close.out));
  });
}
#endif

TEST(Semantics, Row11_BadArgumentsAreNamedAndNothingIsWritten) {
  const Tensor q = random_normal({1, 2, 4, 8}, DType::kFloat32, 1), k = random_normal({1, 3, 2, 8}, DType::kFloat32, 2),
               wrong = random_normal({1, 3, 2, 9}, DType::kFloat32, 3);
  Tensor out = filled(DType::kFloat32, {1, 2, 4, 8}, 42.0);
  try {
    attention_into({.out = out}, q, wrong, k, {});
    FAIL() << "no error";
  } catch (const std::invalid_argument& error) {  // InvalidArgument has this one standard base
    EXPECT_STREQ(error.what(), "attention_into: k: expected 8 (D of q) on axis 3, got [1, 3, 2, 9]");
  }
  EXPECT_TRUE(same_values(out, filled(DType::kFloat32, {1, 2, 4, 8}, 42.0)));
}

}  // namespace
}  // namespace heed::test
