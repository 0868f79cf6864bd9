// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_vocabulary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <heed/error.hpp>

namespace heed::model {

namespace {

/// Texts that end a turn in the model families that write them, whatever id a file gives as eos.
constexpr std::array<std::string_view, 12> kEndTexts = {"<|im_end|>",    "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>",
                                                        "<end_of_turn>", "<|end|>",       "<eos>",      "</s>",       "<|endofturn|>",
                                                        "<EOT>",         "[EOS]"};

std::vector<TokenKind> read_kinds(const GgufFile& file, std::size_t count) {
  constexpr std::string_view kKey = "tokenizer.ggml.token_type";
  const GgufValue* value = file.find(kKey);
  if (value == nullptr) return std::vector<TokenKind>(count, TokenKind::kNormal);
  const auto* numbers = std::get_if<std::vector<std::int64_t>>(value);
  if (numbers == nullptr) throw_bad_key(file, kKey, "an array of integers", "another type");
  if (numbers->size() != count) {
    throw_bad_key(file, kKey, std::to_string(count) + " entries, one per token", std::to_string(numbers->size()));
  }
  std::vector<TokenKind> kinds;
  kinds.reserve(count);
  for (const std::int64_t number : *numbers) {
    if (number < 0 || number > 6) throw_bad_key(file, kKey, "numbers from 0 to 6", std::to_string(number));
    kinds.push_back(number == 0 ? TokenKind::kNormal : static_cast<TokenKind>(number));
  }
  return kinds;
}

/// kNoToken when the key is absent.
Token read_id(const GgufFile& file, std::string_view key, std::int64_t vocabulary) {
  const std::optional<std::int64_t> id = file.find_int(key);
  if (!id) return kNoToken;
  if (*id < 0 || *id >= vocabulary) {
    throw_bad_key(file, key, "an id below " + std::to_string(vocabulary), std::to_string(*id));
  }
  return static_cast<Token>(*id);
}

/// A text in kEndTexts counts where the file marks it as special. "</s>" must be a control token: Gemma 3 has it as user-defined, where it
/// is the HTML tag that closes struck-out text.
bool is_end_text(const Vocabulary& vocabulary, std::string_view text, Token token) {
  const TokenKind kind = vocabulary.kind(token);
  return kind == TokenKind::kControl || (kind == TokenKind::kUserDefined && text != "</s>");
}

std::vector<Token> read_end_tokens(const GgufFile& file, const Vocabulary& vocabulary) {
  std::vector<Token> ends;
  for (const std::string_view key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const Token id = read_id(file, key, vocabulary.size());
    if (id != kNoToken) ends.push_back(id);
  }
  for (const std::string_view text : kEndTexts) {
    const Token id = vocabulary.find(text);
    if (id != kNoToken && is_end_text(vocabulary, text, id)) ends.push_back(id);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

}  // namespace

void throw_bad_key(const GgufFile& file, std::string_view key, std::string_view expected, std::string_view got) {
  std::string text = file.name();
  text.append(": ").append(key).append(": expected ").append(expected).append(", got ").append(got);
  throw FormatError(text);
}

Vocabulary read_vocabulary(const GgufFile& file) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  Vocabulary vocabulary;
  vocabulary.texts = file.require_strings(kTokens);
  const std::size_t count = vocabulary.texts.size();
  if (count == 0 || count > static_cast<std::size_t>(std::numeric_limits<Token>::max())) {
    throw_bad_key(file, kTokens, "between 1 and 2^31 - 1 tokens", std::to_string(count));
  }
  vocabulary.kinds = read_kinds(file, count);
  vocabulary.ids.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    if (!vocabulary.texts[i].empty()) vocabulary.ids[vocabulary.texts[i]] = static_cast<Token>(i);
  }
  vocabulary.bos = read_id(file, "tokenizer.ggml.bos_token_id", vocabulary.size());
  vocabulary.end_tokens = read_end_tokens(file, vocabulary);
  return vocabulary;
}

std::vector<double> read_scores(const GgufFile& file, std::int64_t vocabulary) {
  constexpr std::string_view kKey = "tokenizer.ggml.scores";
  const GgufValue* value = file.find(kKey);
  if (value == nullptr) throw_bad_key(file, kKey, "one score per token, to merge by", "no such key");
  const auto* scores = std::get_if<std::vector<double>>(value);
  if (scores == nullptr) throw_bad_key(file, kKey, "an array of floating-point numbers", "another type");
  if (static_cast<std::int64_t>(scores->size()) != vocabulary) {
    throw_bad_key(file, kKey, std::to_string(vocabulary) + " entries, one per token", std::to_string(scores->size()));
  }
  for (const double score : *scores) {
    if (std::isnan(score)) throw_bad_key(file, kKey, "numbers", "NaN");
  }
  return *scores;
}

}  // namespace heed::model
