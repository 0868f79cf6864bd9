// SPDX-License-Identifier: Apache-2.0
// Keys and values of 8 bits: what is stored, and attention over it against the float64 reference over what is stored.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/kernels.hpp>
#include <heed/kv_cache.hpp>
#include <heed/reference.hpp>

#include "base/parallel.hpp"
#include "kernels/registry.hpp"
#include "kv/stored_rows.hpp"
#include "mask/plan.hpp"
#include "support/attention.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

using test::isas_here;
using test::max_abs;
using test::max_abs_difference;
using test::random_normal;
using test::same_bits;

struct Sizes {
  std::int64_t batch = 1, kv_heads = 2, group = 1, head_dim = 64, value_dim = 64, keys = 300;
};

KvCache filled(const Sizes& s, const Tensor& k, const Tensor& v, std::int64_t step = 1 << 20, std::optional<std::int64_t> window = {}) {
  KvCache cache({.batch = s.batch,
                 .kv_heads = s.kv_heads,
                 .head_dim = s.head_dim,
                 .value_dim = s.value_dim,
                 .capacity_tokens = s.keys,
                 .format = KvFormat::kInt8,
                 .window_tokens = window ? std::vector<std::optional<std::int64_t>>{window} : std::vector<std::optional<std::int64_t>>{}});
  for (std::int64_t first = 0; first < s.keys; first += step) {
    const std::int64_t count = std::min(step, s.keys - first);
    cache.append(0, slice(k.view(), 1, first, count), slice(v.view(), 1, first, count));
    cache.commit(count);
  }
  return cache;
}

Tensor keys_of(const Sizes& s, std::uint64_t seed) {
  return random_normal({s.batch, s.keys, s.kv_heads, s.head_dim}, DType::kFloat32, seed);
}
Tensor values_of(const Sizes& s, std::uint64_t seed) {
  return random_normal({s.batch, s.keys, s.kv_heads, s.value_dim}, DType::kFloat32, seed);
}
Tensor queries_of(const Sizes& s, std::int64_t tokens, DType dtype, std::uint64_t seed) {
  return random_normal({s.batch, tokens, s.kv_heads * s.group, s.head_dim}, dtype, seed);
}

TEST(Int8Cache, ElementsAreOffByHalfAStep) {
  const Sizes s = {.batch = 2, .kv_heads = 3, .head_dim = 21, .value_dim = 35, .keys = 700};
  const Tensor k = keys_of(s, 1), v = values_of(s, 2);
  const KvCache cache = filled(s, k, v, 97);
  EXPECT_EQ(cache.layer(0).format(), KvFormat::kInt8);
  EXPECT_STREQ(to_string(KvFormat::kInt8), "int8");
  const Tensor stored_k = cache.layer(0).copy_keys(), stored_v = cache.layer(0).copy_values();
  const auto check = [&](const Tensor& stored, const Tensor& original, std::int64_t dim) {
    for (std::int64_t row = 0; row < element_count(original.shape()) / dim; ++row) {
      const float* x = original.data_as<float>() + row * dim;
      const float* y = stored.data_as<float>() + row * dim;
      float largest = 0.0F;
      for (std::int64_t d = 0; d < dim; ++d) largest = std::max(largest, std::abs(x[d]));
      for (std::int64_t d = 0; d < dim; ++d) ASSERT_LE(std::abs(x[d] - y[d]), largest / 127 * 0.5001F) << row << " " << d;
    }
  };
  check(stored_k, k, s.head_dim);
  check(stored_v, v, s.value_dim);
}

/// Attention over the integers may add a 32nd part to what storing them as such has lost; or, where that is nothing (D 1: every element is the
/// largest of its row), the resolution of 16 bits in the queries and in the weights, 2^-15 each.
void expect_close(const Sizes& s, std::int64_t tokens, DType dtype, const AttentionOptions& options, std::uint64_t seed) {
  const Tensor k = keys_of(s, seed), v = values_of(s, seed + 1), q = queries_of(s, tokens, dtype, seed + 2);
  const KvCache cache = filled(s, k, v);
  const KvView view = cache.layer(0);
  AttentionState got{Tensor(dtype, {s.batch, tokens, s.kv_heads * s.group, s.value_dim}),
                     Tensor(DType::kFloat32, {s.batch, s.kv_heads * s.group, tokens})};
  attention_into({.out = got.out, .lse = got.lse}, q, view, options);
  const Tensor wide = convert(q, DType::kFloat32);
  const AttentionState stored = reference::attention_state(wide, view.copy_keys(), view.copy_values(), options);
  const AttentionState original = reference::attention_state(wide, k, v, options);
  const double lost = max_abs_difference(stored.out, original.out);
  const double rounding = max_abs(stored.out) * (dtype == DType::kFloat32 ? 1e-6 : test::roundoff(dtype));
  EXPECT_LE(max_abs_difference(got.out, stored.out), std::max(lost / 32, 0x1p-14 * max_abs(v)) + rounding) << "lost " << lost;
  EXPECT_LE(max_abs_difference(got.lse, stored.lse), std::max(max_abs_difference(stored.lse, original.lse) / 16, 0x1p-14 * 3) + 1e-6);
}

