// SPDX-License-Identifier: Apache-2.0
// SentencePiece BPE against a slow computation of its own.
#include <gtest/gtest.h>

#include "model/tokenizer_files.hpp"

namespace heed::test {
namespace {

using model::AddBos;
using model::SpecialText;
using model::Tokenizer;

const std::string kMark = "\xE2\x96\x81";

/// Length of the UTF-8 character at `i`, 1 for a byte that starts none; from the encoding's definition.
std::size_t character_length(const std::string& text, std::size_t i) {
  const auto byte = [&](std::size_t k) { return static_cast<unsigned>(static_cast<unsigned char>(text[k])); };
  const unsigned lead = byte(i);
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : lead >= 0xC0 ? 2 : 1;
  if (lead < 0x80 || (lead & 0xC0) == 0x80 || i + length > text.size()) return 1;
  unsigned value = lead & (0x7Fu >> length);
  for (std::size_t k = 1; k < length; ++k) {
    if ((byte(i + k) & 0xC0) != 0x80) return 1;
    value = (value << 6) | (byte(i + k) & 0x3F);
  }
  const unsigned least = length == 2 ? 0x80 : length == 3 ? 0x800 : 0x10000;
  const bool valid = value >= least && value < 0x110000 && (value < 0xD800 || value > 0xDFFF) && lead < 0xF8;
  return valid ? length : 1;
}

/// A random vocabulary and its encoding by trying every pair after every merge, over the whole text at once.
struct RandomSpm {
  VocabularyFile file;
  std::map<std::string, Token> ids;
  std::map<int, Token> bytes;

