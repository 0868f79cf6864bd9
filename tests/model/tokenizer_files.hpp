// SPDX-License-Identifier: Apache-2.0
// Small vocabularies as model files in memory.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <heed/model/gguf.hpp>
#include <heed/model/tokenizer.hpp>

#include "support/gguf_builder.hpp"

namespace heed::test {

using model::Token;

inline constexpr std::int32_t kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByteToken = 6;

/// What a file says about its tokenizer; nullopt leaves the key out.
struct VocabularyFile {
  std::string kind = "gpt2";
  std::optional<std::string> pre = {};
  std::vector<std::string> texts = {};
  std::vector<std::int32_t> kinds = {};
  std::vector<float> scores = {};
  std::vector<std::string> merges = {};
  std::optional<std::uint32_t> bos = {}, eos = {};
  std::optional<bool> add_bos = {}, add_space_prefix = {};
  std::optional<std::string> chat_template = {};

  Token add(const std::string& text, std::int32_t token_kind = kNormal, float score = 0) {
    texts.push_back(text);
    kinds.push_back(token_kind);
    scores.push_back(score);
    return static_cast<Token>(texts.size() - 1);
  }
  [[nodiscard]] std::vector<std::byte> bytes() const {
    GgufBuilder file;
    file.string("tokenizer.ggml.model", kind);
    if (pre) file.string("tokenizer.ggml.pre", *pre);
    file.strings("tokenizer.ggml.tokens", texts).array("tokenizer.ggml.token_type", kinds);
    if (kind == "llama") file.array("tokenizer.ggml.scores", scores);
    if (kind == "gpt2") file.strings("tokenizer.ggml.merges", merges);
    if (bos) file.scalar("tokenizer.ggml.bos_token_id", *bos);
    if (eos) file.scalar("tokenizer.ggml.eos_token_id", *eos);
    if (add_bos) file.scalar("tokenizer.ggml.add_bos_token", *add_bos);
    if (add_space_prefix) file.scalar("tokenizer.ggml.add_space_prefix", *add_space_prefix);
    if (chat_template) file.string("tokenizer.chat_template", *chat_template);
    return file.finish();
  }
};

inline model::Tokenizer make_tokenizer(const VocabularyFile& vocabulary) {
  const AlignedBytes bytes(vocabulary.bytes());
  return model::Tokenizer(model::GgufFile::parse(bytes.span(), "tiny"));
}

/// GPT-2's character for a byte, from its definition.
inline std::string byte_character(int byte) {
  const auto printable = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  int code = byte;
  if (!printable(byte)) {
    code = 256;
    for (int b = 0; b < byte; ++b) code += printable(b) ? 0 : 1;
  }
  if (code < 0x80) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

inline std::string byte_characters(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += byte_character(static_cast<unsigned char>(byte));
  return text;
}

/// "<0x0A>" and so on.
inline std::string byte_token_text(int byte) {
  const char* digits = "0123456789ABCDEF";
  return {'<', '0', 'x', digits[byte / 16], digits[byte % 16], '>'};
}

/// Strings put together from parts.
inline std::string random_text(std::mt19937& random, const std::vector<std::string>& parts, int longest) {
  std::string text;
  const auto count = static_cast<int>(random() % static_cast<unsigned>(longest + 1));
  for (int i = 0; i < count; ++i) text += parts[random() % parts.size()];
  return text;
}

/// Letters of several scripts, numbers, blanks of all sorts, symbols, and bytes that are not UTF-8.
inline const std::vector<std::string>& varied_parts() {
  static const std::vector<std::string> parts = {"a",
                                                 "b",
                                                 "ab",
                                                 "s",
                                                 "ll",
                                                 "T",
                                                 "\xC3\xA9",
                                                 "\xE4\xB8\xAD",
                                                 "\xF0\x9D\x94\x98",
                                                 "1",
                                                 "23",
                                                 "\xC2\xB2",
                                                 "\xE2\x85\xA3",
                                                 " ",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\r\n",
                                                 "\t",
                                                 "\xC2\xA0",
                                                 "\xE3\x80\x80",
                                                 "\xE1\xA0\x8E",
                                                 "'",
                                                 "'s",
                                                 ",",
                                                 ".",
                                                 "\xF0\x9F\x91\x8D",
                                                 "\xE2\x80\x8D",
                                                 "\xCC\x81",
                                                 std::string(1, '\0'),
                                                 "\x7F",
                                                 "\xFF",
                                                 "\x80",
                                                 "\xE4\xB8",
                                                 "\xF0\x9F",
                                                 "\xC3",
                                                 "\xED\xA0\x80",
                                                 "\xF4\x90\x80\x80",
                                                 "\xC0\x80"};
  return parts;
}

}  // namespace heed::test
