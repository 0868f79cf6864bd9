// SPDX-License-Identifier: Apache-2.0
// Repeated calls allocate nothing: not for plans, not for scratch, not for checks. The program counts every operator new.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/kernels.hpp>

#include "base/counting_new.hpp"
#include "base/parallel.hpp"
#include "support/tensors.hpp"

namespace heed::test {
namespace {

/// Masks of every family, for B 2, Hq 4 and up to 1200 tokens.
std::vector<Mask> masks() {
  constexpr std::int64_t kTokens = 1200;
  Tensor ids(DType::kInt32, {2, kTokens}), bits(DType::kBool, {1, 4, kTokens, kTokens}), layout(DType::kBool, {kTokens / 60, kTokens / 60});
  for (std::int64_t n = 0; n < element_count(ids.shape()); ++n) ids.data_as<std::int32_t>()[n] = static_cast<std::int32_t>(n / 70);
  for (std::int64_t n = 0; n < element_count(bits.shape()); ++n) bits.data_as<bool>()[n] = n * 2654435761 % 7 != 0;
  for (std::int64_t n = 0; n < element_count(layout.shape()); ++n) layout.data_as<bool>()[n] = n % 3 != 0;
  return {Mask::none(),
          Mask::causal(),
          Mask::window(300, 20),
          Mask::sliding_window(100) | (Mask::causal() & Mask::sink_tokens(4)),
          Mask::prefix_lm(77),
          Mask::causal() & Mask::documents(ids),
          Mask::from_tensor(bits),
          Mask::causal() & Mask::block_sparse(layout, 60),
          Mask::per_head({Mask::causal(), Mask::sliding_window(9), ~Mask::sliding_window(9), Mask::none()})};
}

/// The third call and all later ones must allocate nothing: the first learns what is needed, the second gets it in one piece.
void expect_no_allocations(const std::string& what, int calls, const std::function<void(int)>& call) {
  if (!base::SerialOpenMp::works()) set_num_threads(1);  // without OpenMP's pool every thread that starts is an allocation
  call(0);
  call(0);
  const std::int64_t before = allocations.load();
  for (int n = 0; n < calls; ++n) call(n);
  EXPECT_EQ(allocations.load() - before, 0) << what;
}

struct Inputs {
  Inputs(std::int64_t q_tokens, std::int64_t kv_tokens, std::int64_t kv_heads)
      : q(random_normal({2, q_tokens, 4, 32}, DType::kFloat32, 1)), k(random_normal({2, kv_tokens, kv_heads, 32}, DType::kFloat32, 2)),
        v(random_normal({2, kv_tokens, kv_heads, 32}, DType::kFloat32, 3)), out(DType::kFloat32, {2, q_tokens, 4, 32}),
        lse(DType::kFloat32, {2, 4, q_tokens}) {}
  Tensor q, k, v, out, lse;
};

// Batch entries of different lengths, growing through several pieces; GQA and multi-head.
TEST(Allocations, DecodeOverAGrowingCache) {
  for (const std::int64_t kv_heads : {1, 4}) {
    for (const Mask& mask : masks()) {
      Inputs x(1, 1200, kv_heads);
      Tensor lengths(DType::kInt64, {2});
      expect_no_allocations(mask.to_string(), 100, [&](int step) {
        lengths.data_as<std::int64_t>()[0] = 20 + 11 * step;
        lengths.data_as<std::int64_t>()[1] = 1150 - 5 * step;
        attention_into({.out = x.out, .lse = x.lse}, x.q, x.k, x.v, {.mask = mask, .kv_lengths = lengths});
      });
    }
  }
}

TEST(Allocations, Prefill) {
  for (const std::int64_t kv_heads : {2, 4}) {
    for (const Mask& mask : masks()) {
      Inputs x(300, 300, kv_heads);
      const Tensor slopes = random_normal({4}, DType::kFloat32, 4), sinks = random_normal({4}, DType::kFloat32, 5);
      const Tensor bias = random_normal({1, 300}, DType::kFloat32, 6);
      expect_no_allocations(mask.to_string(), 5, [&](int /*step*/) {
        attention_into({.out = x.out}, x.q, x.k, x.v,
                       {.mask = mask, .bias = bias, .alibi_slopes = slopes, .sink_logits = sinks, .dropout = Dropout{0.1, 3}});
      });
    }
  }
}

// Generation as models do it: one set of tensors, prompts in chunks and single tokens in turn.
TEST(Allocations, ChunksAndSingleTokensInTurn) {
  Inputs chunk(64, 1000, 2), token(1, 1000, 2);
  Tensor lengths(DType::kInt64, {2});
  expect_no_allocations("chunks and tokens", 20, [&](int step) {
    Inputs& x = step % 2 == 0 ? chunk : token;
    for (std::int64_t b = 0; b < 2; ++b) lengths.data_as<std::int64_t>()[b] = 64 + 40 * step + b;
    attention_into({.out = x.out}, x.q, x.k, x.v, {.mask = Mask::causal(), .kv_lengths = lengths});
    attention_into({.out = token.out}, token.q, token.k, token.v, {.mask = Mask::causal(), .kv_lengths = lengths});
  });
}

// Both paths in one call, other lengths at every step.
constexpr int kStarts[2][5] = {{0, 1, 3, 200, 400}, {0, 150, 150, 153, 390}};

TEST(Allocations, PackedSequences) {
  for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::sliding_window(30)}) {
    const Tensor q = random_normal({400, 4, 32}, DType::kFloat32, 1), k = random_normal({900, 2, 32}, DType::kFloat32, 2);
    Tensor out(DType::kFloat32, {400, 4, 32}), lse(DType::kFloat32, {4, 400});
    Tensor q_offsets(DType::kInt32, {5}), k_offsets(DType::kInt32, {5});
    expect_no_allocations(mask.to_string(), 40, [&](int step) {
      for (int n = 0; n < 5; ++n) {
        q_offsets.data_as<std::int32_t>()[n] = kStarts[step % 2][n];
        k_offsets.data_as<std::int32_t>()[n] = n * (100 + 3 * step);
      }
      attention_varlen_into({.out = out, .lse = lse}, q, k, k, q_offsets, k_offsets, {.mask = mask});
    });
  }
}

}  // namespace
}  // namespace heed::test
