// SPDX-License-Identifier: Apache-2.0
// Layers that keep a window only: the same bits as a cache that keeps everything, in memory that the window bounds.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/kv_cache.hpp>

#include "support/attention.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

using test::isas_here;
using test::random_normal;
using test::same_bits;
using test::same_values;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

constexpr std::int64_t kHeads = 2, kGroup = 3, kDim = 40, kValueDim = 24;

KvCache make_cache(KvFormat format, std::int64_t capacity, std::optional<std::int64_t> window, std::int64_t batch = 2) {
  return KvCache({.batch = batch,
                  .kv_heads = kHeads,
                  .head_dim = kDim,
                  .value_dim = kValueDim,
                  .capacity_tokens = capacity,
                  .format = format,
                  .window_tokens = {window}});
}

struct Step {
  Tensor q, k, v;
};
Step make_step(std::int64_t tokens, DType dtype, std::uint64_t seed, std::int64_t batch = 2) {
  return {random_normal({batch, tokens, kHeads * kGroup, kDim}, dtype, seed), random_normal({batch, tokens, kHeads, kDim}, dtype, seed + 1),
          random_normal({batch, tokens, kHeads, kValueDim}, dtype, seed + 2)};
}

/// Appends and attends as a model does.
Tensor run_step(KvCache& cache, const Step& step, const Mask& mask) {
  cache.append(0, step.k, step.v);
  Tensor out = attention(step.q, cache.layer(0), {.mask = mask});
  cache.commit(step.k.shape()[1]);
  return out;
}

/// Chunks and single tokens in turn, wide and narrow calls, over many pages.
void expect_equal_steps(DType dtype, KvFormat format, std::int64_t window, std::uint64_t seed) {
  KvCache full = make_cache(format, 2600, std::nullopt), windowed = make_cache(format, 2600, window);
  const Mask mask = Mask::sliding_window(window);
  std::mt19937_64 random(seed);
  for (int n = 0; full.length() < 2200; ++n) {
    const auto tokens = static_cast<std::int64_t>(n % 3 == 0 ? random() % 400 : 1 + random() % 3);
    const Step step = make_step(tokens, dtype, seed + 10 * static_cast<std::uint64_t>(n));
    ASSERT_TRUE(same_bits(run_step(windowed, step, mask), run_step(full, step, mask))) << "step " << n << " at " << full.length();
  }
  EXPECT_EQ(windowed.length(), full.length());
  EXPECT_GT(windowed.layer(0).first_key(0), 0);
}

TEST(WindowCache, SameBitsAsTheFullCache) {
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    for (const std::int64_t window : {1, 100, 256, 257, 600}) {
      SCOPED_TRACE(window);
      expect_equal_steps(DType::kFloat32, KvFormat::kFloat32, window, 1);
      expect_equal_steps(DType::kBFloat16, KvFormat::kBFloat16, window, 2);
      expect_equal_steps(DType::kFloat32, KvFormat::kFloat16, window, 3);
    }
  }
}

TEST(WindowCache, HoldsExactlyWhatItSays) {
  KvCache full = make_cache(KvFormat::kBFloat16, 2000, std::nullopt), windowed = make_cache(KvFormat::kBFloat16, 2000, 300);
  for (int n = 0; n < 9; ++n) {
    const Step step = make_step(200, DType::kFloat32, static_cast<std::uint64_t>(n));
    run_step(full, step, Mask::causal());
    run_step(windowed, step, Mask::causal());
    const KvView a = full.layer(0), b = windowed.layer(0);
    const std::int64_t gone = b.first_key(0), kept = b.length() - gone;
    EXPECT_EQ(b.length(), 200 * (n + 1));
    EXPECT_LE(gone, std::max<std::int64_t>(0, 200 * n - 299));  // what this step's first query sees is there
    EXPECT_GE(gone, std::max<std::int64_t>(0, 200 * n - 299 - 255));
    const Tensor k = b.copy_keys(), v = b.copy_values();
    EXPECT_TRUE(same_values(slice(k.view(), 1, gone, kept), slice(a.keys(), 1, gone, kept)));
    EXPECT_TRUE(same_values(slice(v.view(), 1, gone, kept), slice(a.values(), 1, gone, kept)));
    EXPECT_EQ(test::max_abs(slice(k.view(), 1, 0, gone)), 0.0);
  }
}

// A mask may ask for more than the window: what is gone is not there, like keys past kv_lengths.
TEST(WindowCache, KeysThatAreGoneAreSeenByNoMask) {
  KvCache windowed = make_cache(KvFormat::kFloat32, 1200, 64);
  Step step = make_step(500, DType::kFloat32, 1);
  run_step(windowed, step, Mask::causal());
  run_step(windowed, make_step(500, DType::kFloat32, 5), Mask::causal());
  step = make_step(4, DType::kFloat32, 9);
  windowed.append(0, step.k, step.v);
  const KvView view = windowed.layer(0);
  const std::int64_t gone = view.first_key(0);
  ASSERT_GT(gone, 0);
  const Tensor k = view.copy_keys(), v = view.copy_values();
  for (const Mask& mask : {Mask::none(), Mask::causal(), Mask::sink_tokens(4) | Mask::window(10, 0), Mask::sink_tokens(4)}) {
    const AttentionState got = attention_state(step.q, view, {.mask = mask});
    // The same over a tensor of which the mask hides what is gone.
    const AttentionState expected = reference::attention_state(step.q, k, v, {.mask = mask & ~Mask::sink_tokens(gone)});
    EXPECT_LT(test::max_abs_difference(got.out, expected.out), 1e-5) << mask.to_string();
  }
}

