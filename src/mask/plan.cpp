// SPDX-License-Identifier: Apache-2.0
#include "mask/plan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "mask/node.hpp"
#include "mask/transpose.hpp"

namespace heed::mask {
namespace {

using kernels::kBlockKeys;
using kernels::kMaxBlockRows;

constexpr std::int64_t kFullTile = -1;  // of TileRun::bits

/// Everything that makes one plan.
struct Problem {
  const MaskNode* mask;
  Geometry geometry;
  std::int64_t first_head;  // of the KV head's group
  std::int32_t group;
  std::int32_t block_rows;
};

/// Packed rows [begin, end), and the tokens they touch.
struct RowBlock {
  std::int64_t begin, end;
  std::int64_t token_begin, token_end;

  [[nodiscard]] std::int64_t rows() const noexcept { return end - begin; }
};

/// Adds one plan to the storage. Its pointers are set once nothing moves any more.
class PlanCompiler {
 public:
  PlanCompiler(const Problem& problem, PlanStorage& out)
      : problem_(problem), mask_(*problem.mask), keys_(problem.geometry.keys), first_key_(problem.geometry.first_key), out_(out),
        plan_begin_(out.runs.size()), tiles_begin_(out.bits.size() / kBlockKeys) {}

  void compile() {
    const std::int64_t rows = problem_.geometry.tokens * problem_.group;
    out_.run_begin.push_back(0);
    for (std::int64_t begin = 0; begin < rows; begin += problem_.block_rows) {
      compile_row_block(begin, std::min(begin + problem_.block_rows, rows));
      out_.run_begin.push_back(static_cast<std::int64_t>(out_.runs.size() - plan_begin_));
    }
    out_.plans.push_back({.rows = rows, .keys = keys_, .block_rows = problem_.block_rows});
  }

  /// Packed rows [begin, end), one row block.
  void compile_row_block(std::int64_t begin, std::int64_t end) {
    block_ = {begin, end, begin / problem_.group, (end - 1) / problem_.group + 1};
    first_run_ = out_.runs.size();
    if (keys_ > first_key_) visit(first_key_ / kBlockKeys, (keys_ + kBlockKeys - 1) / kBlockKeys);
  }

 private:
  /// Key blocks [begin, end), in rising order.
  void visit(std::int64_t begin, std::int64_t end) {
    const Coverage coverage = classify(begin, end);
    if (coverage == Coverage::kNone) return;
    if (coverage == Coverage::kFull && begin * kBlockKeys >= first_key_) return add_full(begin, end);
    if (end - begin == 1) return add_mixed(begin);
    const std::int64_t middle = begin + (end - begin) / 2;
    visit(begin, middle);
    visit(middle, end);
  }

  /// Over the block's tokens and, where heads differ, every head of the group: a superset where the block starts or ends inside a
  /// token's heads, which can only turn an exact answer into kMixed.
  Coverage classify(std::int64_t begin, std::int64_t end) const noexcept {
    Tile tile = {.batch = problem_.geometry.batch,
                 .head = problem_.first_head,
                 .index_begin = block_.token_begin,
                 .index_end = block_.token_end,
                 .query_offset = problem_.geometry.query_offset,
                 .key_begin = std::max(begin * kBlockKeys, first_key_),
                 .key_end = std::min(end * kBlockKeys, keys_)};
    Coverage result = mask_.classify(tile);
    if (!mask_.traits().uses_head) return result;
    for (std::int32_t g = 1; g < problem_.group && result != Coverage::kMixed; ++g) {
      tile.head = problem_.first_head + g;
      result = united(result, mask_.classify(tile));
    }
    return result;
  }

  void add_full(std::int64_t begin, std::int64_t end) {
    if (out_.runs.size() > first_run_) {
      kernels::TileRun& last = out_.runs.back();
      if (last.bits == kFullTile && last.first_block + last.block_count == begin) {
        last.block_count += static_cast<std::int32_t>(end - begin);
        return;
      }
    }
    out_.runs.push_back({static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end - begin), kFullTile});
  }

  /// Looks at the bits of one tile, which may turn out to be empty or full.
  void add_mixed(std::int64_t key_block) {
    const std::int64_t key_begin = key_block * kBlockKeys;
    const int count = static_cast<int>(std::min<std::int64_t>(kBlockKeys, keys_ - key_begin));
    std::array<std::uint64_t, kBlockKeys> words{};
    fill_rows(key_begin, count, words);
    if (first_key_ > key_begin) {
      for (std::uint64_t& word : words) word &= ~low_bits(first_key_ - key_begin);
    }
    std::uint64_t any = 0;
    std::uint64_t all = low_bits(count);
    for (std::int64_t r = 0; r < block_.rows(); ++r) {
      any |= words[static_cast<std::size_t>(r)];
      all &= words[static_cast<std::size_t>(r)];
    }
    if (any == 0) return;
    if (all == low_bits(count)) return add_full(key_block, key_block + 1);
    transpose_64x64(words.data());
    const auto tile = static_cast<std::int64_t>(out_.bits.size() / kBlockKeys - tiles_begin_);
    out_.bits.insert(out_.bits.end(), words.begin(), words.end());
    out_.runs.push_back({static_cast<std::int32_t>(key_block), 1, tile});
  }

