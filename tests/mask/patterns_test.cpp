// SPDX-License-Identifier: Apache-2.0
// The patterns of the literature: brute force over all small sizes, tiles, sizes beyond reason, randomness, and what they cost to plan.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>

#include <heed/error.hpp>

#include "mask/count.hpp"
#include "mask/node.hpp"
#include "pattern_models.hpp"
#include "plan_check.hpp"

namespace heed::test {
namespace {

using mask::Coverage;
using mask::Geometry;
using mask::Tile;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

TEST(Patterns, AgreeWithTheirPredicatesForAllSmallSizes) {
  for (const Model& model : every_pattern()) {
    for (std::int64_t tokens = 0; tokens <= 12; ++tokens) {
      for (std::int64_t keys = 0; keys <= 12; ++keys) {
        for (const std::int64_t offset : {keys - tokens, std::int64_t{0}, std::int64_t{-3}}) {
          for (std::int64_t at = 0; at < 2 * tokens * keys; ++at) {
            const std::int64_t h = at % 2, i = at / 2 / keys, j = at / 2 % keys;
            ASSERT_EQ(model.mask.visible(0, h, i, i + offset, j), model.visible(0, h, i, i + offset, j))
                << model.mask.to_string() << " h " << h << " i " << i << " p " << i + offset << " j " << j;
          }
        }
      }
    }
  }
}

TEST(Patterns, CompileToTheirPredicatesForAllSmallSizes) {
  for (const Model& model : every_pattern()) {
    for (std::int64_t tokens = 0; tokens <= 12; ++tokens) {
      for (std::int64_t keys = 0; keys <= 12; ++keys) {
        ASSERT_EQ(compare_plans(model, {{{tokens, keys, keys - tokens}, {tokens, keys, 0}}, 2, 1, 15}), "") << tokens << " " << keys;
        ASSERT_EQ(compare_plans(model, {{{tokens, keys, keys - tokens}, {tokens, keys, 0}}, 1, 2, 5}), "") << tokens << " " << keys;
      }
    }
  }
}

TEST(Patterns, CompileToTheirPredicatesAcrossTiles) {
  for (const Model& model : every_pattern()) {
    ASSERT_EQ(compare_plans(model, {{{100, 300, 200}, {100, 300, 20}, {70, 130, -50}}, 1, 2, 48}), "");
  }
  // More than are kept as a list.
  const Model many = random_blocks_model({.block = 2, .per_row = 70, .columns = 100, .seed = 4});
  ASSERT_EQ(compare_plans(many, {{{40, 220, 50}}, 1, 2, 48}), "");
}

/// Counts of visible elements above and left of each corner, so that any tile's is four of them.
class Counts {
 public:
  Counts(const Model& model, std::int64_t head, std::int64_t offset, std::int64_t side) : width_(side + 1) {
    counts_.assign(static_cast<std::size_t>(width_ * width_), 0);
    for (std::int64_t i = 0; i < side; ++i) {
      for (std::int64_t j = 0; j < side; ++j) {
        const int one = model.visible(0, head, i, i + offset, j) ? 1 : 0;
        counts_[static_cast<std::size_t>((i + 1) * width_ + j + 1)] = one + at(i, j + 1) + at(i + 1, j) - at(i, j);
      }
    }
  }
  [[nodiscard]] Coverage cover(const Tile& t) const {
    const int seen =
        at(t.index_end, t.key_end) - at(t.index_begin, t.key_end) - at(t.index_end, t.key_begin) + at(t.index_begin, t.key_begin);
    if (seen == 0) return Coverage::kNone;
    return seen == (t.index_end - t.index_begin) * (t.key_end - t.key_begin) ? Coverage::kFull : Coverage::kMixed;
  }

 private:
  [[nodiscard]] int at(std::int64_t i, std::int64_t j) const { return counts_[static_cast<std::size_t>(i * width_ + j)]; }