TEST(Int8Cache, AttentionIsThatOverWhatIsStored) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    std::uint64_t seed = 1;
    for (const std::int64_t dim : {1, 2, 5, 16, 31, 64, 80, 129, 520, 1024}) {
      for (const std::int64_t keys : {1, 40, 256, 257, 600}) {
        SCOPED_TRACE("D " + std::to_string(dim) + ", Lk " + std::to_string(keys));
        expect_close({.batch = 2, .group = 1 + static_cast<std::int64_t>(seed % 7), .head_dim = dim, .value_dim = dim, .keys = keys}, 1,
                     DType::kFloat32, {.mask = Mask::causal()}, seed);
        ++seed;
      }
    }
  }
}

TEST(Int8Cache, EveryOption) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    const Sizes s = {.batch = 2, .group = 3, .head_dim = 40, .value_dim = 72, .keys = 530};
    const Tensor slopes = random_normal({6}, DType::kFloat32, 5, 0.01), sinks = random_normal({6}, DType::kFloat32, 6);
    for (const std::int64_t tokens : {1, 4, 60}) {
      const Tensor bias = random_normal({6, tokens, 530}, DType::kFloat32, 7);
      for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        SCOPED_TRACE(std::string(to_string(dtype)) + ", Lq " + std::to_string(tokens));
        expect_close(s, tokens, dtype, {}, 1);
        expect_close(s, tokens, dtype, {.mask = Mask::window(100, 0) | Mask::sink_tokens(3), .scale = 0.3}, 2);
        expect_close(s, tokens, dtype, {.mask = Mask::causal(), .softcap = 5.0, .alibi_slopes = slopes, .sink_logits = sinks}, 3);
        expect_close(s, tokens, dtype, {.bias = bias}, 4);
        expect_close(s, tokens, dtype, {.dropout = Dropout{0.3, 11}}, 5);
      }
    }
  }
}

TEST(Int8Cache, WindowsThreadsAndNeighboursChangeNoBit) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    const Sizes s = {.batch = 3, .group = 4, .head_dim = 48, .value_dim = 48, .keys = 1500};
    const Tensor k = keys_of(s, 1), v = values_of(s, 2);
    const KvCache all = filled(s, k, v), windowed = filled(s, k, v, 100, 300);
    ASSERT_GT(windowed.layer(0).first_key(0), 0);
    const int threads_before = base::num_threads();
    for (const std::int64_t tokens : {1, 3, 30}) {
      const Tensor q = queries_of(s, tokens, DType::kFloat32, 3);
      const AttentionOptions options = {.mask = Mask::sliding_window(300)};
      set_num_threads(1);
      const AttentionState one = attention_state(q, all.layer(0), options);
      EXPECT_TRUE(same_bits(attention(q, windowed.layer(0), options), one.out)) << tokens;
      set_num_threads(3);
      EXPECT_TRUE(same_bits(attention(q, all.layer(0), options), one.out));
      set_num_threads(threads_before);
      for (std::int64_t b = 0; b < 3; ++b) {
        Sizes alone = s;
        alone.batch = 1;
        const Tensor kb = convert(slice(k.view(), 0, b, 1), DType::kFloat32), vb = convert(slice(v.view(), 0, b, 1), DType::kFloat32);
        const KvCache single = filled(alone, kb, vb);
        EXPECT_TRUE(same_bits(attention(slice(q.view(), 0, b, 1), single.layer(0), options), slice(one.out.view(), 0, b, 1)));
      }
    }
  }
}

// A masked row may hold anything; a visible one that is not finite shows.
TEST(Int8Cache, PoisonStaysWhereItIsMasked) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    const Sizes s = {.kv_heads = 1, .group = 2, .head_dim = 20, .value_dim = 20, .keys = 300};
    const Tensor k = keys_of(s, 1), v = values_of(s, 2);
    Tensor bad_k = k.clone(), bad_v = v.clone();
    for (const std::int64_t row : {0, 70, 299}) {
      bad_k.data_as<float>()[row * 20 + 3] = std::numeric_limits<float>::quiet_NaN();
      bad_v.data_as<float>()[row * 20 + 7] = std::numeric_limits<float>::infinity();
    }
    const KvCache good = filled(s, k, v), bad = filled(s, bad_k, bad_v);
    for (const std::int64_t tokens : {1, 40}) {
      const Tensor q = queries_of(s, tokens, DType::kFloat32, 3);
      const AttentionOptions hidden = {
          .mask = Mask::global_tokens(std::array<std::int64_t, 4>{1, 69, 71, 298}), .align = Align::kTopLeft, .query_offset = {}};
      Tensor offset(DType::kInt64, {1});
      offset.data_as<std::int64_t>()[0] = 1000;  // no query is a global token itself
      AttentionOptions options = hidden;
      options.query_offset = offset;
      const Tensor clean = attention(q, good.layer(0), options);
      EXPECT_TRUE(same_bits(attention(q, bad.layer(0), options), clean)) << tokens;
      EXPECT_TRUE(std::isfinite(max_abs(clean)));
      const Tensor shown = attention(q, bad.layer(0));
      EXPECT_TRUE(std::isnan(shown.data_as<float>()[0])) << tokens;
    }
  }
}