  /// words[r] = keys that row r of the block sees. One answer serves all heads of a token where the mask does not tell them apart.
  void fill_rows(std::int64_t key_begin, int count, std::array<std::uint64_t, kBlockKeys>& words) const noexcept {
    const bool each_head = mask_.traits().uses_head;
    std::int64_t token = block_.token_begin;
    std::int64_t g = block_.begin - token * problem_.group;
    std::uint64_t known = 0;
    for (std::int64_t r = 0; r < block_.rows(); ++r, ++g) {
      if (g == problem_.group) {
        g = 0;
        ++token;
      }
      if (each_head || g == 0 || r == 0) {
        known = mask_.bits({.batch = problem_.geometry.batch,
                            .head = problem_.first_head + g,
                            .index = token,
                            .position = token + problem_.geometry.query_offset},
                           key_begin, count);
      }
      words[static_cast<std::size_t>(r)] = known;
    }
  }

  const Problem problem_;
  const MaskNode& mask_;
  const std::int64_t keys_, first_key_;
  PlanStorage& out_;
  const std::size_t plan_begin_;   ///< runs of the plans before this one
  const std::size_t tiles_begin_;  ///< mixed tiles of the plans before this one
  RowBlock block_{};
  std::size_t first_run_ = 0;  ///< of the row block at hand
};

static_assert(kMaxBlockRows <= kBlockKeys, "rows of a tile are transposed in a square of kBlockKeys bits");

/// Visible slots of one run over `rows` rows; `bits` are those of its plan.
std::int64_t count_visible(const kernels::TileRun& run, std::int64_t rows, std::int64_t keys, const std::uint64_t* bits) noexcept {
  if (run.bits == kFullTile) {
    const std::int64_t key_begin = std::int64_t{run.first_block} * kBlockKeys;
    const std::int64_t key_end = key_begin + std::int64_t{run.block_count} * kBlockKeys;
    return rows * (std::min(key_end, keys) - key_begin);
  }
  std::int64_t slots = 0;
  const std::uint64_t* words = bits + run.bits * kBlockKeys;
  for (int j = 0; j < kBlockKeys; ++j) slots += std::popcount(words[j]);
  return slots;
}

std::int64_t count_visible(const kernels::TilePlan& plan) noexcept {
  std::int64_t slots = 0;
  std::int64_t row_block = 0;
  for (std::int64_t begin = 0; begin < plan.rows; begin += plan.block_rows, ++row_block) {
    const std::int64_t rows = std::min<std::int64_t>(plan.block_rows, plan.rows - begin);
    for (std::int64_t i = plan.run_begin[row_block]; i < plan.run_begin[row_block + 1]; ++i) {
      slots += count_visible(plan.runs[i], rows, plan.keys, plan.bits);
    }
  }
  return slots;
}

/// storage.like[s]: first sequence that sits as s does.
void find_alike(std::span<const Geometry> geometry, PlanStorage& storage) {
  std::vector<std::int64_t>& order = storage.order;
  order.resize(geometry.size());
  storage.like.resize(geometry.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int64_t s) {
    const Geometry& g = geometry[static_cast<std::size_t>(s)];
    return std::array{g.tokens, g.keys, g.query_offset, g.first_key};
  };
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const auto key_a = key(a);
    const auto key_b = key(b);
    return key_a != key_b ? key_a < key_b : a < b;
  });
  std::int64_t first = 0;
  for (const std::int64_t s : order) {
    if (s == order.front() || key(s) != key(first)) first = s;
    storage.like[static_cast<std::size_t>(s)] = first;
  }
}

/// First KV head whose query heads see what those of `kv_head` see.
std::int64_t first_alike(const MaskNode& mask, std::int64_t kv_head, std::int32_t group) noexcept {
  if (!mask.traits().uses_head) return 0;
  for (std::int64_t candidate = 0; candidate < kv_head; ++candidate) {
    std::int32_t g = 0;
    while (g < group && mask.heads_alike(candidate * group + g, kv_head * group + g)) ++g;
    if (g == group) return candidate;
  }
  return kv_head;
}

/// Storages that this thread's plan sets have finished with. Two sets alive at once each find their own again: the last one to come is the
/// first to go, so the last place is filled first and the first full place is taken first.
class SpareStorages {
 public:
  PlanStorage take() noexcept {
    for (PlanStorage& spare : spares_) {
      if (spare.capacity_bytes() > 0) return std::exchange(spare, {});
    }
    return {};
  }
  void give(PlanStorage storage) noexcept {
    if (storage.capacity_bytes() > kMostKept) return;
    for (std::size_t n = spares_.size(); n-- > 0;) {
      if (spares_[n].capacity_bytes() > 0) continue;
      storage.clear();
      spares_[n] = std::move(storage);
      return;
    }
  }

 private:
  /// Beyond it allocating is nothing beside the work: an irregular mask over 16,384 x 16,384 tokens.
  static constexpr std::size_t kMostKept = std::size_t{64} << 20;
  std::array<PlanStorage, 4> spares_;
};

