// SPDX-License-Identifier: Apache-2.0
// What both kinds of tokenizer share: special tokens, end tokens, streaming, and refusing vocabularies that make no sense.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include <heed/error.hpp>

#include "model/tokenizer_files.hpp"
#include "model/tokenizer_special.hpp"

namespace heed::test {
namespace {

using model::AddBos;
using model::Fragment;
using model::SpecialText;
using model::SpecialTokens;
using model::StreamDecoder;
using model::Tokenizer;

/// All bytes as tokens 0-255, one per byte, so that plain text is easy to follow.
VocabularyFile all_bytes() {
  VocabularyFile file;
  file.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) file.add(byte_character(byte));
  return file;
}

TEST(SpecialTokens, UserDefinedAlwaysControlOnlyWhenAskedFor) {
  VocabularyFile file = all_bytes();
  const Token control = file.add("<c>", kControl), user = file.add("<u>", kUserDefined), normal = file.add("<n>");
  const Tokenizer tokenizer = make_tokenizer(file);
  EXPECT_EQ(tokenizer.encode("<c><u>", SpecialText::kParse), (std::vector<Token>{control, user}));
  EXPECT_EQ(tokenizer.encode("<c><u>", SpecialText::kPlain), (std::vector<Token>{'<', 'c', '>', user}));
  EXPECT_EQ(tokenizer.encode("<n>"), (std::vector<Token>{'<', 'n', '>'})) << "not " << normal;
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{control, user, 'a'}), "<u>a");
  EXPECT_EQ(tokenizer.token_text(control), "<c>");
}

TEST(SpecialTokens, LongestTextFirstNotLeftmost) {
  VocabularyFile file = all_bytes();
  const Token abcd = file.add("abcd", kUserDefined);
  file.add("xab", kUserDefined);
  EXPECT_EQ(make_tokenizer(file).encode("xabcd"), (std::vector<Token>{'x', abcd}));
}

/// Cuts every text in the order of length and id, by searching what is left from its left end.
std::vector<std::pair<std::string, Token>> cut_slowly(const std::string& text, const std::vector<std::pair<std::string, Token>>& specials) {
  auto sorted = specials;
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  std::vector<std::pair<std::string, Token>> parts = {{text, -1}};
  for (const auto& [special, token] : sorted) {
    std::vector<std::pair<std::string, Token>> next;
    for (const auto& [part, owner] : parts) {
      std::size_t position = 0;
      for (std::size_t at; owner < 0 && (at = part.find(special, position)) != std::string::npos; position = at + special.size()) {
        next.emplace_back(part.substr(position, at - position), -1);
        next.emplace_back(special, token);
      }
      next.emplace_back(part.substr(position), owner);
    }
    parts.clear();
    std::copy_if(next.begin(), next.end(), std::back_inserter(parts), [](const auto& part) { return !part.first.empty(); });
  }
  return parts;
}

TEST(SpecialTokens, AgreeWithSearchingOneAfterTheOther) {
  std::mt19937 random(31);
  const std::vector<std::string> letters = {"a", "a", "b", "c"};
  for (int round = 0; round < 2000; ++round) {
    VocabularyFile file = all_bytes();
    std::vector<std::pair<std::string, Token>> specials;
    std::set<std::string> known;
    for (int i = 0; i < 6; ++i) {
      const std::string text = random_text(random, letters, 5);
      if (!text.empty() && known.insert(text).second) specials.emplace_back(text, file.add(text + "", kUserDefined));
    }
    const std::string text = random_text(random, letters, 40);
    const AlignedBytes bytes(file.bytes());
    const model::Vocabulary vocabulary = model::read_vocabulary(model::GgufFile::parse(bytes.span(), "tiny"));
    std::vector<std::pair<std::string, Token>> got;
    for (const Fragment& fragment : SpecialTokens(vocabulary, SpecialText::kPlain).cut(text))
      got.emplace_back(fragment.text, fragment.token);
    ASSERT_EQ(got, cut_slowly(text, specials)) << text;
  }
}

TEST(SpecialTokens, LongRunsTakeTimeNearTheirLength) {
  VocabularyFile file = all_bytes();
  for (std::size_t length = 1; length <= 31; ++length) file.add(std::string(length, '\n'), kUserDefined);
  const Tokenizer tokenizer = make_tokenizer(file);
  const std::vector<Token> tokens = tokenizer.encode(std::string(1000003, '\n'));
  EXPECT_EQ(tokens.size(), std::size_t{1000003 / 31 + 1});
  EXPECT_EQ(tokens.back(), 255 + 1000003 % 31);
}

