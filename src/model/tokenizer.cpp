// SPDX-License-Identifier: Apache-2.0
// Tokenizer: special tokens are cut out, the rest goes to the encoder that the file names.
#include <heed/model/tokenizer.hpp>

#include <algorithm>
#include <variant>

#include "base/message.hpp"
#include "model/bpe.hpp"
#include "model/spm.hpp"
#include "model/tokenizer_special.hpp"
#include "model/tokenizer_vocabulary.hpp"

namespace heed::model {

struct Tokenizer::State {
  explicit State(const GgufFile& file);

  Vocabulary vocabulary;
  std::variant<std::monostate, BpeEncoder, SpmEncoder> encoder;  ///< points into `vocabulary`
  SpecialTokens with_control, without_control;
  AddBos adds_bos = AddBos::kNo;

  [[nodiscard]] const SpmEncoder* spm() const { return std::get_if<SpmEncoder>(&encoder); }
  void encode_plain(std::string_view text, std::vector<Token>& tokens, WordCache& cache) const;
  [[nodiscard]] std::string bytes_of(Token token) const;
};

namespace {

constexpr std::string_view kModel = "tokenizer.ggml.model";
constexpr std::string_view kAddBos = "tokenizer.ggml.add_bos_token";

/// Where the file does not say: SentencePiece models and Llama 3 were trained with one, the other byte-level models without.
AddBos read_add_bos(const GgufFile& file, const Vocabulary& vocabulary, bool by_default) {
  const std::optional<bool> stated = file.find_bool(kAddBos);
  if (stated == true && vocabulary.bos == kNoToken) {
    throw_bad_key(file, "tokenizer.ggml.bos_token_id", "an id, because add_bos_token is true", "no such key");
  }
  return stated.value_or(by_default) && vocabulary.bos != kNoToken ? AddBos::kAsFileSays : AddBos::kNo;
}

void check_id(std::string_view function, const Vocabulary& vocabulary, Token token) {
  if (token >= 0 && token < vocabulary.size()) return;
  base::throw_invalid(function, "token", "an id below " + std::to_string(vocabulary.size()), std::to_string(token));
}

}  // namespace

Tokenizer::State::State(const GgufFile& file)
    : vocabulary(read_vocabulary(file)), with_control(vocabulary, SpecialText::kParse), without_control(vocabulary, SpecialText::kPlain) {
  const std::string& model = file.require_string(kModel);
  if (model == "gpt2") {
    encoder.emplace<BpeEncoder>(file, vocabulary);
    adds_bos = read_add_bos(file, vocabulary, read_pre_splitter_name(file) == "llama-bpe");
  } else if (model == "llama") {
    encoder.emplace<SpmEncoder>(file, vocabulary);
    adds_bos = read_add_bos(file, vocabulary, true);
  } else {
    throw_bad_key(file, kModel, "gpt2 or llama", '"' + model.substr(0, 80) + '"');
  }
}

void Tokenizer::State::encode_plain(std::string_view text, std::vector<Token>& tokens, WordCache& cache) const {
  if (const SpmEncoder* encode_spm = spm()) {
    encode_spm->encode(text, tokens, cache);
  } else {
    std::get<BpeEncoder>(encoder).encode(text, tokens, cache);
  }
}

std::string Tokenizer::State::bytes_of(Token token) const {
  const std::string& text = vocabulary.texts[static_cast<std::size_t>(token)];
  switch (vocabulary.kind(token)) {
    case TokenKind::kUserDefined: return text;
    case TokenKind::kNormal: return spm() != nullptr ? SpmEncoder::bytes_of(text) : BpeEncoder::bytes_of(text);
    case TokenKind::kByte: {
      const int byte = SpmEncoder::byte_of(text);
      return byte >= 0 ? std::string(1, static_cast<char>(static_cast<unsigned char>(byte))) : text;
    }
    case TokenKind::kControl:
    case TokenKind::kUnknown:
    case TokenKind::kUnused: break;
  }
  return {};
}

Tokenizer::Tokenizer(const GgufFile& file) : state_(std::make_unique<const State>(file)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<Token> Tokenizer::encode(std::string_view text, SpecialText special, AddBos bos) const {
  std::vector<Token> tokens;
  if (bos == AddBos::kAsFileSays && state_->adds_bos == AddBos::kAsFileSays) tokens.push_back(state_->vocabulary.bos);
  const SpecialTokens& specials = special == SpecialText::kParse ? state_->with_control : state_->without_control;
  const bool adds_blank = state_->spm() != nullptr && state_->spm()->adds_blank_prefix();
  bool after_special = true;
  WordCache cache;
  for (const Fragment& fragment : specials.cut(text)) {
    if (fragment.token != kNoToken) {
      tokens.push_back(fragment.token);
    } else if (adds_blank && after_special) {
      state_->encode_plain(" " + std::string(fragment.text), tokens, cache);
    } else {
      state_->encode_plain(fragment.text, tokens, cache);
    }
    after_special = fragment.token != kNoToken;
  }
  return tokens;
}

std::string Tokenizer::decode(std::span<const Token> tokens) const {
  std::string text;
  for (const Token token : tokens) text += token_bytes(token);
  return text;
}

std::string Tokenizer::token_bytes(Token token) const {
  check_id("Tokenizer::token_bytes", state_->vocabulary, token);
  return state_->bytes_of(token);
}

const std::string& Tokenizer::token_text(Token token) const {
  check_id("Tokenizer::token_text", state_->vocabulary, token);
  return state_->vocabulary.texts[static_cast<std::size_t>(token)];
}

std::int64_t Tokenizer::vocabulary_size() const noexcept { return state_->vocabulary.size(); }
std::int64_t Tokenizer::bos() const noexcept { return state_->vocabulary.bos; }
std::span<const Token> Tokenizer::end_tokens() const noexcept { return state_->vocabulary.end_tokens; }
bool Tokenizer::is_end(Token token) const noexcept {
  const std::vector<Token>& ends = state_->vocabulary.end_tokens;
  return std::binary_search(ends.begin(), ends.end(), token);
}
Token Tokenizer::find(std::string_view text) const noexcept { return state_->vocabulary.find(text); }

}  // namespace heed::model
