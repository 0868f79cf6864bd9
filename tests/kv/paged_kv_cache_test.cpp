// SPDX-License-Identifier: Apache-2.0
// PagedKvCache against sequences that each own their tokens.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/kernels.hpp>
#include <heed/paged_kv_cache.hpp>

#include "support/attention.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

using test::random_normal;
using test::same_bits;
using Ids = std::vector<std::int32_t>;
using Sequence = PagedKvCache::Sequence;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

constexpr std::int64_t kHeads = 2, kDim = 3, kValueDim = 5, kPage = kKvPageTokens;

/// A token's key or value depends on all tokens up to it, as in a model: whoever shares a prefix wrongly is found out.
Tensor rows_of(const Ids& ids, std::int64_t first, std::int64_t layer, std::int64_t dim, std::uint64_t salt) {
  Tensor rows(DType::kFloat32, {1, static_cast<std::int64_t>(ids.size()) - first, kHeads, dim});
  std::uint64_t hash = 1469598103934665603U + salt + 7 * static_cast<std::uint64_t>(layer);
  float* to = rows.data_as<float>();
  for (std::size_t t = 0; t < ids.size(); ++t) {
    hash = (hash ^ static_cast<std::uint32_t>(ids[t])) * 1099511628211U;
    if (static_cast<std::int64_t>(t) < first) continue;
    for (std::int64_t n = 0; n < kHeads * dim; ++n) {
      *to++ = static_cast<float>((hash >> (n % 40)) % 1021) / 512.0F - 1.0F;
    }
  }
  return rows;
}

/// Appends the tokens of `ids` that the sequence does not have yet.
void extend(PagedKvCache& pool, Sequence s, const Ids& ids, bool tells_ids = true) {
  const std::int64_t first = pool.length(s);
  pool.reserve(s, static_cast<std::int64_t>(ids.size()) - first);
  for (std::int64_t layer = 0; layer < pool.config().layers; ++layer) {
    pool.append(layer, s, rows_of(ids, first, layer, kDim, 1), rows_of(ids, first, layer, kValueDim, 2));
  }
  if (tells_ids) return pool.commit(s, std::span(ids).subspan(static_cast<std::size_t>(first)));
  pool.commit(s);
}

void expect_holds(const PagedKvCache& pool, Sequence s, const Ids& ids) {
  ASSERT_EQ(pool.length(s), static_cast<std::int64_t>(ids.size()));
  if (ids.empty()) return;
  const std::int64_t layer = pool.config().layers - 1;
  const KvView view = pool.view(layer, s);
  const Tensor k = rows_of(ids, 0, layer, kDim, 1), v = rows_of(ids, 0, layer, kValueDim, 2);
  ASSERT_TRUE(same_bits(view.copy_keys(), k));
  ASSERT_TRUE(same_bits(view.copy_values(), v));
  const Tensor q = random_normal({1, 1, kHeads, kDim}, DType::kFloat32, ids.size());
  ASSERT_TRUE(same_bits(attention(q, view, {.mask = Mask::causal()}), attention(q, k, v, {.mask = Mask::causal()})));
}

Ids prompt_of(std::int64_t tokens, std::int32_t seed) {
  std::mt19937 random(static_cast<std::uint32_t>(seed));
  Ids ids;
  for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(random() % 5));
  return ids;
}

PagedKvCache make_pool(std::int64_t pages, std::int64_t layers = 2) {
  return PagedKvCache({.layers = layers, .kv_heads = kHeads, .head_dim = kDim, .value_dim = kValueDim, .capacity_pages = pages});
}

TEST(PagedKvCache, PrefixesAreSharedPageByPage) {
  PagedKvCache pool = make_pool(20);
  const Ids prompt = prompt_of(3 * kPage + 10, 1);
  const auto first = pool.create(prompt);
  EXPECT_EQ(first.length, 0);
  extend(pool, first.sequence, prompt);
  EXPECT_EQ(pool.usage().used_pages, 4);

  Ids other = prompt;
  other.resize(2 * kPage + 100);
  other.back() += 1;
  const auto second = pool.create(other);
  EXPECT_EQ(second.length, 2 * kPage);
  extend(pool, second.sequence, other);
  EXPECT_EQ(pool.usage().used_pages, 5);
  expect_holds(pool, first.sequence, prompt);
  expect_holds(pool, second.sequence, other);

  // A prompt of whole pages keeps its last one: somebody has to compute the logits behind it.
  EXPECT_EQ(pool.create(std::span(prompt).first(2 * kPage)).length, kPage);
  EXPECT_EQ(pool.create(std::span(prompt).first(2 * kPage + 1)).length, 2 * kPage);
  // The same tokens behind others are not the same.
  Ids moved = prompt_of(kPage, 9);
  moved.insert(moved.end(), prompt.begin(), prompt.end());
  EXPECT_EQ(pool.create(moved).length, 0);
}

