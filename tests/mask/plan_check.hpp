// SPDX-License-Identifier: Apache-2.0
// Compares compiled plans with a predicate, element by element, and with what plan.hpp promises about their form.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mask/plan.hpp"
#include "model.hpp"

namespace heed::test {

struct PlanCase {
  std::vector<mask::Geometry> geometry;  ///< one per sequence
  std::int64_t kv_heads = 1;
  std::int32_t group = 1;
  std::int32_t block_rows = 48;
};

/// Visibility of one row block, unpacked; a text where the plan breaks a promise.
class UnpackedBlock {
 public:
  UnpackedBlock(const kernels::TilePlan& plan, std::int64_t row_block)
      : plan_(plan), row_begin_(row_block * plan.block_rows), rows_(std::min<std::int64_t>(plan.rows - row_begin_, plan.block_rows)),
        visible_(static_cast<std::size_t>(rows_ * plan.keys), 0) {
    for (std::int64_t run = plan.run_begin[row_block]; run < plan.run_begin[row_block + 1]; ++run) read(plan.runs[run]);
  }
  [[nodiscard]] bool at(std::int64_t row, std::int64_t key) const {
    return visible_[static_cast<std::size_t>((row - row_begin_) * plan_.keys + key)] != 0;
  }
  [[nodiscard]] const std::string& problem() const { return problem_; }

 private:
  void read(const kernels::TileRun& run) {
    const std::int64_t key_begin = std::int64_t{run.first_block} * kernels::kBlockKeys;
    const std::int64_t key_end = key_begin + std::int64_t{run.block_count} * kernels::kBlockKeys;
    if (run.first_block < next_block_) problem_ = "runs do not rise";
    if (run.block_count < 1 || key_begin >= plan_.keys || key_end >= plan_.keys + kernels::kBlockKeys)
      problem_ = "a run outside of the keys";
    if (run.bits < 0 && previous_full_ && run.first_block == next_block_) problem_ = "full runs that touch";
    if (run.bits >= 0 && run.block_count != 1) problem_ = "a mixed run of more than one tile";
    if (!problem_.empty()) return;
    previous_full_ = run.bits < 0;
    next_block_ = run.first_block + run.block_count;
    if (run.bits < 0) {
      for (std::int64_t r = 0; r < rows_; ++r) {
        for (std::int64_t j = key_begin; j < std::min(key_end, plan_.keys); ++j) set(r, j);
      }
    } else {
      read_mixed(key_begin, plan_.bits + run.bits * kernels::kBlockKeys);
    }
  }

  void read_mixed(std::int64_t key_begin, const std::uint64_t* words) {
    std::int64_t seen = 0;
    const std::int64_t keys = std::min<std::int64_t>(kernels::kBlockKeys, plan_.keys - key_begin);
    for (std::int64_t k = 0; k < kernels::kBlockKeys; ++k) {
      for (std::int64_t r = 0; r < 64; ++r) {
        if ((words[k] >> r & 1U) == 0) continue;
        if (k >= keys || r >= rows_) {
          problem_ = "a bit for a row or key that does not exist";
          return;
        }
        set(r, key_begin + k);
        ++seen;
      }
    }
    if (seen == 0) problem_ = "an empty tile that was kept";
    if (seen == keys * rows_) problem_ = "a full tile with bits";
  }

  void set(std::int64_t r, std::int64_t j) { visible_[static_cast<std::size_t>(r * plan_.keys + j)] = 1; }

  const kernels::TilePlan& plan_;
  std::int64_t row_begin_, rows_;
  std::vector<char> visible_;
  std::string problem_;
  std::int64_t next_block_ = 0;
  bool previous_full_ = false;
};

/// Empty when one plan says what the predicate says; counts the visible slots.
inline std::string compare_plan(const kernels::TilePlan& plan, const Predicate& visible, const PlanCase& c, std::int64_t sequence,
                                std::int64_t kv_head, std::int64_t& slots) {
  const mask::Geometry& g = c.geometry[static_cast<std::size_t>(sequence)];
  if (plan.rows != g.tokens * c.group || plan.keys != g.keys || plan.block_rows != c.block_rows) return "sizes differ";
  if (plan.run_begin[0] != 0) return "runs do not start at 0";
  for (std::int64_t block = 0; block * c.block_rows < plan.rows; ++block) {
    const UnpackedBlock unpacked(plan, block);
    if (!unpacked.problem().empty()) return unpacked.problem();
    for (std::int64_t r = block * c.block_rows; r < std::min<std::int64_t>(plan.rows, (block + 1) * c.block_rows); ++r) {
      const std::int64_t i = r / c.group;
      const std::int64_t h = kv_head * c.group + r % c.group;
      for (std::int64_t j = 0; j < g.keys; ++j) {
        const bool expected = visible(g.batch, h, i, i + g.query_offset, j);
        slots += expected ? 1 : 0;
        if (unpacked.at(r, j) == expected) continue;
        return "sequence " + std::to_string(sequence) + " h " + std::to_string(h) + " i " + std::to_string(i) + " p " +
               std::to_string(i + g.query_offset) + " j " + std::to_string(j) + (expected ? " is missing" : " is too much");
      }
    }
  }
  return {};
}

/// Empty when all plans of a set agree with the model.
inline std::string compare_plans(const Model& model, const PlanCase& c) {
  const mask::PlanSet set(model.mask, c.geometry, c.kv_heads, c.group, c.block_rows);
  std::int64_t slots = 0;
  for (std::int64_t s = 0; s < static_cast<std::int64_t>(c.geometry.size()); ++s) {
    for (std::int64_t kv_head = 0; kv_head < c.kv_heads; ++kv_head) {
      const std::string problem = compare_plan(set.plan(s, kv_head), model.visible, c, s, kv_head, slots);
      if (!problem.empty()) return model.mask.to_string() + ": " + problem;
    }
  }
  if (set.visible_slots() == slots) return {};
  return model.mask.to_string() + ": visible_slots " + std::to_string(set.visible_slots()) + ", counted " + std::to_string(slots);
}

}  // namespace heed::test