TEST(WindowCache, MemoryIsBoundedByTheWindow) {
  KvCache windowed = make_cache(KvFormat::kFloat32, 1 << 20, 512, 1);
  const std::int64_t page_bytes = 256 * kHeads * (kDim + kValueDim) * 4;
  std::int64_t most = 0;
  for (int n = 0; n < 100; ++n) {
    run_step(windowed, make_step(128, DType::kFloat32, static_cast<std::uint64_t>(n), 1), Mask::sliding_window(512));
    most = std::max(most, windowed.bytes_in_use());
  }
  EXPECT_LE(most, 4 * page_bytes);  // 511 keys of the window and 128 of the step touch at most 4 pages
  EXPECT_GE(most, 3 * page_bytes);
}

TEST(WindowCache, GoesBackAStepAndNoFurtherThanItCan) {
  KvCache full = make_cache(KvFormat::kFloat32, 4000, std::nullopt), windowed = make_cache(KvFormat::kFloat32, 4000, 300);
  const Mask mask = Mask::sliding_window(300);
  std::mt19937_64 random(7);
  for (int n = 0; n < 60; ++n) {
    const std::int64_t before = windowed.length();
    const Step step = make_step(static_cast<std::int64_t>(random() % 90), DType::kFloat32, static_cast<std::uint64_t>(10 * n));
    ASSERT_TRUE(same_bits(run_step(windowed, step, mask), run_step(full, step, mask)));
    ASSERT_LE(windowed.earliest_length(), before);
    if (n % 4 != 0) continue;
    const std::int64_t back =
        windowed.earliest_length() + static_cast<std::int64_t>(random() % (windowed.length() - windowed.earliest_length() + 1));
    windowed.truncate(back);
    full.truncate(back);
  }
  ASSERT_GT(windowed.earliest_length(), 0);
  const std::int64_t earliest = windowed.earliest_length();
  EXPECT_EQ(message_of([&] { windowed.truncate(earliest - 1); }),
            "KvCache::truncate: length: expected 0 or at least " + std::to_string(earliest) +
                ": windows have dropped what a shorter sequence needs, got " + std::to_string(earliest - 1));
  windowed.truncate(0);
  full.truncate(0);
  EXPECT_EQ(windowed.earliest_length(), 0);
  EXPECT_EQ(windowed.bytes_in_use(), 0);
  const Step step = make_step(70, DType::kFloat32, 1);
  EXPECT_TRUE(same_bits(run_step(windowed, step, mask), run_step(full, step, mask)));
}

// Its pages are gone from the cache, not from memory.
TEST(WindowCache, AStaleViewReadsNoFreedMemory) {
  KvCache windowed = make_cache(KvFormat::kFloat32, 4000, 10);
  const Step first = make_step(300, DType::kFloat32, 1);
  run_step(windowed, first, Mask::causal());
  const KvView stale = windowed.layer(0);
  for (int n = 0; n < 5; ++n) run_step(windowed, make_step(300, DType::kFloat32, 9), Mask::causal());
  ASSERT_GT(windowed.layer(0).first_key(0), 300);
  EXPECT_TRUE(same_values(stale.copy_keys(), first.k));
}

TEST(WindowCache, LayersMayDiffer) {
  KvCache cache({.layers = 3, .head_dim = 4, .capacity_tokens = 2000, .window_tokens = {8, std::nullopt, 700}});
  for (int n = 0; n < 7; ++n) {
    const Tensor k = random_normal({1, 200, 1, 4}, DType::kFloat32, static_cast<std::uint64_t>(n));
    for (std::int64_t l = 0; l < 3; ++l) cache.append(l, k, k);
    cache.commit(200);
  }
  EXPECT_EQ(cache.layer(0).first_key(0), 1024);  // the last step began at 1200 and saw keys from 1193 on
  EXPECT_EQ(cache.layer(1).first_key(0), 0);
  EXPECT_EQ(cache.layer(2).first_key(0), 256);
  EXPECT_EQ(cache.bytes_in_use(), (2 * 256 + 1400 + 5 * 256) * 2 * 4 * 4);
  EXPECT_EQ(cache.bytes_per_token(), 3 * 2 * 4 * 4);
}

TEST(WindowCache, Errors) {
  const auto made = [](std::vector<std::optional<std::int64_t>> windows) {
    return message_of([&] { KvCache cache({.layers = 2, .head_dim = 4, .capacity_tokens = 8, .window_tokens = std::move(windows)}); });
  };
  EXPECT_EQ(made({4}), "KvCache: window_tokens: expected none or one for each of the 2 layers, got 1");
  EXPECT_EQ(made({4, 0}), "KvCache: window_tokens: expected at least 1, got 0");
  KvCache windowed = make_cache(KvFormat::kFloat32, 300, 16);
  const Step step = make_step(4, DType::kFloat32, 1);
  windowed.append(0, step.k, step.v);
  const Tensor lengths = Tensor::zeros(DType::kInt32, {2});
  EXPECT_EQ(message_of([&] { static_cast<void>(attention(step.q, windowed.layer(0), {.kv_lengths = lengths})); }),
            "attention: kv_lengths: expected none: this cache knows the length of every sequence, got a tensor");
  const Step longer = make_step(297, DType::kFloat32, 1);
  EXPECT_EQ(message_of([&] { windowed.append(0, longer.k, longer.v); }),
            "KvCache::append: k: expected at most 296 tokens (capacity 300, 4 stored), got 297");
}

}  // namespace
}  // namespace heed