TEST(PagedKvCache, PagesOutliveTheirSequencesUntilTheyAreNeeded) {
  PagedKvCache pool = make_pool(6);
  const Ids a = prompt_of(2 * kPage + 1, 1), b = prompt_of(2 * kPage + 1, 2);
  for (const Ids* ids : {&a, &b}) {
    const auto start = pool.create(*ids);
    extend(pool, start.sequence, *ids);
    pool.release(start.sequence);
  }
  EXPECT_EQ(pool.usage().cached_pages, 4);
  EXPECT_EQ(pool.usage().free_pages, 2);
  const auto again = pool.create(a);  // used last now
  EXPECT_EQ(again.length, 2 * kPage);
  pool.release(again.sequence);
  const Ids c = prompt_of(3 * kPage, 3);
  const auto third = pool.create(c);
  extend(pool, third.sequence, c);  // two free pages and one of b, its last
  EXPECT_EQ(pool.create(b).length, kPage);
  EXPECT_EQ(pool.create(a).length, 2 * kPage);
  expect_holds(pool, third.sequence, c);
}

TEST(PagedKvCache, AForkIsCopiedWhenItIsWritten) {
  PagedKvCache pool = make_pool(8);
  Ids ids = prompt_of(kPage + 20, 1);
  const Sequence a = pool.create();
  extend(pool, a, ids);
  const Sequence b = pool.fork(a);
  EXPECT_EQ(pool.usage().used_pages, 2);
  Ids left = ids, right = ids;
  left.push_back(7);
  right.push_back(8);
  extend(pool, a, left);
  EXPECT_EQ(pool.usage().used_pages, 3);
  extend(pool, b, right);
  EXPECT_EQ(pool.usage().used_pages, 3);
  expect_holds(pool, a, left);
  expect_holds(pool, b, right);
  pool.release(a);
  EXPECT_EQ(pool.block_table(b).size(), 2U);
  expect_holds(pool, b, right);
}

// What others could find in a page that is cut and written again is not what it holds.
TEST(PagedKvCache, ACutPageIsNoLongerFound) {
  PagedKvCache pool = make_pool(8);
  Ids ids = prompt_of(2 * kPage + 5, 1);
  const Sequence a = pool.create();
  extend(pool, a, ids);
  EXPECT_EQ(pool.create(ids).length, 2 * kPage);
  pool.release(1);
  pool.truncate(a, kPage + 100);
  EXPECT_EQ(pool.create(ids).length, 2 * kPage);  // nothing is written yet
  pool.release(2);
  Ids other(ids.begin(), ids.begin() + kPage + 100);
  other.push_back(77);
  extend(pool, a, other);
  EXPECT_EQ(pool.create(ids).length, kPage);
  expect_holds(pool, a, other);
}

TEST(PagedKvCache, SlotsMayBeSkipped) {
  PagedKvCache pool = make_pool(4, 1);
  const Ids ids = prompt_of(300, 1);
  const Sequence a = pool.create(), b = pool.create();
  pool.reserve(a, 300);
  pool.reserve(b, 300);
  const Tensor k = rows_of(ids, 0, 0, kDim, 1), v = rows_of(ids, 0, 0, kValueDim, 2);
  const TensorView k_rows(k.data(), DType::kFloat32, {300, kHeads, kDim}), v_rows(v.data(), DType::kFloat32, {300, kHeads, kValueDim});
  std::vector<std::int64_t> slots = pool.slots(a, 0, 300);
  pool.append(0, k_rows, v_rows, slots);
  const std::vector<std::int64_t> skipped(300, -1);
  pool.append(0, k_rows, v_rows, skipped);
  pool.commit(a);
  expect_holds(pool, a, ids);
  // Two sequences in one call: the first 299 tokens to b, the last one nowhere.
  slots = pool.slots(b, 0, 300);
  slots.back() = -1;
  pool.append(0, k_rows, v_rows, slots);
  pool.reserve(b, 0);
  EXPECT_EQ(pool.usage().used_pages, 2);
}

