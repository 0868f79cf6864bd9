// SPDX-License-Identifier: Apache-2.0
// KvCache against the concatenation of what was appended.
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include <gtest/gtest.h>

#include <heed/error.hpp>
#include <heed/kv_cache.hpp>

#include "base/parallel.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

using test::random_normal;
using test::same_values;

DType dtype_of_format(KvFormat format) {
  if (format == KvFormat::kBFloat16) return DType::kBFloat16;
  return format == KvFormat::kFloat16 ? DType::kFloat16 : DType::kFloat32;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

class KvCacheTypes : public testing::TestWithParam<std::tuple<KvFormat, DType>> {};

TEST_P(KvCacheTypes, HoldsWhatWasAppendedRoundedOnce) {
  const auto [format, source] = GetParam();
  const DType stored = dtype_of_format(format);
  KvCache cache({.layers = 2, .batch = 2, .kv_heads = 3, .head_dim = 5, .value_dim = 7, .capacity_tokens = 11, .format = format});
  const Tensor k = random_normal({2, 8, 3, 5}, source, 1);
  const Tensor v = random_normal({2, 8, 3, 7}, source, 2);
  for (const auto& [first, count] : {std::pair<std::int64_t, std::int64_t>{0, 6}, {6, 1}, {7, 1}}) {
    for (std::int64_t layer = 0; layer < 2; ++layer) cache.append(layer, slice(k, 1, first, count), slice(v, 1, first, count));
    cache.commit(count);
    const KvView view = cache.layer(1);
    EXPECT_EQ(cache.length(), first + count);
    EXPECT_EQ(view.keys().dtype(), stored);
    EXPECT_TRUE(same_values(view.keys(), convert(slice(k, 1, 0, first + count), stored)));
    EXPECT_TRUE(same_values(view.values(), convert(slice(v, 1, 0, first + count), stored)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, KvCacheTypes,
                         testing::Combine(testing::Values(KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16),
                                          testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64)));

TEST(KvCache, Float64RoundsOnce) {
  // Just above the middle of two bfloat16 neighbours, by less than float32 can tell: rounding twice would go down to even.
  const double value = 1.0 + std::ldexp(1.0, -8) + std::ldexp(1.0, -40);
  KvCache cache({.head_dim = 1, .capacity_tokens = 1, .format = KvFormat::kBFloat16});
  const TensorView one(&value, {1, 1, 1, 1});
  cache.append(0, one, one);
  EXPECT_EQ(element(cache.layer(0).keys(), {0, 0, 0, 0}), 1.0 + std::ldexp(1.0, -7));
  EXPECT_EQ(element(cache.layer(0).values(), {0, 0, 0, 0}), 1.0 + std::ldexp(1.0, -7));
}

TEST(KvCache, AnyStridesOfTheSource) {
  KvCache cache({.batch = 2, .kv_heads = 3, .head_dim = 4, .capacity_tokens = 5});
  const Tensor k = random_normal({4, 3, 5, 2}, DType::kFloat32, 1);  // [D, Hkv, n, B]
  const Tensor v = random_normal({2, 3, 5, 4}, DType::kFloat32, 2);  // [B, Hkv, n, D]: rows are contiguous
  cache.append(0, permute(k.view(), {3, 2, 1, 0}), permute(v.view(), {0, 2, 1, 3}));
  EXPECT_TRUE(same_values(cache.layer(0).keys(), permute(k.view(), {3, 2, 1, 0})));
  EXPECT_TRUE(same_values(cache.layer(0).values(), permute(v.view(), {0, 2, 1, 3})));
}

TEST(KvCache, RowsOfOneHeadAreNeighbours) {
  KvCache cache({.layers = 2, .batch = 2, .kv_heads = 3, .head_dim = 5, .capacity_tokens = 7});
  const TensorView keys = cache.layer(1).keys();
  EXPECT_EQ(keys.shape(), (Shape{2, 0, 3, 5}));
  EXPECT_EQ(keys.stride(3), 1);
  EXPECT_EQ(keys.stride(1), 5);
  EXPECT_EQ(keys.stride(2) % 16, 0);  // whole cache lines
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(keys.data()) % 64, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(cache.layer(1).values().data()) % 64, 0U);
}

TEST(KvCache, LargeAppendsAreTheSameForAnyNumberOfThreads) {
  const Tensor k = random_normal({1, 300, 4, 64}, DType::kFloat32, 1);
  const int threads = base::num_threads();
  for (const int n : {1, 3}) {
    base::set_num_threads(n);
    KvCache cache({.kv_heads = 4, .head_dim = 64, .capacity_tokens = 300, .format = KvFormat::kBFloat16});
    cache.append(0, k, k);
    EXPECT_TRUE(same_values(cache.layer(0).keys(), convert(k, DType::kBFloat16)));
  }
  base::set_num_threads(threads);
}

TEST(KvCache, UncommittedTokensAreSeenAndForgotten) {
  KvCache cache({.layers = 2, .head_dim = 2, .capacity_tokens = 8});
  const Tensor a = random_normal({1, 3, 1, 2}, DType::kFloat32, 1);
  const Tensor b = random_normal({1, 2, 1, 2}, DType::kFloat32, 2);
  cache.append(0, a, a);
  cache.append(0, b, b);
  EXPECT_EQ(cache.length(), 0);
  EXPECT_EQ(cache.layer(0).keys().size(1), 5);
  EXPECT_EQ(cache.layer(1).keys().size(1), 0);
  EXPECT_TRUE(same_values(slice(cache.layer(0).keys(), 1, 3, 2), b));
  EXPECT_EQ(message_of([&] { cache.commit(5); }),
            "KvCache::commit: n: expected 0 (tokens that layer 1 received since the last commit), got 5");
  EXPECT_EQ(cache.length(), 0);
  cache.truncate(0);
  EXPECT_EQ(cache.layer(0).keys().size(1), 0);
  cache.commit(0);
  for (std::int64_t layer = 0; layer < 2; ++layer) cache.append(layer, b, b);
  EXPECT_EQ(message_of([&] { cache.commit(1); }),
            "KvCache::commit: n: expected 2 (tokens that layer 0 received since the last commit), got 1");
  cache.commit(2);
  EXPECT_EQ(cache.length(), 2);
}

TEST(KvCache, TruncateThenAppendOverwrites) {
  KvCache cache({.head_dim = 2, .capacity_tokens = 4});
  const Tensor a = random_normal({1, 4, 1, 2}, DType::kFloat32, 1);
  const Tensor b = random_normal({1, 2, 1, 2}, DType::kFloat32, 2);
  cache.append(0, a, a);
  cache.commit(4);
  cache.truncate(2);
  EXPECT_EQ(cache.length(), 2);
  EXPECT_TRUE(same_values(cache.layer(0).keys(), slice(a, 1, 0, 2)));
  cache.append(0, b, b);
  EXPECT_TRUE(same_values(slice(cache.layer(0).keys(), 1, 0, 2), slice(a, 1, 0, 2)));
  EXPECT_TRUE(same_values(slice(cache.layer(0).keys(), 1, 2, 2), b));
  EXPECT_EQ(message_of([&] { cache.truncate(3); }), "KvCache::truncate: length: expected a length in [0, 2], got 3");
  EXPECT_EQ(message_of([&] { cache.truncate(-1); }), "KvCache::truncate: length: expected a length in [0, 2], got -1");
  EXPECT_EQ(cache.layer(0).keys().size(1), 4);
}

TEST(KvCache, ErrorsNameBothNumbersAndChangeNothing) {
  KvCache cache({.layers = 2, .kv_heads = 2, .head_dim = 4, .value_dim = 3, .capacity_tokens = 5});
  const Tensor k = random_normal({1, 4, 2, 4}, DType::kFloat32, 1);
  const Tensor v = random_normal({1, 4, 2, 3}, DType::kFloat32, 2);
  cache.append(0, k, v);
  EXPECT_EQ(message_of([&] { cache.append(0, k, v); }), "KvCache::append: k: expected at most 1 tokens (capacity 5, 4 stored), got 4");
  EXPECT_EQ(message_of([&] { cache.append(2, k, v); }), "KvCache::append: layer: expected a layer in [0, 2), got 2");
  EXPECT_EQ(message_of([&] { static_cast<void>(cache.layer(-1)); }), "KvCache::layer: layer: expected a layer in [0, 2), got -1");
  EXPECT_EQ(message_of([&] { cache.append(1, v, v); }), "KvCache::append: k: expected [1, 4, 2, 4] ([B, n, Hkv, dim]), got [1, 4, 2, 3]");
  EXPECT_EQ(message_of([&] { cache.append(1, k, slice(v, 1, 0, 2)); }),
            "KvCache::append: v: expected [1, 4, 2, 3] ([B, n, Hkv, dim]), got [1, 2, 2, 3]");
  EXPECT_NE(message_of([&] { cache.append(1, {}, v); }).find("KvCache::append: k: "), std::string::npos);
  const Tensor ids = Tensor::zeros(DType::kInt32, {1, 4, 2, 4});
  EXPECT_EQ(message_of([&] { cache.append(1, ids, v); }), "KvCache::append: k: expected a floating dtype, got int32");
  const TensorView nothing(static_cast<const void*>(nullptr), DType::kFloat32, {1, 4, 2, 4});
  EXPECT_EQ(message_of([&] { cache.append(1, nothing, v); }), "KvCache::append: k: expected memory for [1, 4, 2, 4], got a null pointer");
  EXPECT_EQ(cache.layer(0).keys().size(1), 4);
  EXPECT_EQ(cache.layer(1).keys().size(1), 0);
  EXPECT_TRUE(same_values(cache.layer(0).keys(), k));
}

TEST(KvCache, BadConfigurationsNameTheField) {
  const auto made = [](const KvCacheConfig& config) { return message_of([&] { KvCache cache(config); }); };
  EXPECT_EQ(made({.layers = 0, .head_dim = 1}), "KvCache: layers: expected at least 1, got 0");
  EXPECT_EQ(made({.batch = 0, .head_dim = 1}), "KvCache: batch: expected at least 1, got 0");
  EXPECT_EQ(made({.kv_heads = -1, .head_dim = 1}), "KvCache: kv_heads: expected at least 1, got -1");
  EXPECT_EQ(made({}), "KvCache: head_dim: expected at least 1, got 0");
  EXPECT_EQ(made({.head_dim = 1, .value_dim = -2}), "KvCache: value_dim: expected at least 1, got -2");
  EXPECT_EQ(made({.head_dim = 1, .capacity_tokens = -1}), "KvCache: capacity_tokens: expected at least 0, got -1");
  EXPECT_THROW(KvCache({.head_dim = std::int64_t{1} << 40, .capacity_tokens = std::int64_t{1} << 40}), std::bad_alloc);
  // Keys and values fit by themselves; together they wrap around to less than nothing.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_THROW(KvCache({.head_dim = 1, .capacity_tokens = kMost - 63}), std::bad_alloc);
  EXPECT_THROW(KvCache({.head_dim = 1, .capacity_tokens = kMost}), std::bad_alloc);
  EXPECT_THROW(KvCache({.kv_heads = kMost, .head_dim = 8}), std::bad_alloc);  // bytes_per_token
  EXPECT_THROW(KvCache({.layers = 1 << 30, .batch = 1 << 20, .head_dim = 8, .capacity_tokens = 1 << 20}), std::bad_alloc);
}

TEST(KvCache, SizesAndNames) {
  const KvCache cache(
      {.layers = 3, .batch = 2, .kv_heads = 4, .head_dim = 8, .value_dim = 6, .capacity_tokens = 1, .format = KvFormat::kFloat16});
  EXPECT_EQ(cache.bytes_per_token(), 3 * 4 * (8 + 6) * 2);
  EXPECT_EQ(cache.config().value_dim, 6);
  EXPECT_EQ(KvCache({.head_dim = 8}).config().value_dim, 8);
  EXPECT_STREQ(to_string(KvFormat::kFloat32), "float32");
  EXPECT_STREQ(to_string(KvFormat::kBFloat16), "bfloat16");
  EXPECT_STREQ(to_string(KvFormat::kFloat16), "float16");
}

TEST(KvCache, Moves) {
  KvCache a({.head_dim = 2, .capacity_tokens = 4});
  const Tensor k = random_normal({1, 4, 1, 2}, DType::kFloat32, 1);
  a.append(0, k, k);
  KvCache b = std::move(a);
  EXPECT_TRUE(same_values(b.layer(0).keys(), k));
}

#if defined(__linux__)
std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  statm >> total >> resident;
  return resident * 4096;
}

TEST(KvCache, UntouchedCapacityIsNotResident) {
  const std::int64_t before = resident_bytes();
  KvCache cache({.layers = 8, .kv_heads = 4, .head_dim = 128, .capacity_tokens = 1 << 16});  // 2 GB
  const Tensor k = random_normal({1, 1, 4, 128}, DType::kFloat32, 1);
  for (std::int64_t layer = 0; layer < 8; ++layer) cache.append(layer, k, k);
  // 64 heads: 256 KB in small pages, 128 MB should the system make every one of them huge.
  EXPECT_LT(resident_bytes() - before, std::int64_t{160} << 20);
}
#endif

}  // namespace
}  // namespace heed
