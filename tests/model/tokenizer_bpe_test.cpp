// SPDX-License-Identifier: Apache-2.0
// Byte-level BPE and its pre-splitters against slow computations of their own.
#include <gtest/gtest.h>

#include <regex>

#include "model/pre_splitter.hpp"
#include "model/tokenizer_files.hpp"

namespace heed::test {
namespace {

using model::AddBos;
using model::PreSplitter;
using model::SpecialText;
using model::Tokenizer;

std::vector<std::string> split(const std::string& name, const std::string& text) {
  const std::vector<std::string_view> pieces = PreSplitter(name).split(text);
  return {pieces.begin(), pieces.end()};
}
using Pieces = std::vector<std::string>;

TEST(PreSplitter, Gpt2KeepsTheLastBlankForTheWord) {
  EXPECT_EQ(split("gpt-2", "It's  a test\n\nof 123 things!! "),
            (Pieces{"It", "'s", " ", " a", " test", "\n", "\n", "of", " 123", " things", "!!", " "}));
  EXPECT_EQ(split("gpt-2", ""), Pieces{});
}

TEST(PreSplitter, SmolLmCutsNumbersFirstSoThatTheLookAheadEndsThere) {
  // GPT-2 alone would give " " and " 1": before a number the blanks stay together.
  EXPECT_EQ(split("smollm", "a  12b"), (Pieces{"a", "  ", "1", "2", "b"}));
  EXPECT_EQ(split("smollm", "x \xC2\xB2 y"), (Pieces{"x", " ", "\xC2\xB2", " y"}));
}

TEST(PreSplitter, Llama3TakesThreeDigitsAndQwen2One) {
  EXPECT_EQ(split("llama-bpe", "We'LL pay 1234567,(x)\n\n y"),
            (Pieces{"We", "'LL", " pay", " ", "123", "456", "7", ",(", "x", ")\n\n", " y"}));
  EXPECT_EQ(split("qwen2", "n 1234 .a"), (Pieces{"n", " ", "1", "2", "3", "4", " .", "a"}));
}

TEST(PreSplitter, DefaultCutsPunctuationAndThreeDigits) {
  EXPECT_EQ(split("default", "a 12345!?x<=y"), (Pieces{"a", " ", "123", "45", "!?", "x", "<=", "y"}));
}

TEST(PreSplitter, BytesThatAreNotUtf8CountAsSymbols) {
  EXPECT_EQ(split("gpt-2",
                  "ab\xFF\xFE"
                  "cd \x80."),
            (Pieces{"ab", "\xFF\xFE", "cd", " \x80."}));
  EXPECT_EQ(split("gpt-2", "\xE4\xB8"), (Pieces{"\xE4\xB8"}));
}

/// The expressions over an alphabet where one character stands for each class, so that std::regex can read them: é and CJK are letters z and
/// y, superscript two and Roman numeral four the digits 8 and 9, the no-break and the ideographic blank \v and \f.
struct ReducedAlphabet {
  std::vector<std::pair<std::string, char>> characters = {{"a", 'a'},
                                                          {"s", 's'},
                                                          {"S", 'S'},
                                                          {"t", 't'},
                                                          {"l", 'l'},
                                                          {"L", 'L'},
                                                          {"\xC3\xA9", 'z'},
                                                          {"\xE4\xB8\xAD", 'y'},
                                                          {"1", '1'},
                                                          {"2", '2'},
                                                          {"\xC2\xB2", '8'},
                                                          {"\xE2\x85\xA3", '9'},
                                                          {" ", ' '},
                                                          {"\n", '\n'},
                                                          {"\r", '\r'},
                                                          {"\t", '\t'},
                                                          {"\xC2\xA0", '\v'},
                                                          {"\xE3\x80\x80", '\f'},
                                                          {"'", '\''},
                                                          {",", ','},
                                                          {"\xF0\x9F\x91\x8D", '#'},
                                                          {"\xE1\xA0\x8E", '%'},
                                                          {"\xFF", '~'}};
};

std::vector<std::size_t> ends_by_regex(const std::string& reduced, const std::regex& regex) {
  std::vector<std::size_t> ends;
  for (std::sregex_iterator match(reduced.begin(), reduced.end(), regex), end; match != end; ++match) {
    ends.push_back(static_cast<std::size_t>(match->position() + match->length()));
  }
  return ends;
}

void compare_with_regex(const std::string& name, const std::string& expression) {
  const ReducedAlphabet alphabet;
  const PreSplitter splitter(name);
  const std::regex regex(expression, std::regex::ECMAScript);
  std::mt19937 random(7);
  for (int round = 0; round < 1500; ++round) {
    std::string text, reduced;
    std::vector<std::size_t> starts = {0};  // byte offsets of the characters, end included
    for (std::size_t i = 0, count = random() % 24; i < count; ++i) {
      const auto& [character, stand_in] = alphabet.characters[random() % alphabet.characters.size()];
      text += character;
      reduced += stand_in;
      starts.push_back(text.size());
    }
    std::vector<std::size_t> expected, got;
    for (const std::size_t end : ends_by_regex(reduced, regex)) expected.push_back(starts[end]);
    std::size_t position = 0;
    for (const std::string_view piece : splitter.split(text)) got.push_back(position += piece.size());
    ASSERT_EQ(got, expected) << name << ": " << testing::PrintToString(text);
  }
}

TEST(PreSplitter, AgreesWithAnotherRegexEngine) {
  const std::string s = "[\\t\\n\\v\\f\\r ]", not_s = "[^\\t\\n\\v\\f\\r ]", letter = "[A-Za-z]", number = "[0-9]";
  const std::string symbol = "[^\\t\\n\\v\\f\\r A-Za-z0-9]";
  const std::string blanks = s + "+(?!" + not_s + ")|" + s + "+";
  compare_with_regex("gpt-2", "'s|'t|'re|'ve|'m|'ll|'d| ?" + letter + "+| ?" + number + "+| ?" + symbol + "+|" + blanks);
  const std::string any_case = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]|[^\\r\\nA-Za-z0-9]?" + letter + "+|";
  const std::string tail = "| ?" + symbol + "+[\\r\\n]*|" + s + "*[\\r\\n]+|" + blanks;
  compare_with_regex("llama-bpe", any_case + number + "{1,3}" + tail);
  compare_with_regex("qwen2", any_case + number + tail);
}

/// A random byte-level vocabulary, and its encoding by trying every pair after every merge.
struct RandomBpe {
  VocabularyFile file;
  std::map<std::string, Token> ids;                          ///< by the bytes they stand for
  std::map<std::pair<std::string, std::string>, int> ranks;  ///< by bytes

