// SPDX-License-Identifier: Apache-2.0
// Another rotation than the file's, and sessions whose rotation depends on the length: what feeds, expectations and truncation do to the
// rotated copies. That the numbers themselves are right is for the numpy model to say (tests/cli/rope_test.py); here sessions that took
// different ways to the same tokens are compared, in models of one layer, where keys do not remember the way.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <heed/error.hpp>
#include <heed/model/decoder.hpp>

#include "support/gguf_builder.hpp"

namespace heed::model {
namespace {

using test::AlignedBytes;
using test::GgufBuilder;

constexpr std::uint64_t kWidth = 32, kFfn = 48, kVocabulary = 50, kHeads = 4, kKvHeads = 2, kHeadDim = 16;
constexpr std::int64_t kContext = 64;  // of the file
constexpr std::int64_t kTrained = 12;  // what the rules are told

class TinyModel {
 public:
  TinyModel& u32(const std::string& key, std::uint32_t value) {
    builder_.scalar(key, value);
    return *this;
  }
  TinyModel& matrix(const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    std::normal_distribution<float> normal(0.0F, 1.5F / std::sqrt(static_cast<float>(columns)));
    return tensor(name, {columns, rows}, [&] { return normal(random_); });
  }
  TinyModel& ones(const std::string& name, std::uint64_t size) {
    return tensor(name, {size}, [] { return 1.0F; });
  }
  TinyModel& sizes(const std::string& arch, std::uint32_t layers) {
    builder_.string("general.architecture", arch);
    u32(arch + ".block_count", layers).u32(arch + ".context_length", kContext).u32(arch + ".embedding_length", kWidth);
    u32(arch + ".feed_forward_length", kFfn).u32(arch + ".attention.head_count", kHeads).u32(arch + ".attention.head_count_kv", kKvHeads);
    u32(arch + ".attention.key_length", kHeadDim).u32(arch + ".attention.value_length", kHeadDim);
    return matrix("token_embd.weight", kVocabulary, kWidth);
  }
  TinyModel& one_layer() {
    ones("output_norm.weight", kWidth).ones("blk.0.attn_norm.weight", kWidth).ones("blk.0.ffn_norm.weight", kWidth);
    matrix("blk.0.attn_q.weight", kHeads * kHeadDim, kWidth).matrix("blk.0.attn_k.weight", kKvHeads * kHeadDim, kWidth);
    matrix("blk.0.attn_v.weight", kKvHeads * kHeadDim, kWidth).matrix("blk.0.attn_output.weight", kWidth, kHeads * kHeadDim);
    matrix("blk.0.ffn_gate.weight", kFfn, kWidth).matrix("blk.0.ffn_up.weight", kFfn, kWidth).matrix("blk.0.ffn_down.weight", kWidth, kFfn);
    return *this;
  }
  [[nodiscard]] AlignedBytes bytes() const { return AlignedBytes(builder_.finish()); }

 private:
  template <class Draw>
  TinyModel& tensor(const std::string& name, const std::vector<std::uint64_t>& sizes, Draw&& draw) {
    std::uint64_t count = 1;
    for (const std::uint64_t size : sizes) count *= size;
    std::vector<float> values(count);
    for (float& value : values) value = draw();
    builder_.tensor(name, 0, sizes, std::as_bytes(std::span(values)));
    return *this;
  }

  GgufBuilder builder_;
  std::mt19937 random_{7};
};

RopeOverride dynamic() { return {.scaling = RopeDynamic{.factor = 2.0, .max_positions = kTrained}}; }

RopeOverride longrope() {
  RopeLong rope;
  rope.factor = 4.0;
  rope.original_length = kTrained;
  for (int i = 0; i < static_cast<int>(kHeadDim) / 2; ++i) {
    rope.short_factors.push_back(1.0 + i / 40.0);
    rope.long_factors.push_back(1.0 + i);
  }
  return {.scaling = std::move(rope)};
}

std::vector<Token> some_tokens(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = static_cast<Token>(random() % kVocabulary);
  return tokens;
}

std::vector<float> feed(Session& session, std::span<const Token> tokens) {
  const std::span<const float> logits = session.feed(tokens);
  return {logits.begin(), logits.end()};
}

double difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(a[i]) - b[i]));
  return worst;
}

