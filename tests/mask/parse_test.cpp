// SPDX-License-Identifier: Apache-2.0
// Mask::parse and to_string: round trips, precedence, and errors that point at the column.
#include <gtest/gtest.h>

#include <iterator>

#include <heed/error.hpp>

#include "property.hpp"
#include "random_model.hpp"

namespace heed::test {
namespace {

TEST(MaskText, RoundTripsRandomMasks) {
  check_property("parse(to_string(m)) == m", [](const std::vector<std::uint8_t>& bytes) {
    Choices choices(bytes);
    const Mask mask = random_model(choices, {.batch = 1, .heads = 1 + choices.below(3), .tokens = 9, .keys = 9}, Tensors::kWithout, 4).mask;
    const std::string text = mask.to_string();
    RC_ASSERT(Mask::parse(text) == mask);
    RC_ASSERT(Mask::parse(text).to_string() == text);
  });
}

TEST(MaskText, RoundTripsExactly) {
  for (const char* text : {"none",
                           "~none",
                           "causal",
                           "window 128 0",
                           "window * 0",
                           "window 3 *",
                           "window * *",
                           "sliding_window 4096",
                           "prefix_lm 0",
                           "sink_tokens 9223372036854775807",
                           "global_tokens",
                           "global_tokens 0 5 9",
                           "per_head (causal) (none)",
                           "causal & (window 128 0 | sink_tokens 4)",
                           "~(causal | window 1 1) & ~prefix_lm 3",
                           "causal & window 1 2 | ~sink_tokens 4 & causal",
                           "per_head (causal & sink_tokens 1) (~per_head (none) (causal))",
                           "causal & causal",
                           "chunked 8192",
                           "dilated 0 1",
                           "dilated 256 4",
                           "strided 128",
                           "fixed 128 8",
                           "fixed 128 8 4",
                           "columns",
                           "columns 0 5",
                           "diagonals",
                           "diagonals 0 64 9223372036854775807",
                           "axial 1x2x3x4x5x6",
                           "axial 9223372036854775807",
                           "neighborhood 8x8 3x3",
                           "neighborhood 8x8 3x3 2x1",
                           "shifted_window 56x56 7x7",
                           "shifted_window 56x56 7x7 3x3",
                           "in_blocks 64 (window 1 1 | in_blocks 2 (causal))",
                           "random_keys 3 * 0",
                           "random_keys 3 16 18446744073709551615 each_head",
                           "tree",
                           "tree * 0 0 * 3",
                           "causal & ~in_blocks 4 (random_keys 1 * 5) | tree *"}) {
    EXPECT_EQ(Mask::parse(text).to_string(), text);
  }
}

TEST(MaskText, Precedence) {
  const Mask a = Mask::causal();
  const Mask b = Mask::sink_tokens(2);
  const Mask c = Mask::window(1, kUnbounded);
  EXPECT_EQ(Mask::parse("causal | sink_tokens 2 & window 1 *"), a | (b & c));
  EXPECT_EQ(Mask::parse("(causal | sink_tokens 2) & window 1 *"), (a | b) & c);
  EXPECT_EQ(Mask::parse("~causal & sink_tokens 2"), ~a & b);
  EXPECT_EQ(Mask::parse("~~causal"), a);
  EXPECT_EQ(Mask::parse("\t( causal&sink_tokens 2 )\n|window 1*"), (a & b) | c);
  EXPECT_EQ(Mask::parse("per_head(causal)(sink_tokens 2) & causal"), Mask::per_head({a, b}) & a);
  EXPECT_EQ(Mask::parse("in_blocks 4(causal)&causal"), Mask::in_blocks(4, a) & a);
}

TEST(MaskText, TensorMasksAreDescribed) {
  const std::vector<std::int64_t> ids = {1, 1, 2, 2};
  const BoolArray bools(Shape{2, 2});
  EXPECT_EQ((Mask::causal() & Mask::documents(TensorView(ids.data(), Shape{4}))).to_string(), "causal & <documents [4]>");
  EXPECT_EQ(Mask::documents(TensorView(ids.data(), Shape{2, 2})).to_string(), "<documents [2, 2]>");
  EXPECT_EQ(Mask::block_sparse(bools.view(), 16).to_string(), "<block_sparse [1, 2, 2] block 16>");
  EXPECT_EQ(Mask::from_tensor(bools.view()).to_string(), "<from_tensor [1, 1, 2, 2]>");
  EXPECT_THROW(static_cast<void>(Mask::parse("causal & <documents [4]>")), InvalidArgument);
}

std::string error_of(const std::string& text) {
  try {
    static_cast<void>(Mask::parse(text));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(MaskText, ErrorsNameTheColumn) {
  const std::string at = "Mask::parse: text: expected ";
  EXPECT_EQ(error_of(""), at + "a mask name, '~' or '(' at column 1, got the end");
  EXPECT_EQ(error_of("  cuasal"), at + "a mask name, '~' or '(' at column 3, got 'cuasal'");
  EXPECT_EQ(error_of("causal &"), at + "a mask name, '~' or '(' at column 9, got the end");
  EXPECT_EQ(error_of("causal window 1 0"), at + "'&', '|' or the end at column 8, got 'window'");
  EXPECT_EQ(error_of("causal)"), at + "'&', '|' or the end at column 7, got ')'");
  EXPECT_EQ(error_of("(causal"), at + "')' at column 8, got the end");
  EXPECT_EQ(error_of("(causal & )"), at + "a mask name, '~' or '(' at column 11, got ')'");
  EXPECT_EQ(error_of("window 128"), at + "a number or '*' at column 11, got the end");
  EXPECT_EQ(error_of("window x 0"), at + "a number or '*' at column 8, got 'x'");
  EXPECT_EQ(error_of("window -1 0"), at + "a number or '*' at column 8, got '-'");
  EXPECT_EQ(error_of("window 1 2 3"), at + "'&', '|' or the end at column 12, got '3'");
  EXPECT_EQ(error_of("sliding_window 0"), at + "a number of at least 1 at column 16, got '0'");
  EXPECT_EQ(error_of("sliding_window 12k"), at + "a number at column 16, got '12k'");
  EXPECT_EQ(error_of("sink_tokens 9223372036854775808"),
            at + "a number of at most 9223372036854775807 at column 13, got '9223372036854775808'");
  EXPECT_EQ(error_of("sink_tokens " + std::string(60, '9')),
            at + "a number of at most 9223372036854775807 at column 13, got '" + std::string(40, '9') + "...'");
  EXPECT_EQ(error_of("strided 0"), at + "a number of at least 1 at column 9, got '0'");
  EXPECT_EQ(error_of("dilated 1"), at + "a number at column 10, got the end");
  EXPECT_EQ(error_of("axial"), at + "1 to 6 numbers joined by 'x' at column 6, got the end");
  EXPECT_EQ(error_of("axial 8x"), at + "1 to 6 numbers joined by 'x' at column 7, got '8x'");
  EXPECT_EQ(error_of("axial x8"), at + "1 to 6 numbers joined by 'x' at column 7, got 'x8'");
  EXPECT_EQ(error_of("axial 8y8"), at + "1 to 6 numbers joined by 'x' at column 7, got '8y8'");
  EXPECT_EQ(error_of("axial 1x1x1x1x1x1x1"), at + "1 to 6 numbers joined by 'x' at column 7, got '1x1x1x1x1x1x1'");
  EXPECT_EQ(error_of("axial 9223372036854775808"), at + "1 to 6 numbers joined by 'x' at column 7, got '9223372036854775808'");
  EXPECT_EQ(error_of("fixed 8 5 2"),
            at + "parts that fit together before column 12, got Mask::fixed: vertical: expected rotation * vertical of at "
                 "most the stride, 8, got 2 * 5");
  EXPECT_EQ(error_of("in_blocks 4 causal"), at + "'(' at column 13, got 'causal'");
  EXPECT_EQ(error_of("random_keys 3 * 18446744073709551616"),
            at + "a number of at most 18446744073709551615 at column 17, got '18446744073709551616'");
  EXPECT_EQ(error_of("tree 0"),
            at + "parts that fit together before column 7, got Mask::tree: parents: expected parents of token 0 among the "
                 "tokens before it, got 0");
  EXPECT_EQ(error_of("per_head"), at + "'(' at column 9, got the end");
  EXPECT_EQ(error_of("per_head causal"), at + "'(' at column 10, got 'causal'");
  EXPECT_EQ(error_of("caus\xc3\xa4l"), at + "a mask name, '~' or '(' at column 1, got 'caus'");
  EXPECT_EQ(error_of("causal \xc3"), at + "'&', '|' or the end at column 8, got byte 195");
  EXPECT_EQ(error_of(std::string("causal\0", 7)), at + "'&', '|' or the end at column 7, got byte 0");
  EXPECT_EQ(error_of("per_head (causal) & per_head (causal) (none)"),
            at + "parts that fit together before column 45, got Mask: masks: expected masks for one number of query heads, got 1 and 2");
}

TEST(MaskText, DeepNestingIsAnErrorNotACrash) {
  const std::string expected = "expected a nesting of at most 100 at column 101";
  EXPECT_NE(error_of(std::string(100'000, '(')).find(expected), std::string::npos);
  EXPECT_NE(error_of(std::string(100'000, '~')).find(expected), std::string::npos);
  EXPECT_EQ(Mask::parse(std::string(99, '(') + "causal" + std::string(99, ')')), Mask::causal());
  std::string brackets;
  for (int i = 0; i < 90; ++i) brackets += "causal | causal & (";
  EXPECT_NE(error_of(brackets + "none" + std::string(90, ')')).find("a nesting of at most 100"), std::string::npos);
}

TEST(MaskText, LongChainsAreReadInLinearTime) {
  std::string text = "window 0 0";
  for (int i = 1; i < 50'000; ++i) text += " | window " + std::to_string(i) + " 0";
  EXPECT_EQ(Mask::parse(text).to_string(), text);
}

/// Any bytes at all: a mask or an InvalidArgument, nothing else.
TEST(MaskText, GarbageNeverCrashes) {
  check_property("parse throws InvalidArgument or returns", [](const std::vector<std::uint8_t>& bytes) {
    constexpr const char* kPieces[] = {"causal",
                                       "none",
                                       "window",
                                       "per_head",
                                       "global_tokens",
                                       "(",
                                       ")",
                                       "&",
                                       "|",
                                       "~",
                                       " ",
                                       "*",
                                       "7",
                                       "\xff",
                                       "9999999999999999999",
                                       "dilated ",
                                       "fixed ",
                                       "axial ",
                                       "neighborhood ",
                                       "shifted_window ",
                                       "3x2",
                                       "in_blocks 2(",
                                       "random_keys ",
                                       "each_head",
                                       "tree ",
                                       "diagonals "};
    std::string text;
    for (const std::uint8_t byte : bytes) text += kPieces[byte % std::size(kPieces)];
    try {
      RC_ASSERT(Mask::parse(Mask::parse(text).to_string()) == Mask::parse(text));
    } catch (const InvalidArgument&) {
    }
  });
}

}  // namespace
}  // namespace heed::test