TEST(EndTokens, EosAndTheTextsThatEndATurn) {
  VocabularyFile file = all_bytes();
  const Token eos = file.add("stop", kControl), turn = file.add("<end_of_turn>", kControl), chatml = file.add("<|im_end|>", kUserDefined);
  file.add("<eos>", kNormal);      // not marked as special
  file.add("</s>", kUserDefined);  // the tag that closes struck-out text
  file.eos = static_cast<std::uint32_t>(eos);
  const Tokenizer tokenizer = make_tokenizer(file);
  const std::vector<Token> ends(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  EXPECT_EQ(ends, (std::vector<Token>{eos, turn, chatml}));
  EXPECT_TRUE(tokenizer.is_end(turn));
  EXPECT_FALSE(tokenizer.is_end('a'));
  EXPECT_FALSE(tokenizer.is_end(-1));
  EXPECT_EQ(tokenizer.bos(), -1);
}

TEST(Vocabulary, OfEqualTextsTheLastCountsAndEmptyTextsAreNeverMade) {
  VocabularyFile file = all_bytes();
  const Token empty = file.add("");
  const Token again = file.add("a");
  const Tokenizer tokenizer = make_tokenizer(file);
  EXPECT_EQ(tokenizer.encode("a"), (std::vector<Token>{again}));
  EXPECT_EQ(tokenizer.find("a"), again);
  EXPECT_EQ(tokenizer.find(""), -1);
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{'a', empty, again}), "aa");
}

// --- streaming

/// Every string that starts a character, taken from the list of all characters.
struct AllCharacters {
  std::set<std::string> whole, starts;
  AllCharacters() {
    for (unsigned value = 0; value < 0x110000; ++value) {
      if (value >= 0xD800 && value < 0xE000) continue;
      std::string text;
      const int tails = value < 0x80 ? 0 : value < 0x800 ? 1 : value < 0x10000 ? 2 : 3;
      const unsigned lead = tails == 0 ? 0 : tails == 1 ? 0xC0 : tails == 2 ? 0xE0 : 0xF0;
      text += static_cast<char>(lead | (value >> (6 * tails)));
      for (int i = tails - 1; i >= 0; --i) text += static_cast<char>(0x80 | ((value >> (6 * i)) & 0x3F));
      whole.insert(text);
      for (std::size_t n = 1; n < text.size(); ++n) starts.insert(text.substr(0, n));
    }
  }
};
const AllCharacters& all_characters() {
  static const AllCharacters characters;
  return characters;
}

/// Invalid bytes become U+FFFD, one for each longest start of a character.
std::string replace_invalid(const std::string& bytes) {
  const AllCharacters& known = all_characters();
  std::string text;
  for (std::size_t i = 0; i < bytes.size();) {
    std::size_t length = 1;
    while (known.whole.count(bytes.substr(i, length)) == 0 && known.starts.count(bytes.substr(i, length)) > 0 &&
           i + length < bytes.size()) {
      ++length;
    }
    const std::string part = bytes.substr(i, length);
    const bool is_whole = known.whole.count(part) > 0;
    text += is_whole ? part : "\xEF\xBF\xBD";
    // The byte that made it invalid starts anew, unless it is alone.
    const bool is_start = known.starts.count(part) > 0;
    i += is_whole || is_start || length == 1 ? length : length - 1;
  }
  return text;
}

bool is_valid(const std::string& text) {
  for (std::size_t i = 0; i < text.size();) {
    std::size_t length = 1;
    while (length <= 4 && all_characters().whole.count(text.substr(i, length)) == 0) ++length;
    if (length > 4) return false;
    i += length;
  }
  return true;
}

TEST(StreamDecoder, NeverGivesOutHalfACharacter) {
  const Tokenizer tokenizer = make_tokenizer(all_bytes());
  std::mt19937 random(41);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = random_text(random, varied_parts(), 20);
    if (round % 2 == 0) {
      bytes.clear();
      for (std::size_t i = 0, n = random() % 12; i < n; ++i) bytes += static_cast<char>(0x80 | (random() & 0x7F));
    }
    StreamDecoder stream(tokenizer);
    std::string text;
    for (const char byte : bytes) {
      const std::string part = stream.push(static_cast<Token>(static_cast<unsigned char>(byte)));
      ASSERT_TRUE(is_valid(part));
      text += part;
    }
    text += stream.finish();
    ASSERT_EQ(text, replace_invalid(bytes)) << testing::PrintToString(bytes);
    ASSERT_EQ(stream.finish(), "");
  }
}