/// Logits are some units large, and float32 sums of 64 terms in another order differ by some 1e-6 of that.
constexpr double kEqual = 3e-5;
constexpr double kDifferent = 1e-3;

struct Subject {
  const char* name;
  const char* arch;
  RopeOverride rope;
};

void PrintTo(const Subject& subject, std::ostream* out) { *out << subject.name; }

class LengthSession : public testing::TestWithParam<Subject> {
 protected:
  LengthSession() {
    TinyModel tiny;
    tiny.sizes(GetParam().arch, 1).one_layer();
    if (std::string(GetParam().arch) == "mistral") tiny.u32("mistral.attention.sliding_window", 9);
    bytes_.emplace(tiny.bytes());
    file_.emplace(GgufFile::parse(bytes_->span(), "tiny.gguf"));
    decoder_.emplace(*file_, GetParam().rope);
  }

  std::optional<AlignedBytes> bytes_;
  std::optional<GgufFile> file_;
  std::optional<Decoder> decoder_;
};

TEST_P(LengthSession, TheLastPassDecidesAboutAllKeys) {
  const std::vector<Token> tokens = some_tokens(30, 1);
  const std::span<const Token> all(tokens);
  for (std::size_t n = 2; n <= tokens.size(); ++n) {
    Session at_once(*decoder_, kContext), one_more(*decoder_, kContext);
    static_cast<void>(one_more.feed(all.first(n - 1)));
    EXPECT_LT(difference(feed(at_once, all.first(n)), feed(one_more, all.subspan(n - 1, 1))), kEqual) << n;
  }
}

TEST_P(LengthSession, AnExpectedPromptMayComeInPieces) {
  const std::vector<Token> tokens = some_tokens(30, 2);
  const std::span<const Token> all(tokens);
  const auto logits = [&](std::size_t piece, std::int64_t expected) {
    Session session(*decoder_, kContext);
    session.expect(expected);
    std::vector<std::vector<float>> rows;
    for (std::size_t at = 0; at < all.size(); at += piece) {
      session.feed_all(all.subspan(at, piece),
                       [&](std::int64_t, std::span<const float> row) { rows.emplace_back(row.begin(), row.end()); });
    }
    return rows;
  };
  const auto at_once = logits(30, 0), expected = logits(5, 30), unexpected = logits(5, 0);
  double worst = 0.0;
  for (std::size_t i = 0; i < at_once.size(); ++i) {
    EXPECT_LT(difference(at_once[i], expected[i]), kEqual) << i;
    worst = std::max(worst, difference(at_once[i], unexpected[i]));
  }
  EXPECT_GT(worst, kDifferent);  // else nothing was shown
}

TEST_P(LengthSession, TruncationForgetsTokensAndFrequencies) {
  const std::vector<Token> long_text = some_tokens(30, 3), other = some_tokens(4, 4);
  const std::span<const Token> text(long_text);
  // From past the trained length to below it; within it; and past it again.
  for (const auto& [first, kept] : std::vector<std::pair<std::size_t, std::size_t>>{{30, 5}, {10, 5}, {8, 7}, {30, 20}, {13, 12}}) {
    Session session(*decoder_, kContext), fresh(*decoder_, kContext);
    static_cast<void>(session.feed(text.first(first)));
    session.truncate(static_cast<std::int64_t>(kept));
    static_cast<void>(fresh.feed(text.first(kept)));
    EXPECT_LT(difference(feed(session, other), feed(fresh, other)), kEqual) << first << " to " << kept;
  }
  Session session(*decoder_, kContext), fresh(*decoder_, kContext);
  session.expect(30);
  static_cast<void>(session.feed(text.first(3)));
  session.truncate(0);  // the expectation went with the tokens
  EXPECT_LT(difference(feed(session, other), feed(fresh, other)), kEqual);
}