  std::int64_t width_;
  std::vector<int> counts_;
};

/// A tree may say "mixed" of an empty tile behind the prefix, and a combination where its parts' mixtures exclude each other.
bool is_exact(const Mask& mask) {
  const std::string text = mask.to_string();
  return text.find("tree") == std::string::npos && text.find('&') == std::string::npos && text.find('|') == std::string::npos;
}

void check_every_tile(const Model& model, std::int64_t head, std::int64_t offset, std::int64_t side) {
  const Counts counts(model, head, offset, side);
  const bool exact = is_exact(model.mask);
  Tile tile = {0, head, 0, 0, offset, 0, 0};
  for (tile.index_begin = 0; tile.index_begin < side; ++tile.index_begin) {
    for (tile.index_end = tile.index_begin + 1; tile.index_end <= side; ++tile.index_end) {
      for (tile.key_begin = 0; tile.key_begin < side; ++tile.key_begin) {
        for (tile.key_end = tile.key_begin + 1; tile.key_end <= side; ++tile.key_end) {
          const Coverage said = model.mask.node().classify(tile);
          if (said == Coverage::kMixed && !exact) continue;
          ASSERT_EQ(said, counts.cover(tile)) << model.mask.to_string() << " h " << head << " i [" << tile.index_begin << ", "
                                              << tile.index_end << ") offset " << offset << " j [" << tile.key_begin << ", " << tile.key_end
                                              << ")";
        }
      }
    }
  }
}

TEST(Patterns, ClassifyEverySmallTile) {
  for (const Model& model : every_pattern()) {
    for (const std::int64_t offset : {-2, 0, 3, 40}) {
      for (const std::int64_t head : {0, 1}) check_every_tile(model, head, offset, 14);
    }
  }
}

/// The tiles that a pattern is made of, when the numbers are the kernel's own: no bit of them is looked at.
TEST(Patterns, NaturalTilesAreFullOrEmpty) {
  const std::vector<Mask> masks = {Mask::chunked(192),
                                   Mask::in_blocks(192, Mask::window(1, 1)),
                                   Mask::in_blocks(64, Mask::columns({})),
                                   Mask::shifted_window({.grid = {1536}, .window = {192}}),
                                   Mask::shifted_window({.grid = {8, 192}, .window = {2, 192}}),
                                   Mask::fixed({.stride = 192, .vertical = 64}),
                                   Mask::fixed({.stride = 192, .vertical = 64, .rotation = 3})};
  for (const Mask& mask : masks) {
    const mask::PlanSet set(mask, std::vector<Geometry>{{1536, 1536, 0}}, 1, 1, 48);
    for (std::int64_t run = 0; run < set.plan(0, 0).run_begin[32]; ++run) EXPECT_LT(set.plan(0, 0).runs[run].bits, 0) << mask.to_string();
  }
}

TEST(Patterns, TreesShowTheirPrefixAtOnce) {
  const Mask mask = Mask::tree(std::vector<std::optional<std::int64_t>>(48));
  EXPECT_EQ(mask.node().classify({0, 0, 0, 48, 1024, 0, 1024}), Coverage::kFull);
  EXPECT_EQ(mask.node().classify({0, 0, 0, 24, 1024, 1048, 1072}), Coverage::kNone);
  EXPECT_EQ(mask.node().classify({0, 0, 48, 49, 1024, 0, 1024}), Coverage::kNone);
  EXPECT_EQ(mask.node().classify({0, 0, 0, 49, 1024, 0, 1024}), Coverage::kMixed);
}

TEST(Patterns, TheTextOfCombinationsIsTheExpression) {
  const std::vector<std::int64_t> list = {5, 0};
  EXPECT_EQ(Mask::longformer(2, list).to_string(), "window 2 2 | global_tokens 0 5");
  EXPECT_EQ(Mask::vertical_slash(list, list).to_string(), "causal & (columns 0 5 | diagonals 0 5)");
  EXPECT_EQ(Mask::sinks_and_window(4, 9).to_string(), "causal & (sink_tokens 4 | sliding_window 9)");
  EXPECT_EQ(Mask::a_shape(4, 9), Mask::sinks_and_window(4, 9));
  EXPECT_EQ(Mask::random_blocks({}).to_string(), "in_blocks 64 (random_keys 3 * 0)");
  EXPECT_EQ(Mask::big_bird({.columns = 32, .seed = 7, .heads = RandomHeads::kEach}).to_string(),
            "in_blocks 64 (window 1 1 | global_tokens 0 | random_keys 3 32 7 each_head)");
}

TEST(Patterns, HeadsDifferWhereTheyAreToldTo) {
  const Mask fixed = Mask::fixed({.stride = 8, .vertical = 2, .rotation = 3});
  EXPECT_TRUE(fixed.node().traits().uses_head);
  EXPECT_TRUE(fixed.node().heads_alike(1, 4));
  EXPECT_FALSE(fixed.node().heads_alike(1, 3));
  EXPECT_FALSE(Mask::fixed({.stride = 8}).node().traits().uses_head);
  EXPECT_TRUE(Mask::random_blocks({}).node().heads_alike(0, 1));
  EXPECT_FALSE(Mask::random_blocks({.heads = RandomHeads::kEach}).node().heads_alike(0, 1));
}

/// Numbers at the end of their range: answers, and nothing for the undefined-behaviour sanitizer to find.
TEST(Patterns, SizesBeyondReason) {
  const std::vector<std::int64_t> ends = {0, kMost};
  const std::vector<Mask> masks = {
      Mask::dilated(kMost, 1),
      Mask::dilated(kMost, kMost),
      Mask::dilated(1, kMost),
      Mask::strided(kMost),
      Mask::chunked(kMost),
      Mask::fixed({.stride = kMost, .vertical = kMost}),
      Mask::fixed({.stride = kMost, .vertical = 1, .rotation = kMost}),
      Mask::fixed({.stride = kMost, .vertical = kMost / 3, .rotation = 3}),
      Mask::columns(ends),
      Mask::diagonals(ends),
      Mask::axial({kMost}),
      Mask::axial({1 << 30, 1 << 30, 2}),
      Mask::neighborhood({.grid = {kMost}, .window = {kMost}}),
      Mask::neighborhood({.grid = {kMost}, .window = {3}, .dilation = {kMost / 3}}),
      Mask::neighborhood({.grid = {1 << 30, 1 << 30}, .window = {1 << 15, 1 << 15}, .dilation = {1 << 15, 1 << 15}}),
      Mask::shifted_window({.grid = {kMost}, .window = {kMost}, .shift = {kMost - 1}}),
      Mask::in_blocks(kMost, Mask::causal()),
      Mask::random_blocks({.block = kMost, .per_row = kMost, .columns = kMost}),
      Mask::random_blocks({.block = 1, .per_row = kMost, .columns = kMost}),
      Mask::random_blocks({.block = 1, .per_row = 2, .columns = kMost}),
      Mask::random_blocks({.block = 1, .per_row = kMost / 4}),
      Mask::random_blocks({.per_row = 0}),
      Mask::random_blocks({.columns = 0}),
      Mask::tree(std::vector<std::optional<std::int64_t>>(70)),
      Mask::sinks_and_window(kMost, kMost),
      Mask::longformer(kMost, ends),
      Mask::big_bird({.block = kMost, .window_blocks = kMost, .columns = kMost})};
  constexpr std::int64_t kFar = std::int64_t{1} << 61;
  for (const Mask& mask : masks) {
    for (const std::int64_t offset : {std::int64_t{0}, kFar - 100, -kFar}) {
      for (const std::int64_t key : {std::int64_t{0}, std::int64_t{1} << 36, kFar}) {
        const Coverage said = mask.node().classify({0, 1, 0, 40, offset, key, key + 64});
        for (std::int64_t i = 0; i < 40; ++i) {
          const std::uint64_t bits = mask.node().bits({0, 1, i, i + offset}, key, 64);
          const std::uint64_t promised = said == Coverage::kFull ? ~std::uint64_t{0} : said == Coverage::kNone ? 0 : bits;
          ASSERT_EQ(bits, promised) << mask.to_string() << " " << offset << " " << key;
          ASSERT_EQ(mask.node().bits({0, 1, i, i + offset}, key + 7, 1), bits >> 7 & 1U) << mask.to_string();
        }
      }
    }
    EXPECT_EQ(Mask::parse(mask.to_string()), mask);
    EXPECT_NE(mask.describe(), "");
  }
}

TEST(Patterns, RandomBlocksAreAsManyAndAsSpreadAsTheyShouldBe) {
  constexpr std::int64_t kRows = 4000, kPerRow = 2;
  for (std::int64_t columns = 2; columns <= 12; ++columns) {
    const Mask mask = Mask::random_blocks({.block = 1, .per_row = kPerRow, .columns = columns, .seed = 11});
    std::map<std::set<std::int64_t>, std::int64_t> seen;
    for (std::int64_t row = 0; row < kRows; ++row) {
      std::set<std::int64_t> drawn;
      for (std::int64_t j = 0; j < columns + 9; ++j) {
        if (mask.visible(0, 0, row, row, j)) drawn.insert(j);
      }
      ASSERT_EQ(drawn.size(), kPerRow);
      ++seen[drawn];
    }
    const double pairs = static_cast<double>(columns * (columns - 1)) / 2;
    ASSERT_EQ(static_cast<double>(seen.size()), pairs);
    // A count's standard deviation is at most the root of what is expected; 5 of them are met by none of 286 pairs in 9999 of 10 000 seeds.
    const double expected = kRows / pairs;
    for (const auto& [drawn, count] : seen) {
      EXPECT_NEAR(static_cast<double>(count), expected, 5 * std::sqrt(expected))
          << columns << ": " << *drawn.begin() << " " << *drawn.rbegin();
    }
  }
}

TEST(Patterns, RandomBlocksFollowTheirSeedAndNothingElse) {
  const auto row = [](const RandomBlocksPattern& pattern, std::int64_t head) {
    std::string text;
    for (std::int64_t j = 0; j < 64; ++j) text += Mask::random_blocks(pattern).visible(0, head, 0, 77, j) ? '1' : '0';
    return text;
  };
  const RandomBlocksPattern pattern = {.block = 1, .per_row = 8, .columns = 64, .seed = 1};
  RandomBlocksPattern other = pattern;
  other.seed = 2;
  RandomBlocksPattern each = pattern;
  each.heads = RandomHeads::kEach;
  EXPECT_EQ(row(pattern, 0), row(pattern, 5));
  EXPECT_NE(row(pattern, 0), row(other, 0));
  EXPECT_NE(row(each, 0), row(each, 1));
  // Written down once: a change would change every trained model's mask.
  EXPECT_EQ(row(pattern, 0), "0000000000010000000000010000000000000010000100001100010000010000");
  EXPECT_EQ(row(each, 3), "0100000000000010101100000010001000000000000000000000000000000100");
}

TEST(Patterns, DensityIsExact) {
  std::vector<Model> models = every_pattern();
  models.push_back(per_head_model({causal_model(), strided_model(3)}));
  models.push_back(documents_model({{1, 1, 2, 2, 2}, {1, 2, 3, 3, 3}}));
  for (const Model& model : models) {
    for (const auto& [tokens, keys] : {std::pair<std::int64_t, std::int64_t>{100, 140}, {5, 5}, {1, 70}}) {
      const MaskCall call = {.batch = 2, .heads = 2, .query_offset = keys > 100 ? std::optional<std::int64_t>(3) : kUnbounded};
      const std::int64_t offset = call.query_offset.value_or(keys - tokens);
      std::int64_t visible = 0;
      for (std::int64_t at = 0; at < 4 * tokens * keys; ++at) {
        const std::int64_t i = at / 4 / keys;
        visible += model.visible(at % 2, at / 2 % 2, i, i + offset, at / 4 % keys) ? 1 : 0;
      }
      EXPECT_EQ(model.mask.density(tokens, keys, call), static_cast<double>(visible) / static_cast<double>(4 * tokens * keys))
          << model.mask.to_string();
    }
  }
  EXPECT_EQ(Mask::causal().density(0, 7), 0.0);
  EXPECT_EQ(Mask::causal().density(0, kMost), 0.0);
  EXPECT_EQ(Mask::causal().density(4, 4), 10.0 / 16.0);
  EXPECT_EQ(Mask::none().density(1'000'000, 1'000'000), 1.0);
}

TEST(Patterns, ImaginedCallsAreChecked) {
  const Mask two_heads = Mask::per_head({Mask::causal(), Mask::none()});
  EXPECT_EQ(two_heads.density(2, 2), 7.0 / 8.0);
  EXPECT_THROW(static_cast<void>(two_heads.density(2, 2, {.heads = 3})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::none().density(-1, 2)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::none().density(1, kMost)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::none().density(1 << 30, 1 << 30, {.batch = 8})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::none().density(1, 1, {.batch = 0})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::none().density(1, 1, {.query_offset = kMost})), InvalidArgument);
}

TEST(Patterns, AreDescribed) {
  const std::vector<std::int64_t> list = {0, 5, 9};
  EXPECT_EQ(Mask::none().describe(), "A query sees a key when the key exists.");
  EXPECT_EQ(Mask::sinks_and_window(4, 9).describe(),
            "A query sees a key when the key is not after the query and (the key is among the first 4 or the key is among the last 9 up to "
            "the query's own).");
  EXPECT_EQ((~Mask::columns(list)).describe(), "A query sees a key when not (the key is at position 0, 5 or 9).");
  EXPECT_EQ(Mask::per_head({Mask::causal(), Mask::strided(2), Mask::causal()}).describe(),
            "A query sees a key when (in heads 0 and 2: the key is not after the query; in head 1: their distance is a multiple of 2).");
  EXPECT_EQ(
      Mask::in_blocks(64, Mask::window(1, kUnbounded)).describe(),
      "A query sees a key when counted in blocks of 64 tokens (the key lies at most 1 before and at most any distance after the query).");
  std::vector<std::int64_t> many(20);
  for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<std::int64_t>(i);
  EXPECT_EQ(Mask::diagonals(many).describe(), "A query sees a key when the key lies 0, 1, 2, 3, 4, 5, 6, 7 or 12 more before the query.");
}

template <class Make>
std::string error_of(Make make) {
  try {
    static_cast<void>(make());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(PatternErrors, NameTheArgument) {
  const std::vector<std::int64_t> negative = {3, -1};
  const std::vector<std::optional<std::int64_t>> forwards = {kUnbounded, 1};
  EXPECT_EQ(error_of([] { return Mask::dilated(-1, 1); }), "Mask::dilated: side: expected at least 0, got -1");
  EXPECT_EQ(error_of([] { return Mask::dilated(1, 0); }), "Mask::dilated: dilation: expected at least 1, got 0");
  EXPECT_EQ(error_of([] { return Mask::strided(0); }), "Mask::strided: stride: expected at least 1, got 0");
  EXPECT_EQ(error_of([] { return Mask::chunked(-7); }), "Mask::chunked: tokens: expected at least 1, got -7");
  EXPECT_EQ(error_of([] { return Mask::fixed({.stride = 8, .vertical = 3, .rotation = 3}); }),
            "Mask::fixed: vertical: expected rotation * vertical of at most the stride, 8, got 3 * 3");
  EXPECT_EQ(error_of([&] { return Mask::columns(negative); }), "Mask::columns: positions: expected positions of at least 0, got -1");
  EXPECT_EQ(error_of([&] { return Mask::diagonals(negative); }), "Mask::diagonals: distances: expected distances of at least 0, got -1");
  EXPECT_EQ(error_of([] { return Mask::axial({}); }), "Mask::axial: grid: expected 1 to 6 axes, got none");
  EXPECT_EQ(error_of([] { return Mask::axial({3, 0}); }), "Mask::axial: grid: expected at least 1, got 0");
  EXPECT_THROW(static_cast<void>(Mask::axial({kMost, 2})), InvalidArgument);
  EXPECT_EQ(error_of([] {
              return Mask::neighborhood({.grid = {8, 8}, .window = {3}});
            }),
            "Mask::neighborhood: window: expected a number for each axis of the grid [8, 8], got [3]");
  EXPECT_EQ(error_of([] { return Mask::neighborhood({.grid = {8}, .window = {9}}); }),
            "Mask::neighborhood: window: expected 1 to 8, got 9");
  EXPECT_EQ(error_of([] { return Mask::neighborhood({.grid = {8}, .window = {3}, .dilation = {3}}); }),
            "Mask::neighborhood: dilation: expected 1 to 2, got 3");
  EXPECT_EQ(error_of([] { return Mask::shifted_window({.grid = {8}, .window = {0}}); }),
            "Mask::shifted_window: window: expected at least 1, got 0");
  EXPECT_EQ(error_of([] { return Mask::shifted_window({.grid = {8}, .window = {4}, .shift = {4}}); }),
            "Mask::shifted_window: shift: expected 0 to 3, got 4");
  EXPECT_EQ(error_of([] { return Mask::in_blocks(0, Mask::causal()); }), "Mask::in_blocks: block: expected at least 1, got 0");
  EXPECT_EQ(error_of([] { return Mask::random_blocks({.per_row = -1}); }), "Mask::random_blocks: per_row: expected at least 0, got -1");
  EXPECT_EQ(error_of([] { return Mask::random_blocks({.columns = -1}); }), "Mask::random_blocks: columns: expected at least 0, got -1");
  EXPECT_EQ(error_of([] { return Mask::random_blocks({.block = 0}); }), "Mask::random_blocks: block: expected at least 1, got 0");
  EXPECT_EQ(error_of([&] { return Mask::tree(forwards); }),
            "Mask::tree: parents: expected parents of token 1 among the tokens before it, got 1");
  EXPECT_EQ(error_of([] { return Mask::big_bird({.window_blocks = 4}); }), "Mask::big_bird: window_blocks: expected an odd number, got 4");
  EXPECT_EQ(error_of([] { return Mask::big_bird({.global_blocks = kMost}); }),
            "Mask::big_bird: global_blocks: expected at most 65536, got 9223372036854775807");
  EXPECT_EQ(error_of([] { return Mask::sinks_and_window(0, 0); }), "Mask::sinks_and_window: window: expected at least 1, got 0");
  EXPECT_EQ(error_of([] { return Mask::a_shape(-1, 1); }), "Mask::a_shape: initial: expected at least 0, got -1");
}

/// Tiles of 48 x 64 at 16,384 tokens: what a plan visits is near what it must.
TEST(PatternCost, VisitedTilesFollowDensity) {
  constexpr std::int64_t kLength = 16'384;
  const auto visited_share = [](const Mask& mask) {
    const TileStatistics counts = mask::tile_statistics("test", mask, kLength, kLength, {});
    return static_cast<double>(counts.visited) / static_cast<double>(counts.tiles);
  };
  // An eighth of the keys, one tile more at each of the 8 borders.
  EXPECT_LT(visited_share(Mask::chunked(2048)), 0.125 + 8.0 / 256);
  // 13 rows of 128 tokens, of which a tile of 48 queries meets parts of at most 2: 14 rows, each of them in at most 2 tiles of 64.
  EXPECT_LT(visited_share(Mask::neighborhood({.grid = {128, 128}, .window = {13, 13}})), 14 * 2 / 256.0);
  // A line of 128 tokens, and the 48 columns of up to 2 rows: half of the tiles of every row.
  EXPECT_LT(visited_share(Mask::axial({128, 128})), 0.8);
  // 7 + 3 + 1 blocks of 256; rows of tiles that meet two query blocks see both's.
  EXPECT_LT(visited_share(Mask::big_bird({.random_blocks = 3, .columns = 256})), 2 * 7.0 / 256 + 0.01);
}

}  // namespace
}  // namespace heed::test
