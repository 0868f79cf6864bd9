// SPDX-License-Identifier: Apache-2.0
// heed bench --suite kv: one query over long caches of every format and layout, against the read bandwidth; and how many more keys a second
// a smaller format makes of it.
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <heed/heed.hpp>

#include "cli/bench/bench.hpp"
#include "cli/bench/caches.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

constexpr std::int64_t kKvHeads = 8, kHeadDim = 128;

/// As many independent caches of `keys` tokens as fill `bytes`, and what one query of every head reads of them.
struct Stored {
  std::vector<KvCache> caches;       // or
  std::optional<PagedKvCache> pool;  // one sequence for each
  std::vector<KvView> views;
  Tensor q, out;  // [1, 1, Hq, D] float32
  std::int64_t keys;
  double token_bytes = 0;

  Stored(std::int64_t group, std::int64_t keys_each)
      : q(random_tensor(DType::kFloat32, {1, 1, kKvHeads * group, kHeadDim}, 4)), out(DType::kFloat32, q.shape()), keys(keys_each) {}

  [[nodiscard]] double bytes() const { return token_bytes * static_cast<double>(keys) * static_cast<double>(views.size()); }
  [[nodiscard]] double tokens() const { return static_cast<double>(keys) * static_cast<double>(views.size()); }
  void run() {
    for (const KvView& view : views) attention_into({.out = out}, q, view, {.mask = Mask::causal()});
  }
};
using StoredPtr = std::shared_ptr<Stored>;

enum class Place { kCache, kPool };

void fill_caches(Stored& s, KvFormat format, std::int64_t count) {
  const std::int64_t part = std::min<std::int64_t>(s.keys, 1024);
  const Tensor rows = random_tensor(DType::kFloat32, {1, part, kKvHeads, kHeadDim}, 5);
  for (std::int64_t n = 0; n < count; ++n) {
    s.caches.emplace_back(KvCacheConfig{.kv_heads = kKvHeads, .head_dim = kHeadDim, .capacity_tokens = s.keys, .format = format});
    for (std::int64_t at = 0; at < s.keys; at += part) {
      s.caches.back().append(0, rows, rows);
      s.caches.back().commit(part);
    }
    s.views.push_back(s.caches.back().layer(0));
  }
}

/// Pages of all sequences in turn, so that those of one lie apart.
void fill_pool(Stored& s, KvFormat format, std::int64_t count) {
  const Tensor rows = random_tensor(DType::kFloat32, {1, kKvPageTokens, kKvHeads, kHeadDim}, 5);
  s.pool.emplace(
      PagedKvCacheConfig{.kv_heads = kKvHeads, .head_dim = kHeadDim, .capacity_pages = count * (s.keys / kKvPageTokens), .format = format});
  std::vector<PagedKvCache::Sequence> sequences;
  for (std::int64_t n = 0; n < count; ++n) sequences.push_back(s.pool->create());
  for (std::int64_t at = 0; at < s.keys; at += kKvPageTokens) {
    for (const auto sequence : sequences) {
      s.pool->reserve(sequence, kKvPageTokens);
      s.pool->append(0, sequence, rows, rows);
      s.pool->commit(sequence);
    }
  }
  for (const auto sequence : sequences) s.views.push_back(s.pool->view(0, sequence));
}

StoredPtr store(KvFormat format, Place place, std::int64_t group, std::int64_t keys, std::int64_t bytes) {
  auto stored = std::make_shared<Stored>(group, keys);
  const KvCache probe({.kv_heads = kKvHeads, .head_dim = kHeadDim, .format = format});
  stored->token_bytes = static_cast<double>(probe.bytes_per_token());
  const std::int64_t count = std::max<std::int64_t>(1, bytes / (probe.bytes_per_token() * keys));
  place == Place::kCache ? fill_caches(*stored, format, count) : fill_pool(*stored, format, count);
  return stored;
}

struct Row {
  KvFormat format;
  Place place;
  std::int64_t group;
  std::optional<double> target;
};
constexpr std::array<Row, 8> kRows = {{{KvFormat::kFloat32, Place::kCache, 4, 0.85},
                                       {KvFormat::kFloat16, Place::kCache, 4, std::nullopt},
                                       {KvFormat::kBFloat16, Place::kCache, 4, 0.80},
                                       {KvFormat::kBFloat16, Place::kPool, 4, 0.80},
                                       {KvFormat::kInt8, Place::kCache, 4, 0.70},
                                       {KvFormat::kInt8, Place::kPool, 4, 0.70},
                                       {KvFormat::kBFloat16, Place::kCache, 1, std::nullopt},
                                       {KvFormat::kInt8, Place::kCache, 1, 0.70}}};

std::string shape_of(const Stored& s, std::int64_t group) {
  return fmt::format("B1 Hq{} Hkv{} Lq1 Lk{} D{}, {} caches", kKvHeads * group, kKvHeads, s.keys, kHeadDim, s.views.size());
}

BenchCase against_memory(const Row& row, const StoredPtr& stored, const YardstickPtr& read) {
  return {.name = row.place == Place::kCache ? "decode, KvCache" : "decode, PagedKvCache",
          .shape = shape_of(*stored, row.group),
          .dtype = to_string(row.format),
          .yardstick = read,
          .work = stored->bytes(),
          .run = [stored] { stored->run(); },
          .target = row.target};
}

/// As many keys, in caches of both formats.
BenchCase against_bfloat16(std::int64_t keys, std::int64_t bytes) {
  constexpr double kTarget = 1.6;
  const StoredPtr wide = store(KvFormat::kBFloat16, Place::kCache, 4, keys, bytes);
  const StoredPtr narrow = store(KvFormat::kInt8, Place::kCache, 4, keys, bytes);
  return {.name = "keys a second, against bfloat16",
          .shape = shape_of(*narrow, 4),
          .dtype = to_string(KvFormat::kInt8),
          .yardstick = rival_yardstick("bfloat16", "Mkeys/s", 1e3 * wide->tokens(), [wide] { wide->run(); }),
          .work = 1e3 * narrow->tokens(),
          .run = [narrow] { narrow->run(); },
          .target = kTarget};
}

}  // namespace

void run_kv(Bench& bench) {
  const std::int64_t keys = bench.pick(8192, 512), bytes = bench.quick() ? 8 << 20 : decode_bytes();
  const CachePool memory(DType::kFloat32, bytes);
  const YardstickPtr read = read_yardstick(memory.as_floats());
  for (const Row& row : kRows) {
    if (interrupted()) return;
    const StoredPtr stored = store(row.format, row.place, row.group, keys, bytes);
    bench.run(std::array{against_memory(row, stored, read)}, 6);
  }
  if (!interrupted()) bench.run(std::array{against_bfloat16(keys, bytes)}, 12);
}

}  // namespace heed::cli::bench