TEST(PagedKvCache, SequencesOfUnequalLengthInOneCall) {
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kInt8}) {
    PagedKvCache pool({.kv_heads = 2, .head_dim = 16, .capacity_pages = 40, .format = format});
    const Ids prefix = prompt_of(4 * kPage, 1);
    std::vector<Sequence> sequences;
    std::vector<KvCache> alone;
    for (std::int32_t n = 0; n < 6; ++n) {
      Ids ids = prefix;
      const Ids rest = prompt_of(1 + 90 * n, 10 + n);
      ids.insert(ids.end(), rest.begin(), rest.end());
      const auto length = static_cast<std::int64_t>(ids.size());
      // Keys and values that depend on the token's place and, behind the prefix, on the sequence.
      const Tensor common = random_normal({1, 4 * kPage, 2, 16}, DType::kFloat32, 1);
      const Tensor own = random_normal({1, length - 4 * kPage, 2, 16}, DType::kFloat32, 100 + static_cast<std::uint64_t>(n));
      const auto start = pool.create(ids);
      EXPECT_EQ(start.length, n == 0 ? 0 : 4 * kPage);
      if (start.length == 0) {
        pool.reserve(start.sequence, 4 * kPage);
        pool.append(0, start.sequence, common, common);
        pool.commit(start.sequence, prefix);
      }
      pool.reserve(start.sequence, length - 4 * kPage);
      pool.append(0, start.sequence, own, own);
      pool.commit(start.sequence, rest);
      sequences.push_back(start.sequence);
      alone.emplace_back(KvCacheConfig{.kv_heads = 2, .head_dim = 16, .capacity_tokens = length, .format = format});
      alone.back().append(0, common, common);
      alone.back().append(0, own, own);
    }
    EXPECT_LT(pool.usage().used_pages, 4 + 6 * 3);
    for (const std::int64_t q_tokens : {1, 3, 40}) {
      const Tensor q = random_normal({6, q_tokens, 4, 16}, DType::kFloat32, 5);
      const AttentionState all = attention_state(q, pool.view(0, sequences), {.mask = Mask::causal()});
      for (std::size_t n = 0; n < 6; ++n) {
        const auto b = static_cast<std::int64_t>(n);
        const AttentionState one = attention_state(slice(q.view(), 0, b, 1), alone[n].layer(0), {.mask = Mask::causal()});
        EXPECT_TRUE(same_bits(one.out, slice(all.out.view(), 0, b, 1)) && same_bits(one.lse, slice(all.lse.view(), 0, b, 1)))
            << to_string(format) << ", sequence " << n << ", Lq " << q_tokens;
      }
    }
  }
}

/// Sequences whose prefixes meet and part at different pages, some of them forks, so that several of them read common keys together.
struct Family {
  PagedKvCache pool;
  std::vector<Sequence> sequences;
  std::vector<KvCache> alone;  // the same tokens, each by itself

  Family(KvFormat format, std::int64_t kv_heads) : pool({.kv_heads = kv_heads, .head_dim = 16, .capacity_pages = 60, .format = format}) {
    for (const std::vector<std::int64_t>& parts : std::vector<std::vector<std::int64_t>>{
             {1, 2, 3, 4, 5}, {1, 2, 3, 4, 6}, {1, 2, 7}, {1, 2}, {1, 8, 9, 10}, {1}, {11, 12}, {11, 12}, {13}, {1, 2, 3, 4, 14}}) {
      Ids ids;
      std::vector<Tensor> rows;
      for (const std::int64_t part : parts) {  // part n: a page, or less if it is the last one
        const std::int64_t tokens = part == parts.back() ? 1 + 37 * part % kPage : kPage;
        for (std::int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<std::int32_t>(1000 * part + t));
        rows.push_back(random_normal({1, tokens, kv_heads, 16}, DType::kFloat32, static_cast<std::uint64_t>(part)));
      }
      const auto start = pool.create(ids);
      alone.emplace_back(KvCacheConfig{.kv_heads = kv_heads, .head_dim = 16, .capacity_tokens = 5 * kPage, .format = format});
      std::int64_t first = 0;
      for (const Tensor& part : rows) {
        const std::int64_t tokens = part.shape()[1];
        alone.back().append(0, part, part);
        if (first >= start.length) {
          pool.reserve(start.sequence, tokens);
          pool.append(0, start.sequence, part, part);
          pool.commit(start.sequence, std::span(ids).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(tokens)));
        }
        first += tokens;
      }
      sequences.push_back(start.sequence);
    }
  }
};