TEST_P(LengthSession, CountsTheRotatedCopies) {
  Session session(*decoder_, kContext);
  EXPECT_EQ(session.cache_bytes(), 0);
  static_cast<void>(session.feed(some_tokens(20, 5)));
  EXPECT_EQ(session.cache_bytes(), static_cast<std::int64_t>(20 * kKvHeads * kHeadDim * sizeof(float) * 3));
}

TEST_P(LengthSession, ExpectsNoMoreThanItsCapacity) {
  Session session(*decoder_, 20);
  session.expect(20);
  EXPECT_THROW(session.expect(21), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Rope, LengthSession,
                         testing::Values(Subject{"dynamic", "llama", dynamic()}, Subject{"longrope", "llama", longrope()},
                                         Subject{"window", "mistral", dynamic()}),
                         [](const testing::TestParamInfo<Subject>& test) { return std::string(test.param.name); });

class Override : public testing::Test {
 protected:
  explicit Override(const char* arch = "gemma3")
      : bytes_(TinyModel().sizes(arch, 7).u32(std::string(arch) + ".attention.sliding_window", 8).bytes()),
        file_(GgufFile::parse(bytes_.span(), "tiny.gguf")) {}

  [[nodiscard]] std::string error(const RopeOverride& rope) const {
    try {
      static_cast<void>(read_config(file_, rope));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  AlignedBytes bytes_;
  GgufFile file_;
};

TEST_F(Override, LeavesLocalLayersAlone) {
  const DecoderConfig plain = read_config(file_);
  const DecoderConfig config = read_config(file_, {.base = 500.0, .scaling = RopeLinear{3.0}, .context_length = 3 * kContext});
  ASSERT_EQ(config.ropes.size(), 2U);
  EXPECT_EQ(config.ropes[0].base, 500.0);
  ASSERT_TRUE(std::holds_alternative<RopeLinear>(config.ropes[0].scaling));
  EXPECT_EQ(std::get<RopeLinear>(config.ropes[0].scaling).factor, 3.0);
  EXPECT_EQ(config.ropes[1].base, 10000.0);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(config.ropes[1].scaling));
  EXPECT_EQ(config.context_length, 3 * kContext);
  for (std::size_t l = 0; l < plain.layer.size(); ++l) {
    EXPECT_EQ(config.layer[l].rope, l == 5 ? 0U : 1U);
    EXPECT_EQ(config.layer[l].window_tokens, plain.layer[l].window_tokens);
  }
}

TEST_F(Override, KeepsWhatIsNotGiven) {
  const DecoderConfig config = read_config(file_, {.base = 500.0});
  EXPECT_TRUE(std::holds_alternative<std::monostate>(config.ropes[0].scaling));
  EXPECT_EQ(config.context_length, kContext);
  EXPECT_EQ(read_config(file_, {.scaling = RopeLinear{3.0}}).ropes[0].base, 10000.0);
}

TEST_F(Override, IsChecked) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_NE(error({.base = 1.0}).find("base"), std::string::npos);
  EXPECT_NE(error({.base = nan}).find("base"), std::string::npos);
  EXPECT_NE(error({.scaling = RopeYarn{.factor = nan, .original_length = 10}}).find("factor"), std::string::npos);
  EXPECT_NE(error({.scaling = RopeYarn{.factor = 2.0}}).find("original_length"), std::string::npos);
  EXPECT_NE(
      error({.scaling = RopeLong{.short_factors = {1.0}, .long_factors = {1.0}, .factor = 2.0, .original_length = 9}}).find("8 values"),
      std::string::npos);
  for (const std::int64_t context : {std::int64_t{0}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_NE(error({.context_length = context}).find("context_length"), std::string::npos) << context;
  }
}

}  // namespace
}  // namespace heed::model