TEST(StreamDecoder, GivesACharacterAsSoonAsItIsWhole) {
  const Tokenizer tokenizer = make_tokenizer(all_bytes());
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.push(0x9F), "");
  EXPECT_EQ(stream.push(0x91), "");
  EXPECT_EQ(stream.push(0x8D), "\xF0\x9F\x91\x8D");
  EXPECT_EQ(stream.push(0xE4), "");
  EXPECT_EQ(stream.push('b'),
            "\xEF\xBF\xBD"
            "b");
  EXPECT_THROW(static_cast<void>(stream.push(256)), InvalidArgument);
}

// --- refusals

/// A whole file of either kind for the errors below.
VocabularyFile sound(const std::string& kind) {
  VocabularyFile file = all_bytes();
  file.kind = kind;
  if (kind == "llama") file.pre.reset();
  return file;
}

void expect_refused(const VocabularyFile& file, const std::string& key, const std::string& detail) {
  try {
    static_cast<void>(make_tokenizer(file));
    ADD_FAILURE() << key << " was accepted";
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(detail), std::string::npos) << error.what();
  }
}

TEST(TokenizerErrors, NameTheKeyAndTheValue) {
  EXPECT_NO_THROW(static_cast<void>(make_tokenizer(sound("gpt2"))));
  EXPECT_NO_THROW(static_cast<void>(make_tokenizer(sound("llama"))));
  const auto refused = [](const std::string& kind, const std::function<void(VocabularyFile&)>& change, const std::string& key,
                          const std::string& detail) {
    VocabularyFile file = sound(kind);
    change(file);
    expect_refused(file, key, detail);
  };
  refused(
      "gpt2", [](auto& f) { f.kind = "bert"; }, "tokenizer.ggml.model", "\"bert\"");
  refused(
      "gpt2", [](auto& f) { f.pre = "deepseek-v3"; }, "tokenizer.ggml.pre", "\"deepseek-v3\"");
  refused(
      "gpt2", [](auto& f) { f.merges = {"a"}; }, "tokenizer.ggml.merges", "entry 0, \"a\"");
  refused(
      "gpt2", [](auto& f) { f.merges = {"a b"}; }, "tokenizer.ggml.merges", "joined");
  refused(
      "gpt2", [](auto& f) { f.merges = {" "}; }, "tokenizer.ggml.merges", "entry 0");
  refused(
      "gpt2", [](auto& f) { f.merges = {""}; }, "tokenizer.ggml.merges", "entry 0");
  refused(
      "gpt2", [](auto& f) { f.merges = {"a "}; }, "tokenizer.ggml.merges", "entry 0");
  refused(
      "gpt2", [](auto& f) { f.kinds.pop_back(); }, "tokenizer.ggml.token_type", "256");
  refused(
      "gpt2", [](auto& f) { f.kinds[3] = 7; }, "tokenizer.ggml.token_type", "got 7");
  refused(
      "gpt2", [](auto& f) { f.kinds[3] = -1; }, "tokenizer.ggml.token_type", "got -1");
  refused(
      "gpt2", [](auto& f) { f.bos = 256; }, "tokenizer.ggml.bos_token_id", "got 256");
  refused(
      "gpt2", [](auto& f) { f.eos = 999; }, "tokenizer.ggml.eos_token_id", "got 999");
  refused(
      "gpt2", [](auto& f) { f.add_bos = true; }, "tokenizer.ggml.bos_token_id", "no such key");
  refused(
      "gpt2",
      [](auto& f) {
        f.texts.clear();
        f.kinds.clear();
      },
      "tokenizer.ggml.tokens", "got 0");
  refused(
      "llama", [](auto& f) { f.scores.pop_back(); }, "tokenizer.ggml.scores", "255");
  refused(
      "llama", [](auto& f) { f.scores[0] = std::numeric_limits<float>::quiet_NaN(); }, "tokenizer.ggml.scores", "NaN");
}

TEST(TokenizerErrors, MissingKeys) {
  const auto refused = [](const GgufBuilder& builder, const std::string& key) {
    const AlignedBytes bytes(builder.finish());
    const model::GgufFile file = model::GgufFile::parse(bytes.span(), "tiny");
    try {
      static_cast<void>(Tokenizer(file));
      ADD_FAILURE() << key << " was not missed";
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(key), std::string::npos) << error.what();
    }
  };
  const std::vector<std::string> texts = {"a"};
  refused(GgufBuilder().string("tokenizer.ggml.model", "gpt2"), "tokenizer.ggml.tokens");
  refused(GgufBuilder().strings("tokenizer.ggml.tokens", texts), "tokenizer.ggml.model");
  refused(GgufBuilder().strings("tokenizer.ggml.tokens", texts).string("tokenizer.ggml.model", "gpt2"), "tokenizer.ggml.merges");
  refused(GgufBuilder().strings("tokenizer.ggml.tokens", texts).string("tokenizer.ggml.model", "llama"), "tokenizer.ggml.scores");
}