TEST(PagedKvCache, KeysThatAreReadTogetherChangeNoBit) {
  const int threads_before = get_num_threads();
  for (const base::Isa isa : test::isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kFloat16, KvFormat::kInt8}) {
      const Family family(format, 2);
      ASSERT_LT(family.pool.usage().used_pages, 24);  // prefixes are shared
      for (const std::int64_t group : {1, 5, 30}) {   // up to 64 rows at once: all sequences, or 12, or 2
        const std::int64_t heads = 2 * group;
        const Tensor q = random_normal({10, 1, heads, 16}, DType::kFloat32, 5), sinks = random_normal({heads}, DType::kFloat32, 6),
                     slopes = random_normal({heads}, DType::kFloat32, 7, 0.01);
        for (const AttentionOptions& options :
             {AttentionOptions{.mask = Mask::causal()}, AttentionOptions{.softcap = 3.0, .sink_logits = sinks},
              AttentionOptions{.mask = Mask::causal(), .alibi_slopes = slopes},
              AttentionOptions{.mask = Mask::sliding_window(300) | Mask::sink_tokens(2)},
              AttentionOptions{.mask = Mask::causal() & ~Mask::window(40, 0)}, AttentionOptions{.dropout = Dropout{0.2, 3}}}) {
          for (const int threads : {1, 3}) {
            set_num_threads(threads);
            const AttentionState all = attention_state(q, family.pool.view(0, family.sequences), options);
            for (std::int64_t b = 0; b < 10; ++b) {
              if (options.dropout && b > 0) break;  // its bits follow the batch entry
              const AttentionState one =
                  attention_state(slice(q.view(), 0, b, 1), family.alone[static_cast<std::size_t>(b)].layer(0), options);
              ASSERT_TRUE(same_bits(one.out, slice(all.out.view(), 0, b, 1)) && same_bits(one.lse, slice(all.lse.view(), 0, b, 1)))
                  << to_string(format) << ", G " << group << ", " << threads << " threads, sequence " << b << ", "
                  << options.mask.to_string();
            }
          }
        }
      }
    }
  }
  set_num_threads(threads_before);
}

TEST(PagedKvCache, Errors) {
  PagedKvCache pool = make_pool(2);
  const Sequence a = pool.create();
  EXPECT_EQ(message_of([&] { pool.reserve(a, 2 * kPage + 1); }),
            "PagedKvCache::reserve: n: expected at most 512 tokens (2 of 2 pages are free or can be), got 513");
  EXPECT_NE(message_of([&] { pool.reserve(a, std::numeric_limits<std::int64_t>::max()); }).find("at most 512"), std::string::npos);
  EXPECT_EQ(message_of([&] { pool.reserve(a, -1); }), "PagedKvCache::reserve: n: expected at least 0, got -1");
  pool.reserve(a, 400);
  EXPECT_EQ(message_of([&] { pool.commit(a, Ids(3)); }),
            "PagedKvCache::commit: ids: expected none or 400, as many as were reserved, got 3");
  const Tensor k = Tensor::zeros(DType::kFloat32, {1, 400, kHeads, kDim}), v = Tensor::zeros(DType::kFloat32, {1, 400, kHeads, kValueDim});
  EXPECT_EQ(message_of([&] { pool.append(2, a, k, v); }), "PagedKvCache::append: layer: expected a layer in [0, 2), got 2");
  EXPECT_EQ(message_of([&] { pool.append(0, a, v, v); }),
            "PagedKvCache::append: k: expected [1, 400, 2, 3] ([1, reserved tokens, Hkv, D]), got [1, 400, 2, 5]");
  const std::vector<std::int64_t> bad = {512};
  const Tensor k1 = Tensor::zeros(DType::kFloat32, {1, kHeads, kDim}), v1 = Tensor::zeros(DType::kFloat32, {1, kHeads, kValueDim});
  EXPECT_EQ(message_of([&] { pool.append(0, k1, v1, bad); }), "PagedKvCache::append: slots: expected -1 or slots in [0, 512), got 512");
  pool.commit(a);
  EXPECT_EQ(message_of([&] { pool.truncate(a, 401); }), "PagedKvCache::truncate: length: expected a length in [0, 400], got 401");
  EXPECT_EQ(message_of([&] { static_cast<void>(pool.slots(a, 399, 2)); }),
            "PagedKvCache::slots: first, count: expected tokens among the 400 stored and reserved ones, got 399, 2");
  const Sequence b = pool.fork(a);
  EXPECT_NE(message_of([&] { pool.reserve(b, 1); }).find("at most 0 tokens"), std::string::npos);  // there is no page for the copy
  pool.release(a);
  pool.reserve(b, 1);
  for (const auto& call : std::vector<std::function<void()>>{[&] { pool.release(a); }, [&] { pool.reserve(99, 1); },
                                                             [&] { static_cast<void>(pool.view(0, a)); }}) {
    EXPECT_NE(message_of(call).find("sequence: expected one that was created and not released"), std::string::npos);
  }
  EXPECT_EQ(message_of([] { PagedKvCache({.head_dim = 4}); }), "PagedKvCache: capacity_pages: expected at least 1, got 0");
  EXPECT_THROW(PagedKvCache({.head_dim = 1 << 30, .capacity_pages = std::int64_t{1} << 50}), std::bad_alloc);
}