  explicit RandomSpm(std::mt19937& random) {
    file.kind = "llama";
    file.add_space_prefix = false;
    for (int byte = 0; byte < 256; ++byte) {
      if (random() % 16 != 0) bytes[byte] = file.add(byte_token_text(byte), kByteToken);
    }
    const std::vector<std::string> characters = {"a", "b", "s", "1", ",", "'", kMark, "\xC3\xA9", "\xE4\xB8\xAD", "\n"};
    std::vector<std::string> known = characters;
    for (int i = 0; i < 60; ++i) known.push_back(known[random() % known.size()] + known[random() % known.size()]);
    for (const std::string& text : known) {
      // Few distinct scores, so that ties are frequent; some parts are missing although what they make is there.
      if (text.size() < 16 && ids.count(text) == 0 && random() % 8 != 0) {
        ids[text] = file.add(text, kNormal, -static_cast<float>(random() % 12));
      }
    }
  }
  [[nodiscard]] std::vector<Token> encode(const std::string& text) const {
    std::string marked;
    for (const char c : text) marked += c == ' ' ? kMark : std::string(1, c);
    std::vector<std::string> symbols;
    for (std::size_t i = 0; i < marked.size(); i += symbols.back().size()) symbols.push_back(marked.substr(i, character_length(marked, i)));
    for (;;) {
      std::size_t best = symbols.size();
      float best_score = 0;
      for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
        const auto id = ids.find(symbols[i] + symbols[i + 1]);
        if (id == ids.end()) continue;
        const float score = file.scores[static_cast<std::size_t>(id->second)];
        if (best < symbols.size() && score <= best_score) continue;
        best = i;
        best_score = score;
      }
      if (best == symbols.size()) break;
      symbols[best] += symbols[best + 1];
      symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    std::vector<Token> tokens;
    for (const std::string& symbol : symbols) {
      const auto id = ids.find(symbol);
      if (id != ids.end()) {
        tokens.push_back(id->second);
        continue;
      }
      for (const char byte : symbol) {
        const auto fallback = bytes.find(static_cast<unsigned char>(byte));
        if (fallback != bytes.end()) tokens.push_back(fallback->second);
      }
    }
    return tokens;
  }
};

TEST(SpmTokenizer, AgreesWithTryingEveryPair) {
  std::mt19937 random(21);
  for (int vocabulary = 0; vocabulary < 30; ++vocabulary) {
    const RandomSpm spm(random);
    const Tokenizer tokenizer = make_tokenizer(spm.file);
    for (int round = 0; round < 60; ++round) {
      const std::string text = random_text(random, varied_parts(), 30);
      ASSERT_EQ(tokenizer.encode(text), spm.encode(text)) << testing::PrintToString(text);
    }
  }
}

VocabularyFile small_spm() {
  VocabularyFile file;
  file.kind = "llama";
  file.add("<unk>", kUnknown);
  file.bos = static_cast<std::uint32_t>(file.add("<s>", kControl));
  file.eos = static_cast<std::uint32_t>(file.add("</s>", kControl));
  for (int byte = 0; byte < 256; ++byte) file.add(byte_token_text(byte), kByteToken);
  return file;
}

TEST(SpmTokenizer, BlankPrefixAtTheStartAndAfterSpecialTokens) {
  VocabularyFile file = small_spm();
  const Token mark = file.add(kMark), a = file.add("a"), mark_a = file.add(kMark + "a");
  EXPECT_EQ(make_tokenizer(file).encode("a"), (std::vector<Token>{1, mark_a})) << "begin-of-sequence and prefix are the default";
  EXPECT_EQ(make_tokenizer(file).encode("a</s>a a"), (std::vector<Token>{1, mark_a, 2, mark_a, mark_a}));
  EXPECT_EQ(make_tokenizer(file).encode(""), (std::vector<Token>{1})) << "no text, no prefix";
  file.add_space_prefix = false;
  file.add_bos = false;
  EXPECT_EQ(make_tokenizer(file).encode("a</s>a  a"), (std::vector<Token>{a, 2, a, mark, mark_a}));
}

TEST(SpmTokenizer, UnknownCharactersBecomeBytes) {
  VocabularyFile file = small_spm();
  file.add_space_prefix = false;
  const Token a = file.add("a");
  const Tokenizer tokenizer = make_tokenizer(file);
  const std::vector<Token> tokens = tokenizer.encode("a\xC3\xA9", SpecialText::kPlain, AddBos::kNo);
  EXPECT_EQ(tokens, (std::vector<Token>{a, 3 + 0xC3, 3 + 0xA9}));
  EXPECT_EQ(tokenizer.decode(tokens), "a\xC3\xA9");
  EXPECT_EQ(tokenizer.encode("\xFF(", SpecialText::kPlain, AddBos::kNo), (std::vector<Token>{3 + 0xFF, 3 + '('}));
}

TEST(SpmTokenizer, PlainTextNeverBecomesAControlOrByteToken) {
  VocabularyFile file = small_spm();
  file.add_space_prefix = false;
  for (const char* text : {"<", "s", ">", "<s", "/", "0", "x", "4", "1", "<0", "<0x", "<0x4", "<0x41"}) file.add(text, kNormal, 1);
  const Tokenizer tokenizer = make_tokenizer(file);
  for (const Token token : tokenizer.encode("<s></s><0x41><unk>", SpecialText::kPlain, AddBos::kNo)) {
    EXPECT_GT(token, 2);
    EXPECT_NE(token, 3 + 0x41);
  }
  EXPECT_EQ(tokenizer.encode("<s><unk>", SpecialText::kParse, AddBos::kNo), (std::vector<Token>{1, 0}));
}

TEST(SpmTokenizer, DecodingKeepsTheBlankThatAPrefixAdded) {
  VocabularyFile file = small_spm();
  const Token mark_a = file.add(kMark + "a");
  const Token user = file.add("x" + kMark, kUserDefined);
  const Tokenizer tokenizer = make_tokenizer(file);
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{1, mark_a, 2}), " a");
  EXPECT_EQ(tokenizer.token_bytes(user), "x" + kMark) << "user-defined text is text as it stands";
  EXPECT_EQ(tokenizer.token_bytes(2), "");
  EXPECT_EQ(tokenizer.token_text(2), "</s>");
  EXPECT_EQ(tokenizer.token_bytes(3 + 0x0A), "\n");
}

TEST(SpmTokenizer, LongRunsTakeTimeNearTheirLength) {
  VocabularyFile file = small_spm();
  file.add_space_prefix = false;
  std::string run = "a", marks = kMark;
  for (int i = 0; i < 7; ++i) {
    file.add(run, kNormal, static_cast<float>(-i));
    file.add(marks, kNormal, static_cast<float>(-i));
    run += run;
    marks += marks;
  }
  const Tokenizer tokenizer = make_tokenizer(file);
  EXPECT_EQ(tokenizer.encode(std::string(1 << 19, 'a'), SpecialText::kPlain, AddBos::kNo).size(), std::size_t{1 << 13});
  EXPECT_EQ(tokenizer.encode(std::string(1 << 18, ' '), SpecialText::kPlain, AddBos::kNo).size(), std::size_t{1 << 12});
}

}  // namespace
}  // namespace heed::test
