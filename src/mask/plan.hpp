// SPDX-License-Identifier: Apache-2.0
// Compiles a Mask into what kernels read: kernels::TilePlan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <heed/mask.hpp>

#include "kernels/attention/plan.hpp"

namespace heed::mask {

/// Where the queries and keys of one sequence sit.
struct Geometry {
  std::int64_t tokens = 0;        ///< Lq
  std::int64_t keys = 0;          ///< keys that exist: kv_length, or Lk
  std::int64_t query_offset = 0;  ///< position of query 0; may be negative; less than 2^61 away from 0
  std::int64_t batch = 0;         ///< the batch entry that masks know it by
  std::int64_t first_key = 0;     ///< keys before it are gone: no mask shows them
  friend bool operator==(const Geometry&, const Geometry&) = default;
};

/// What one query head of a sequence takes.
struct TileCounts {
  std::int64_t visited = 0;  ///< tiles with a visible slot
  std::int64_t partial = 0;  ///< those that are not wholly visible
  std::int64_t visible = 0;  ///< (query, key) slots
};

/// Counts the tiles of a plan, group = 1, without keeping it.
[[nodiscard]] TileCounts count_tiles(const Mask& mask, const Geometry& geometry, std::int64_t head, std::int32_t block_rows);

/// The arrays behind plans. A thread keeps them from call to call, so that planning allocates nothing in the steady state.
struct PlanStorage {
  std::vector<kernels::TilePlan> plans;
  std::vector<std::int32_t> index;      ///< [sequences * kv_heads] -> plans
  std::vector<std::int64_t> run_begin;  ///< of all plans, behind each other; so are the next two
  std::vector<kernels::TileRun> runs;
  std::vector<std::uint64_t> bits;
  std::vector<std::int64_t> order, like;  ///< [sequences]

  [[nodiscard]] std::size_t capacity_bytes() const noexcept;
  void clear() noexcept;
};

/// One plan per (sequence, KV head), shared where the mask does not tell them apart.
///
/// Made on every attention call: whole key ranges are classified first and halved only where they are mixed, so that a decode step over
/// 100 000 keys costs a few classifications.
class PlanSet {
 public:
  /// geometry has one entry per sequence. group = Hq / Hkv. block_rows <= kernels::kMaxBlockRows.
  PlanSet(const Mask& mask, std::span<const Geometry> geometry, std::int64_t kv_heads, std::int32_t group, std::int32_t block_rows);

  ~PlanSet();
  PlanSet(PlanSet&&) noexcept = default;
  PlanSet& operator=(PlanSet&&) = delete;

  /// Stays where it is when the set is moved.
  [[nodiscard]] const kernels::TilePlan& plan(std::int64_t sequence, std::int64_t kv_head) const;
  /// Visible (query head, query, key) slots of all sequences and heads: what useful FLOPs are counted from.
  /// Counted when asked: attention itself never needs it.
  [[nodiscard]] std::int64_t visible_slots() const;

 private:
  void compile(const Mask& mask, std::span<const Geometry> geometry, std::int32_t group, std::int32_t block_rows);
  void point_into_storage() noexcept;

  std::int64_t kv_heads_;
  PlanStorage storage_;
};

}  // namespace heed::mask