/// What a user would keep by hand.
struct Model {
  std::map<Sequence, Ids> sequences;
  std::vector<Ids> templates;  ///< what prompts begin with
  std::mt19937_64 random{42};

  std::uint64_t draw(std::uint64_t below) { return random() % below; }
  Sequence any() { return std::next(sequences.begin(), static_cast<std::ptrdiff_t>(draw(sequences.size())))->first; }
};

void expect_consistent(const PagedKvCache& pool, const Model& model) {
  std::set<std::int64_t> pages;
  for (const auto& [s, ids] : model.sequences) {
    const auto table = pool.block_table(s);
    ASSERT_EQ(static_cast<std::int64_t>(table.size()), (static_cast<std::int64_t>(ids.size()) + kPage - 1) / kPage);
    pages.insert(table.begin(), table.end());
  }
  const auto usage = pool.usage();
  ASSERT_EQ(usage.used_pages, static_cast<std::int64_t>(pages.size()));
  ASSERT_EQ(usage.used_pages + usage.cached_pages + usage.free_pages, pool.config().capacity_pages);
}

/// Grows `ids` by up to 200 tokens, most often along a template, so that prefixes meet.
void grow(Model& model, Ids& ids) {
  const Ids& along = model.templates[model.draw(model.templates.size())];
  const std::size_t more = 1 + model.draw(model.draw(3) == 0 ? 200 : 8);
  for (std::size_t n = 0; n < more; ++n) {
    const bool follows = ids.size() < along.size() && model.draw(500) != 0;
    ids.push_back(follows ? along[ids.size()] : static_cast<std::int32_t>(model.draw(5)));
  }
}

TEST(PagedKvCache, AHundredThousandRandomOperations) {
  PagedKvCache pool = make_pool(24, 1);
  Model model;
  for (std::int32_t n = 0; n < 3; ++n) model.templates.push_back(prompt_of(1100, 100 + n));
  std::copy_n(model.templates[0].begin(), 600, model.templates[1].begin());  // two that part in their third page
  std::int64_t shared = 0, refused = 0;
  for (int step = 0; step < 100000; ++step) {
    const std::uint64_t what = model.draw(100);
    if (model.sequences.empty() || (what < 8 && model.sequences.size() < 12)) {
      const Ids& along = model.templates[model.draw(3)];
      const Ids prompt(along.begin(), along.begin() + static_cast<std::ptrdiff_t>(1 + model.draw(1000)));
      const auto start = pool.create(prompt);
      model.sequences[start.sequence] = Ids(prompt.begin(), prompt.begin() + start.length);
      shared += start.length;
      continue;
    }
    const Sequence s = model.any();
    Ids& ids = model.sequences[s];
    if (what < 80) {
      Ids longer = ids;
      grow(model, longer);
      try {
        extend(pool, s, longer, what != 79);
        ids = longer;
      } catch (const InvalidArgument&) {
        ++refused;
        expect_holds(pool, s, ids);
      }
    } else if (what < 84 && model.sequences.size() < 12) {
      model.sequences[pool.fork(s)] = ids;
    } else if (what < 88) {
      ids.resize(ids.size() - model.draw(ids.size() + 1) / (1 + model.draw(4)));
      pool.truncate(s, static_cast<std::int64_t>(ids.size()));
    } else if (what < 91) {  // a step that is given up
      try {
        pool.reserve(s, static_cast<std::int64_t>(model.draw(300)));
      } catch (const InvalidArgument&) {
        ++refused;
      }
      pool.truncate(s, static_cast<std::int64_t>(ids.size()));
    } else if (what < 96) {
      pool.release(s);
      model.sequences.erase(s);
    }
    if (step % 50 == 0 && !model.sequences.empty()) {
      const Sequence checked = model.any();
      expect_holds(pool, checked, model.sequences[checked]);
    }
    if (step % 10 == 0) expect_consistent(pool, model);
    if (testing::Test::HasFatalFailure()) FAIL() << "step " << step;
  }
  EXPECT_GT(shared, 100000);
  EXPECT_GT(refused, 100);
  for (const auto& [s, ids] : model.sequences) {
    expect_holds(pool, s, ids);
    pool.release(s);
  }
  EXPECT_EQ(pool.usage().used_pages, 0);
  EXPECT_EQ(pool.usage().cached_pages + pool.usage().free_pages, 24);
}

}  // namespace
}  // namespace heed