TEST(TokenizerErrors, IdsOutsideOfTheVocabulary) {
  const Tokenizer tokenizer = make_tokenizer(all_bytes());
  EXPECT_EQ(tokenizer.vocabulary_size(), 256);
  EXPECT_THROW(static_cast<void>(tokenizer.token_bytes(-1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(tokenizer.token_text(256)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(tokenizer.decode(std::vector<Token>{1, 256})), InvalidArgument);
}

// --- damaged vocabularies

VocabularyFile varied_vocabulary(const std::string& kind) {
  VocabularyFile file;
  file.kind = kind;
  if (kind == "gpt2") file.pre = "smollm";
  for (int byte = 0; byte < 256; ++byte)
    file.add(kind == "gpt2" ? byte_character(byte) : byte_token_text(byte), kind == "gpt2" ? kNormal : kByteToken);
  for (const char* text : {"ab", "abab", "a\xC4\xA0", "\xE2\x96\x81",
                           "\xE2\x96\x81"
                           "a",
                           "a", "b"})
    file.add(text, kNormal, 1);
  file.bos = static_cast<std::uint32_t>(file.add("<s>", kControl));
  file.eos = static_cast<std::uint32_t>(file.add("</s>", kControl));
  file.add("  ", kUserDefined);
  file.add("<unk>", kUnknown);
  if (kind == "gpt2") file.merges = {"a b", "ab ab", "a \xC4\xA0"};
  return file;
}

/// False: refused. Any other error, or a crash that a sanitizer sees, fails.
bool use(const AlignedBytes& bytes, std::mt19937& random) {
  try {
    const Tokenizer tokenizer(model::GgufFile::parse(bytes.span(), "damaged"));
    const std::vector<Token> tokens = tokenizer.encode(random_text(random, varied_parts(), 30) + "<s></s>  <unk>");
    StreamDecoder stream(tokenizer);
    for (const Token token : tokens) static_cast<void>(stream.push(token));
    static_cast<void>(stream.finish());
    for (Token token = 0; token < tokenizer.vocabulary_size(); ++token) static_cast<void>(tokenizer.token_bytes(token));
    return true;
  } catch (const FormatError&) {
    return false;
  }
}

TEST(DamagedVocabulary, GivesAnErrorOrATokenizer) {
  std::mt19937 random(51);
  int sound_files = 0, refused = 0;
  for (const std::string kind : {"gpt2", "llama"}) {
    const std::vector<std::byte> whole = varied_vocabulary(kind).bytes();
    for (int round = 0; round < 1500; ++round) {
      std::vector<std::byte> bytes = whole;
      for (std::size_t i = 0, n = 1 + random() % 4; i < n; ++i)
        bytes[random() % bytes.size()] ^= static_cast<std::byte>(1u << (random() % 8));
      if (random() % 8 == 0) bytes.resize(random() % bytes.size());
      ++(use(AlignedBytes(bytes), random) ? sound_files : refused);
    }
  }
  EXPECT_GT(sound_files, 200);
  EXPECT_GT(refused, 200);
}

/// Whole entries changed, so that the file still parses and the damage reaches the tokenizer.
TEST(DamagedVocabulary, ChangedEntriesGiveAnErrorOrATokenizer) {
  std::mt19937 random(52);
  int sound_files = 0, refused = 0;
  const std::vector<std::string> texts = {"",     "a",   "ab",       " ",   "<0x41>",    "<0x4", "\xE2\x96\x81",
                                          "\xFF", "<s>", "\xC4\xA0", "a b", "<|im_end|>"};
  for (int round = 0; round < 1500; ++round) {
    VocabularyFile file = varied_vocabulary(round % 2 == 0 ? "gpt2" : "llama");
    for (std::size_t i = 0, n = 1 + random() % 4; i < n; ++i) {
      const std::size_t at = random() % file.texts.size();
      switch (random() % 4) {
        case 0: file.texts[at] = texts[random() % texts.size()]; break;
        case 1: file.kinds[at] = static_cast<std::int32_t>(random() % 8); break;
        case 2: file.scores[at] = static_cast<float>(static_cast<double>(random()) * 1e30); break;
        default: file.merges.push_back(texts[random() % texts.size()] + " " + texts[random() % texts.size()]); break;
      }
    }
    ++(use(AlignedBytes(file.bytes()), random) ? sound_files : refused);
  }
  EXPECT_GT(sound_files, 200);
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace heed::test