SpareStorages& spares() {
  thread_local SpareStorages instance;
  return instance;
}

/// Room that spares a growing cache most of the growing: 4096 keys of a mask that is nowhere regular. Memory that is not touched costs nothing.
void reserve_some(PlanStorage& storage) {
  if (storage.capacity_bytes() > 0) return;
  storage.plans.reserve(64);
  storage.index.reserve(256);
  storage.run_begin.reserve(1024);
  storage.runs.reserve(4096);
  storage.bits.reserve(1024 * kBlockKeys);
}

template <class T>
std::size_t bytes_of(const std::vector<T>& list) noexcept {
  return list.capacity() * sizeof(T);
}

}  // namespace

std::size_t PlanStorage::capacity_bytes() const noexcept {
  return bytes_of(plans) + bytes_of(index) + bytes_of(run_begin) + bytes_of(runs) + bytes_of(bits) + bytes_of(order) + bytes_of(like);
}

void PlanStorage::clear() noexcept {
  plans.clear();
  index.clear();
  run_begin.clear();
  runs.clear();
  bits.clear();
}

PlanSet::PlanSet(const Mask& mask, std::span<const Geometry> geometry, std::int64_t kv_heads, std::int32_t group, std::int32_t block_rows)
    : kv_heads_(kv_heads), storage_(spares().take()) {
  reserve_some(storage_);
  compile(mask, geometry, group, block_rows);
  point_into_storage();
}

PlanSet::~PlanSet() {
  if (storage_.capacity_bytes() > 0) spares().give(std::move(storage_));
}

void PlanSet::compile(const Mask& mask, std::span<const Geometry> geometry, std::int32_t group, std::int32_t block_rows) {
  const MaskNode& node = mask.node();
  const auto sequences = static_cast<std::int64_t>(geometry.size());
  const bool may_share = sequences > 1 && !node.traits().uses_batch;
  if (may_share) find_alike(geometry, storage_);
  storage_.index.resize(static_cast<std::size_t>(sequences * kv_heads_));
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t like_s = may_share ? storage_.like[static_cast<std::size_t>(s)] : s;
    for (std::int64_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
      std::int32_t& index = storage_.index[static_cast<std::size_t>(s * kv_heads_ + kv_head)];
      const std::int64_t like_head = like_s == s ? first_alike(node, kv_head, group) : kv_head;
      if (like_s != s || like_head != kv_head) {
        index = storage_.index[static_cast<std::size_t>(like_s * kv_heads_ + like_head)];
        continue;
      }
      index = static_cast<std::int32_t>(storage_.plans.size());
      PlanCompiler({.mask = &node,
                    .geometry = geometry[static_cast<std::size_t>(s)],
                    .first_head = kv_head * group,
                    .group = group,
                    .block_rows = block_rows},
                   storage_)
          .compile();
    }
  }
}

void PlanSet::point_into_storage() noexcept {
  const std::int64_t* run_begin = storage_.run_begin.data();
  const kernels::TileRun* runs = storage_.runs.data();
  const std::uint64_t* bits = storage_.bits.data();
  for (kernels::TilePlan& plan : storage_.plans) {
    plan.run_begin = run_begin;
    plan.runs = runs;
    plan.bits = bits;
    const std::int64_t row_blocks = (plan.rows + plan.block_rows - 1) / plan.block_rows;
    const std::int64_t count = run_begin[row_blocks];
    for (std::int64_t run = 0; run < count; ++run) {
      if (runs[run].bits != kFullTile) bits += kBlockKeys;
    }
    run_begin += row_blocks + 1;
    runs += count;
  }
}

TileCounts count_tiles(const Mask& mask, const Geometry& geometry, std::int64_t head, std::int32_t block_rows) {
  PlanStorage storage;
  PlanCompiler compiler({.mask = &mask.node(), .geometry = geometry, .first_head = head, .group = 1, .block_rows = block_rows}, storage);
  TileCounts counts;
  for (std::int64_t begin = 0; begin < geometry.tokens; begin += block_rows) {
    const std::int64_t end = std::min(begin + block_rows, geometry.tokens);
    storage.clear();
    compiler.compile_row_block(begin, end);
    for (const kernels::TileRun& run : storage.runs) {
      counts.visited += run.block_count;
      counts.partial += run.bits == kFullTile ? 0 : 1;
      counts.visible += count_visible(run, end - begin, geometry.keys, storage.bits.data());
    }
  }
  return counts;
}

const kernels::TilePlan& PlanSet::plan(std::int64_t sequence, std::int64_t kv_head) const {
  return storage_.plans[static_cast<std::size_t>(storage_.index[static_cast<std::size_t>(sequence * kv_heads_ + kv_head)])];
}

std::int64_t PlanSet::visible_slots() const {
  std::vector<std::int64_t> slots;
  slots.reserve(storage_.plans.size());
  for (const kernels::TilePlan& plan : storage_.plans) slots.push_back(count_visible(plan));
  std::int64_t all = 0;
  for (const std::int32_t index : storage_.index) all += slots[static_cast<std::size_t>(index)];
  return all;
}

}  // namespace heed::mask
