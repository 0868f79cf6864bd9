// SPDX-License-Identifier: Apache-2.0
#include "mask/plan.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

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

class PlanCompiler {
 public:
  PlanCompiler(const Problem& problem, CompiledPlan& out)
      : problem_(problem), mask_(*problem.mask), keys_(problem.geometry.keys), out_(out) {}

  void compile() {
    const std::int64_t rows = problem_.geometry.tokens * problem_.group;
    const std::int64_t row_blocks = rows == 0 ? 0 : (rows + problem_.block_rows - 1) / problem_.block_rows;
    out_.run_begin.reserve(static_cast<std::size_t>(row_blocks) + 1);
    out_.runs.reserve(static_cast<std::size_t>(row_blocks) * 2);
    out_.run_begin.push_back(0);
    for (std::int64_t begin = 0; begin < rows; begin += problem_.block_rows) {
      compile_row_block(begin, std::min(begin + problem_.block_rows, rows));
      out_.run_begin.push_back(static_cast<std::int64_t>(out_.runs.size()));
    }
    out_.plan = {.rows = rows,
                 .keys = keys_,
                 .block_rows = problem_.block_rows,
                 .run_begin = out_.run_begin.data(),
                 .runs = out_.runs.data(),
                 .bits = out_.bits.data()};
  }

 private:
  void compile_row_block(std::int64_t begin, std::int64_t end) {
    block_ = {begin, end, begin / problem_.group, (end - 1) / problem_.group + 1};
    first_run_ = out_.runs.size();
    if (keys_ > 0) visit(0, (keys_ + kBlockKeys - 1) / kBlockKeys);
  }

  /// Key blocks [begin, end), in rising order.
  void visit(std::int64_t begin, std::int64_t end) {
    const Coverage coverage = classify(begin, end);
    if (coverage == Coverage::kNone) return;
    if (coverage == Coverage::kFull) return add_full(begin, end);
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
                 .key_begin = begin * kBlockKeys,
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
    std::uint64_t any = 0;
    std::uint64_t all = low_bits(count);
    for (std::int64_t r = 0; r < block_.rows(); ++r) {
      any |= words[static_cast<std::size_t>(r)];
      all &= words[static_cast<std::size_t>(r)];
    }
    if (any == 0) return;
    if (all == low_bits(count)) return add_full(key_block, key_block + 1);
    transpose_64x64(words.data());
    const auto tile = static_cast<std::int64_t>(out_.bits.size()) / kBlockKeys;
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
  const std::int64_t keys_;
  CompiledPlan& out_;
  RowBlock block_{};
  std::size_t first_run_ = 0;
};

static_assert(kMaxBlockRows <= kBlockKeys, "rows of a tile are transposed in a square of kBlockKeys bits");

std::int64_t count_visible(const kernels::TilePlan& plan) {
  std::int64_t slots = 0;
  std::int64_t row_block = 0;
  for (std::int64_t begin = 0; begin < plan.rows; begin += plan.block_rows, ++row_block) {
    const std::int64_t rows = std::min<std::int64_t>(plan.block_rows, plan.rows - begin);
    for (std::int64_t i = plan.run_begin[row_block]; i < plan.run_begin[row_block + 1]; ++i) {
      const kernels::TileRun& run = plan.runs[i];
      if (run.bits == kFullTile) {
        const std::int64_t key_begin = std::int64_t{run.first_block} * kBlockKeys;
        const std::int64_t key_end = key_begin + std::int64_t{run.block_count} * kBlockKeys;
        slots += rows * (std::min(key_end, plan.keys) - key_begin);
        continue;
      }
      const std::uint64_t* words = plan.bits + run.bits * kBlockKeys;
      for (int j = 0; j < kBlockKeys; ++j) slots += std::popcount(words[j]);
    }
  }
  return slots;
}

/// like[s]: first sequence that sits as s does.
std::vector<std::int64_t> first_alike(std::span<const Geometry> geometry) {
  std::vector<std::int64_t> order(geometry.size());
  std::vector<std::int64_t> like(geometry.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](std::int64_t s) {
    const Geometry& g = geometry[static_cast<std::size_t>(s)];
    return std::array{g.tokens, g.keys, g.query_offset};
  };
  std::sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const auto key_a = key(a);
    const auto key_b = key(b);
    return key_a != key_b ? key_a < key_b : a < b;
  });
  std::int64_t first = 0;
  for (const std::int64_t s : order) {
    if (s == order.front() || key(s) != key(first)) first = s;
    like[static_cast<std::size_t>(s)] = first;
  }
  return like;
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

}  // namespace

PlanSet::PlanSet(const Mask& mask, std::span<const Geometry> geometry, std::int64_t kv_heads, std::int32_t group, std::int32_t block_rows)
    : kv_heads_(kv_heads) {
  const MaskNode& node = mask.node();
  const auto sequences = static_cast<std::int64_t>(geometry.size());
  const bool may_share = sequences > 1 && !node.traits().uses_batch;
  const std::vector<std::int64_t> like = may_share ? first_alike(geometry) : std::vector<std::int64_t>();
  index_.resize(static_cast<std::size_t>(sequences * kv_heads));
  for (std::int64_t s = 0; s < sequences; ++s) {
    const std::int64_t like_s = may_share ? like[static_cast<std::size_t>(s)] : s;
    for (std::int64_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      std::int32_t& index = index_[static_cast<std::size_t>(s * kv_heads + kv_head)];
      const std::int64_t like_head = like_s == s ? first_alike(node, kv_head, group) : kv_head;
      if (like_s != s || like_head != kv_head) {
        index = index_[static_cast<std::size_t>(like_s * kv_heads + like_head)];
        continue;
      }
      index = static_cast<std::int32_t>(plans_.size());
      plans_.emplace_back();
      PlanCompiler({.mask = &node,
                    .geometry = geometry[static_cast<std::size_t>(s)],
                    .first_head = kv_head * group,
                    .group = group,
                    .block_rows = block_rows},
                   plans_.back())
          .compile();
    }
  }
}

const kernels::TilePlan& PlanSet::plan(std::int64_t sequence, std::int64_t kv_head) const {
  return plans_[static_cast<std::size_t>(index_[static_cast<std::size_t>(sequence * kv_heads_ + kv_head)])].plan;
}

std::int64_t PlanSet::visible_slots() const {
  std::vector<std::int64_t> slots;
  slots.reserve(plans_.size());
  for (const CompiledPlan& compiled : plans_) slots.push_back(count_visible(compiled.plan));
  std::int64_t all = 0;
  for (const std::int32_t index : index_) all += slots[static_cast<std::size_t>(index)];
  return all;
}

}  // namespace heed::mask
