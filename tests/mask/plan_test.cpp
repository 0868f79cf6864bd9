// SPDX-License-Identifier: Apache-2.0
// Compiled plans against brute force on random masks and shapes, what they share, and how little they look at.
#include <gtest/gtest.h>

#include <atomic>
#include <random>

#include "mask/node.hpp"
#include "mask/transpose.hpp"
#include "plan_check.hpp"
#include "property.hpp"
#include "random_model.hpp"

namespace heed::test {
namespace {

using mask::Geometry;
using mask::PlanSet;

/// Shapes around the tile sizes, offsets of both signs, lengths of their own for every batch entry.
PlanCase random_case(Choices& choices, Call& call) {
  constexpr std::int32_t kBlockRows[] = {48, 15, 24, 64, 1};
  constexpr std::int32_t kGroups[] = {1, 2, 3, 9};
  PlanCase c;
  c.block_rows = kBlockRows[choices.below(5)];
  c.group = kGroups[choices.below(4)];
  c.kv_heads = 1 + choices.below(2);
  call.batch = 1 + choices.below(3);
  call.heads = c.kv_heads * c.group;
  call.tokens = choices.below(140 / c.group);
  call.keys = choices.below(300);
  for (std::int64_t sequence = 0; sequence < call.batch; ++sequence) {  // in any order, of any length
    const std::int64_t keys = choices.below(2) == 0 ? call.keys : choices.below(call.keys + 1);
    const std::int64_t tokens = choices.below(2) == 0 ? call.tokens : choices.below(call.tokens + 1);
    const std::int64_t offset = choices.below(3) == 2 ? choices.below(200) - 100 : keys - tokens;
    c.geometry.push_back({tokens, keys, offset, choices.below(call.batch)});
  }
  return c;
}

TEST(PlanProperties, PlainMasksOverRandomShapes) {
  check_property("a plan shows what the predicate shows",
                 [](const std::vector<std::uint8_t>& shape, const std::vector<std::uint8_t>& mask) {
                   Choices choices(shape);
                   Choices mask_choices(mask);
                   Call call;
                   const PlanCase c = random_case(choices, call);
                   RC_ASSERT(compare_plans(random_model(mask_choices, call, Tensors::kWithout), c) == "");
                 });
}

TEST(PlanProperties, AnyMaskOverRandomShapes) {
  check_property("a plan shows what the predicate shows, tensors included",
                 [](const std::vector<std::uint8_t>& shape, const std::vector<std::uint8_t>& mask) {
                   Choices choices(shape);
                   Choices mask_choices(mask);
                   Call call;
                   const PlanCase c = random_case(choices, call);
                   RC_ASSERT(compare_plans(random_model(mask_choices, call, Tensors::kWith), c) == "");
                 });
}

/// RapidCheck starts small; this one draws full-size byte lists, so that big shapes and deep masks come up all the time.
TEST(PlanProperties, LargeRandomCases) {
  std::mt19937 engine(7);
  const auto bytes = [&engine] {
    std::vector<std::uint8_t> list(200);
    for (std::uint8_t& byte : list) byte = static_cast<std::uint8_t>(engine() >> 8);
    return list;
  };
  for (int i = 0; i < 300; ++i) {
    Choices choices(bytes());
    Choices mask_choices(bytes());
    Call call;
    const PlanCase c = random_case(choices, call);
    ASSERT_EQ(compare_plans(random_model(mask_choices, call, Tensors::kWith), c), "") << "case " << i;
  }
}

TEST(PlanSharing, HeadsAndEntriesThatTheMaskDoesNotTellApart) {
  const std::vector<Geometry> geometry = {{4, 9, 5}, {4, 7, 3}, {4, 9, 5}};
  const PlanSet set(Mask::causal(), geometry, 3, 2, 48);
  EXPECT_EQ(&set.plan(0, 0), &set.plan(0, 2));
  EXPECT_EQ(&set.plan(0, 0), &set.plan(2, 1));
  EXPECT_NE(&set.plan(0, 0), &set.plan(1, 0));
}

TEST(PlanSharing, PerHeadPlansAreSharedByEqualGroups) {
  const Mask a = Mask::causal();
  const Mask b = Mask::sliding_window(3);
  const std::vector<Geometry> geometry = {{4, 9, 5}, {4, 9, 5}};
  const PlanSet set(Mask::per_head({a, b, a, a, Mask::causal(), Mask::sliding_window(3)}), geometry, 3, 2, 48);
  EXPECT_NE(&set.plan(0, 0), &set.plan(0, 1));
  EXPECT_EQ(&set.plan(0, 0), &set.plan(0, 2));
  EXPECT_EQ(&set.plan(1, 1), &set.plan(0, 1));
}

TEST(PlanSharing, BatchesOfDocumentsAreNotShared) {
  const Model model = documents_model({{1, 1, 2}, {1, 2, 2}});
  const std::vector<Geometry> geometry = {{3, 3, 0, 0}, {3, 3, 0, 1}};
  const PlanSet set(model.mask, geometry, 2, 1, 48);
  EXPECT_NE(&set.plan(0, 0), &set.plan(1, 0));
  EXPECT_EQ(&set.plan(1, 0), &set.plan(1, 1));
}

TEST(PlanForm, PlansStayValidWhenTheSetMoves) {
  const std::vector<Geometry> geometry = {{100, 100, 0}};
  PlanSet set(Mask::causal(), geometry, 1, 1, 48);
  const kernels::TileRun* runs = set.plan(0, 0).runs;
  const PlanSet moved(std::move(set));
  EXPECT_EQ(moved.plan(0, 0).runs, runs);
}

TEST(PlanForm, EmptySizes) {
  for (const Geometry& g : {Geometry{0, 0, 0}, Geometry{0, 5, 5}, Geometry{5, 0, -5}}) {
    for (const std::int32_t block_rows : {1, 48}) {
      const PlanSet set(Mask::causal(), std::vector{g}, 2, 3, block_rows);
      EXPECT_EQ(set.visible_slots(), 0);
      EXPECT_EQ(set.plan(0, 1).run_begin[(g.tokens * 3 + block_rows - 1) / block_rows], 0);
    }
  }
  EXPECT_EQ(PlanSet(Mask::causal(), {}, 2, 3, 48).visible_slots(), 0);
}

/// Every row sees every key that exists: a short last tile counts as full.
TEST(PlanForm, ShortLastTileIsPartOfAFullRun) {
  const PlanSet set(Mask::none(), std::vector<Geometry>{{1, 200, 199}}, 1, 1, 1);
  ASSERT_EQ(set.plan(0, 0).run_begin[1], 1);
  EXPECT_EQ(set.plan(0, 0).runs[0].block_count, 4);
  EXPECT_LT(set.plan(0, 0).runs[0].bits, 0);
}

TEST(PlanForm, FullRunsWithAGapStayApart) {
  const Model model = sink_tokens_model(64) | sliding_window_model(128);
  EXPECT_EQ(compare_plans(model, {{{1, 320, 319}}, 1, 1, 1}), "");
  EXPECT_EQ(PlanSet(model.mask, std::vector<Geometry>{{1, 320, 319}}, 1, 1, 1).plan(0, 0).run_begin[1], 2);
}

/// Row block i sees exactly tile i, so that the runs of neighbouring row blocks touch.
TEST(PlanForm, RunsDoNotReachIntoTheNextRowBlock) {
  std::vector<std::int64_t> ids(256);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i / 64);
  EXPECT_EQ(compare_plans(documents_model({ids}), {{{256, 256, 0}}, 1, 1, 64}), "");
}

TEST(Transpose, AgreesWithBitByBit) {
  std::mt19937_64 engine(11);
  std::uint64_t words[64];
  std::uint64_t expected[64] = {};
  for (std::uint64_t& word : words) word = engine();
  for (int r = 0; r < 64; ++r) {
    for (int c = 0; c < 64; ++c) expected[c] |= (words[r] >> c & 1U) << r;
  }
  mask::transpose_64x64(words);
  for (int c = 0; c < 64; ++c) ASSERT_EQ(words[c], expected[c]) << c;
}

/// Counts the questions that another mask is asked.
class Counting final : public MaskNode {
 public:
  explicit Counting(const Mask& mask) : MaskNode(mask.node().traits()), mask_(mask) {}
  mask::Coverage classify(const mask::Tile& tile) const noexcept override {
    ++classified;
    return mask_.node().classify(tile);
  }
  std::uint64_t bits(const mask::Row& row, std::int64_t key_begin, int count) const noexcept override {
    ++rows;
    return mask_.node().bits(row, key_begin, count);
  }
  void append_text(std::string& out) const override { mask_.node().append_text(out); }
  void append_description(std::string& out) const override { mask_.node().append_description(out); }
  bool equals(const MaskNode&) const noexcept override { return false; }