TEST(Int8Cache, ZerosTinyAndHugeRows) {
  const Sizes s = {.kv_heads = 1, .head_dim = 8, .value_dim = 8, .keys = 4};
  Tensor k = Tensor::zeros(DType::kFloat32, {1, 4, 1, 8});
  for (std::int64_t d = 0; d < 8; ++d) {
    k.data_as<float>()[8 + d] = 1e-38F;
    k.data_as<float>()[16 + d] = 3e38F * (d % 2 == 0 ? 1.0F : -1.0F);
    k.data_as<float>()[24 + d] = static_cast<float>(d);
  }
  const KvCache cache = filled(s, k, k);
  const Tensor stored = cache.layer(0).copy_keys();
  for (std::int64_t d = 0; d < 8; ++d) {
    EXPECT_EQ(stored.data_as<float>()[d], 0.0F);
    EXPECT_NEAR(stored.data_as<float>()[8 + d], 0.0F, 1e-37F);
    EXPECT_NEAR(stored.data_as<float>()[16 + d] / k.data_as<float>()[16 + d], 1.0F, 1e-6F);
    EXPECT_NEAR(stored.data_as<float>()[24 + d], static_cast<float>(d), 7.0F / 254);
  }
  const Tensor zero_query = Tensor::zeros(DType::kFloat32, {1, 1, 1, 8});
  const AttentionState state = attention_state(zero_query, slice(stored.view(), 1, 3, 1), slice(stored.view(), 1, 3, 1));
  EXPECT_EQ(element(state.lse, {0, 0, 0}), 0.0);
}

/// State of every piece of one KV head, as `kernel` computes it.
std::vector<float> states_of(const kernels::NarrowKernel& kernel, const KvView& view, const Tensor& q, const mask::PlanSet& plans) {
  const kv::StoredRows& rows = *view.stored();
  kernels::ForwardProblem problem;
  problem.head_dim = view.head_dim();
  problem.value_dim = view.value_dim();
  problem.q = {.data = q.data(), .token_stride = q.strides()[1], .head_stride = q.strides()[2], .tokens = q.shape()[1], .group = 3};
  problem.kv = {.segments = rows.segments.data(), .segment_count = static_cast<std::int64_t>(rows.segments.size())};
  problem.scoring.scale = 0.2F;
  problem.plan = &plans.plan(0, 0);
  const auto rows_count = static_cast<std::size_t>(problem.plan->rows);
  std::vector<std::byte> scratch(static_cast<std::size_t>(kernel.scratch_bytes(problem)) + 64);
  void* aligned = scratch.data();
  std::size_t room = scratch.size();
  auto* memory = static_cast<std::byte*>(std::align(64, room - 64, aligned, room));
  std::vector<float> states;
  for (std::int64_t piece = 0; piece * kernels::kPieceKeys < view.length(); ++piece) {
    std::vector<float> state(rows_count * static_cast<std::size_t>(3 + view.value_dim()));
    kernel.run_piece(problem, piece,
                     {state.data(), state.data() + rows_count, state.data() + 2 * rows_count, state.data() + 3 * rows_count}, memory);
    states.insert(states.end(), state.begin(), state.end());
  }
  return states;
}

TEST(Int8Cache, VnniChangesNoBit) {
  const kernels::NarrowKernel* with_vnni = kernels::narrow_int8_kernel(base::Isa::kAvx512);
  const kernels::NarrowKernel* without_vnni = kernels::narrow_int8_kernels_of(base::Isa::kAvx512);
  if (!base::runs_here(base::Isa::kAvx512) || with_vnni == without_vnni) return;  // there is only one of them
  const Sizes s = {.kv_heads = 1, .group = 3, .head_dim = 71, .value_dim = 90, .keys = 700};
  const KvCache cache = filled(s, keys_of(s, 1), values_of(s, 2));
  const Tensor q = queries_of(s, 2, DType::kFloat32, 3);
  const mask::Geometry geometry = {.tokens = 2, .keys = 700, .query_offset = 698};
  const mask::PlanSet plans(Mask::causal() & ~Mask::window(30, 0), {&geometry, 1}, 1, 3, 6);
  const auto with = states_of(*with_vnni, cache.layer(0), q, plans);
  const auto without = states_of(*without_vnni, cache.layer(0), q, plans);
  EXPECT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(float)), 0);
}

TEST(Int8Cache, TakesAQuarterOfFloat32) {
  KvCache cache({.layers = 3, .batch = 2, .kv_heads = 8, .head_dim = 128, .capacity_tokens = 1000, .format = KvFormat::kInt8});
  EXPECT_EQ(cache.bytes_per_token(), 3 * 8 * (2 * 128 + 2 * 4));
  const Tensor k = random_normal({2, 300, 8, 128}, DType::kBFloat16, 1);
  for (std::int64_t l = 0; l < 3; ++l) cache.append(l, k, k);
  EXPECT_EQ(cache.bytes_in_use(), 2 * cache.bytes_per_token() * 512);
}

}  // namespace
}  // namespace heed