  RandomBpe(std::mt19937& random, const std::string& pre, int merges) {
    file.pre = pre;
    for (int byte = 0; byte < 256; ++byte) {
      const std::string bytes(1, static_cast<char>(byte));
      if (random() % 20 != 0) ids[bytes] = file.add(byte_character(byte));
    }
    // Half of the merges among bytes that the texts hold.
    const std::string frequent = "ab s1'\n,\xC3\xA9\xE4\xB8\xAD\xFF";
    for (int tries = 0; tries < merges; ++tries) {
      const std::string left = pick(random, frequent), right = pick(random, frequent);
      if (left.size() + right.size() > 12 || ranks.count({left, right}) > 0) continue;
      if (ids.count(left + right) == 0) ids[left + right] = file.add(byte_characters(left + right));
      ranks[{left, right}] = static_cast<int>(file.merges.size());
      file.merges.push_back(byte_characters(left) + " " + byte_characters(right));
    }
  }
  std::string pick(std::mt19937& random, const std::string& frequent) const {
    if (random() % 2 == 0) {
      const std::string one(1, frequent[random() % frequent.size()]);
      if (ids.count(one) > 0) return one;
    }
    auto chosen = ids.begin();
    std::advance(chosen, static_cast<std::ptrdiff_t>(random() % ids.size()));
    return chosen->first;
  }
  [[nodiscard]] std::vector<Token> encode(const std::string& text) const {
    std::vector<Token> tokens;
    for (const std::string& piece : split(*file.pre, text)) {
      std::vector<std::string> symbols;
      for (const char byte : piece) symbols.emplace_back(1, byte);
      for (;;) {
        int best_rank = -1;
        std::size_t best = 0;
        for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
          const auto rank = ranks.find({symbols[i], symbols[i + 1]});
          if (rank == ranks.end() || (best_rank >= 0 && rank->second >= best_rank)) continue;
          best_rank = rank->second;
          best = i;
        }
        if (best_rank < 0) break;
        symbols[best] += symbols[best + 1];
        symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
      }
      for (const std::string& symbol : symbols) {
        const auto id = ids.find(symbol);
        if (id != ids.end()) tokens.push_back(id->second);
      }
    }
    return tokens;
  }
};

TEST(BpeTokenizer, AgreesWithTryingEveryPair) {
  std::mt19937 random(11);
  for (const std::string pre : {"smollm", "qwen2", "gpt-2", "default"}) {
    for (int vocabulary = 0; vocabulary < 6; ++vocabulary) {
      const RandomBpe bpe(random, pre, 200);
      const Tokenizer tokenizer = make_tokenizer(bpe.file);
      for (int round = 0; round < 80; ++round) {
        const std::string text = random_text(random, varied_parts(), 30);
        ASSERT_EQ(tokenizer.encode(text), bpe.encode(text)) << pre << ": " << testing::PrintToString(text);
      }
    }
  }
}