  mutable std::int64_t classified = 0, rows = 0;

 private:
  Mask mask_;
};

struct Questions {
  std::int64_t classified, rows;
};

Questions questions(const Mask& mask, const Geometry& geometry, std::int32_t block_rows) {
  const auto node = std::make_shared<Counting>(mask);
  const PlanSet set(Mask(node), std::vector{geometry}, 8, 1, block_rows);
  return {node->classified, node->rows};
}

TEST(PlanCost, OneRowOverManyKeysTakesAFewQuestions) {
  const Geometry decode = {1, 100'000, 99'999};
  EXPECT_EQ(questions(Mask::none(), decode, 1).classified, 1);
  EXPECT_EQ(questions(Mask::causal(), decode, 1).classified, 1);
  // Two ends of a window: two ways down a tree of 1563 tiles.
  EXPECT_LE(questions(Mask::sliding_window(1000), decode, 1).classified, 45);
  EXPECT_LE(questions(Mask::sliding_window(1000) | Mask::sink_tokens(4), decode, 1).classified, 90);
}

/// Causal at 64 K: each row block goes down to its diagonal (10 levels, 2 questions each) and looks at the 1 or 2 tiles there.
TEST(PlanCost, CausalGrowsWithTheDiagonal) {
  const std::int64_t length = 65'536;
  const std::int64_t blocks = (length + 47) / 48;
  const Questions asked = questions(Mask::causal(), {length, length, 0}, 48);
  EXPECT_LE(asked.classified, blocks * 24);
  EXPECT_LE(asked.rows, blocks * 2 * 48);
}

/// 128 packed documents with ids in no order at all: only tiles on the document borders are looked at bit by bit.
TEST(PlanCost, PackedDocumentsAreDecidedByTheirRuns) {
  const std::int64_t length = 32'768;
  std::vector<std::int64_t> ids(static_cast<std::size_t>(length));
  for (std::int64_t i = 0; i < length; ++i) ids[static_cast<std::size_t>(i)] = i / 256 * 7919 % 1009;
  const Questions asked = questions(Mask::documents(TensorView(ids.data(), Shape{length})), {length, length, 0}, 48);
  const std::int64_t blocks = (length + 47) / 48;
  EXPECT_LE(asked.classified, blocks * 40);
  EXPECT_LE(asked.rows, 128 * 2 * 48 * 8);  // a border is met by one row block and at most 8 of its key tiles
}

}  // namespace
}  // namespace heed::test