TEST(BpeTokenizer, DecodingGivesTheBytesBack) {
  std::mt19937 random(12);
  VocabularyFile file;
  file.pre = "smollm";
  for (int byte = 0; byte < 256; ++byte) file.add(byte_character(byte));
  file.add(byte_characters("ab"));
  file.merges = {"a b"};
  const Tokenizer tokenizer = make_tokenizer(file);
  for (int round = 0; round < 300; ++round) {
    const std::string text = random_text(random, varied_parts(), 40);
    ASSERT_EQ(tokenizer.decode(tokenizer.encode(text)), text);
  }
}

TEST(BpeTokenizer, DropsBytesThatTheVocabularyLacks) {
  VocabularyFile file;
  file.pre = "gpt-2";
  const Token a = file.add("a"), comma = file.add(","), commas = file.add(",,");
  file.merges = {", ,"};
  const Tokenizer tokenizer = make_tokenizer(file);
  EXPECT_EQ(tokenizer.encode("a,,a"), (std::vector<Token>{a, commas, a}));
  EXPECT_EQ(tokenizer.encode("a,.,a"), (std::vector<Token>{a, comma, comma, a})) << "what is dropped still stands between";
  EXPECT_TRUE(tokenizer.encode("\x01\xFF").empty());
}

TEST(BpeTokenizer, Llama3TakesAWholePieceThatIsAToken) {
  VocabularyFile file;
  for (const char* byte : {"a", "b", "c"}) file.add(byte);
  const Token ab = file.add("ab"), abc = file.add("abc"), special = file.add("cc", kControl);
  file.merges = {"b c", "a b"};
  file.texts.push_back("bc");
  file.kinds.push_back(kNormal);
  file.pre = "qwen2";
  EXPECT_EQ(make_tokenizer(file).encode("abc"), (std::vector<Token>{0, 6})) << "by merges: a + bc";
  file.pre = "llama-bpe";
  EXPECT_EQ(make_tokenizer(file).encode("abc"), (std::vector<Token>{abc}));
  EXPECT_EQ(make_tokenizer(file).encode("ab"), (std::vector<Token>{ab}));
  EXPECT_EQ(make_tokenizer(file).encode("cc", SpecialText::kPlain), (std::vector<Token>{2, 2})) << "not token " << special;
}

TEST(BpeTokenizer, PlainTextNeverMergesIntoAControlToken) {
  VocabularyFile file;
  file.pre = "gpt-2";
  const Token less = file.add("<"), s = file.add("s"), control = file.add("<s", kControl);
  file.merges = {"< s"};
  const Tokenizer tokenizer = make_tokenizer(file);
  EXPECT_EQ(tokenizer.encode("<s", SpecialText::kPlain), (std::vector<Token>{less, s}));
  EXPECT_EQ(tokenizer.encode("<s", SpecialText::kParse), (std::vector<Token>{control}));
}

TEST(BpeTokenizer, BeginOfSequence) {
  VocabularyFile file;
  const Token a = file.add("a"), bos = file.add("<bos>", kControl);
  file.bos = static_cast<std::uint32_t>(bos);
  file.pre = "qwen2";
  EXPECT_EQ(make_tokenizer(file).encode("a"), (std::vector<Token>{a}));
  file.pre = "llama-bpe";
  EXPECT_EQ(make_tokenizer(file).encode("a"), (std::vector<Token>{bos, a}));
  EXPECT_EQ(make_tokenizer(file).encode("a", SpecialText::kParse, AddBos::kNo), (std::vector<Token>{a}));
  EXPECT_EQ(make_tokenizer(file).encode(""), (std::vector<Token>{bos}));
  file.add_bos = false;
  EXPECT_EQ(make_tokenizer(file).encode("a"), (std::vector<Token>{a}));
}

TEST(BpeTokenizer, LongRunsTakeTimeNearTheirLength) {
  VocabularyFile file;
  file.pre = "gpt-2";
  file.add("a");
  file.add(byte_character(' '));
  std::string run_a = "a", run_blank = byte_character(' ');
  for (int doubling = 0; doubling < 6; ++doubling) {
    file.merges.push_back(run_a + " " + run_a);
    file.merges.push_back(run_blank + " " + run_blank);
    file.add(run_a += run_a);
    file.add(run_blank += run_blank);
  }
  const Tokenizer tokenizer = make_tokenizer(file);
  // 2^20 / 64 tokens. Anything quadratic takes hours; the test's own time limit is what fails.
  EXPECT_EQ(tokenizer.encode(std::string(1 << 20, 'a')).size(), std::size_t{1 << 14});
  EXPECT_EQ(tokenizer.encode(std::string(1 << 18, ' ')).size(), std::size_t{1 << 12});
}

}  // namespace
}  // namespace heed::test
