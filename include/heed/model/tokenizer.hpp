// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as the model file says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/export.hpp>
#include <heed/model/gguf.hpp>

namespace heed::model {

using Token = std::int32_t;

/// Whether control tokens such as <|im_start|> written in the text become their ids (templates) or plain characters (user text).
enum class SpecialText : std::uint8_t { kParse, kPlain };
/// Whether the file's begin-of-sequence token is put in front, where the file asks for one.
enum class AddBos : std::uint8_t { kAsFileSays, kNo };

/// Byte-level BPE (`gpt2` with the smollm, llama-bpe, qwen2, gpt-2 and default pre-splitters) and SentencePiece BPE (`llama`).
/// Immutable; use from several threads is safe.
class HEED_API Tokenizer {
 public:
  /// Throws FormatError naming the key for a model or pre-splitter that is not supported, or an inconsistent vocabulary.
  explicit Tokenizer(const GgufFile& file);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Any bytes, valid UTF-8 or not. A byte that the vocabulary cannot represent is dropped.
  [[nodiscard]] std::vector<Token> encode(std::string_view text, SpecialText special = SpecialText::kParse,
                                          AddBos bos = AddBos::kAsFileSays) const;
  /// Bytes of the tokens, control tokens left out; a blank that encode() put in front stays. May end inside a character: see StreamDecoder.
  [[nodiscard]] std::string decode(std::span<const Token> tokens) const;
  /// Raw bytes of one token ("" for control tokens). Throws InvalidArgument for an id outside of the vocabulary.
  [[nodiscard]] std::string token_bytes(Token token) const;
  /// The vocabulary's own text of a token, control tokens included.
  [[nodiscard]] const std::string& token_text(Token token) const;

  [[nodiscard]] std::int64_t vocabulary_size() const noexcept;
  [[nodiscard]] std::int64_t bos() const noexcept;  ///< -1: none
  /// Tokens that end a text: eos, eot, end of turn.
  [[nodiscard]] std::span<const Token> end_tokens() const noexcept;
  [[nodiscard]] bool is_end(Token token) const noexcept;
  /// Id of a vocabulary entry by its exact text, or -1.
  [[nodiscard]] Token find(std::string_view text) const noexcept;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

/// Turns a stream of tokens into text without ever giving out half a UTF-8 character. The tokenizer must outlive it.
class HEED_API StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  /// The text that `token` completes; an unfinished tail is held back. Invalid bytes become U+FFFD.
  [[nodiscard]] std::string push(Token token);
  /// What is left at the end (U+FFFD for an unfinished character).
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

/// One message of a conversation.
struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};
/// The prompt text for a conversation, ending where the assistant's answer starts. The template is chosen from the file's own chat template
/// (ChatML, Gemma, Llama 3, Mistral); FormatError when the file has none that is known. Encode with SpecialText::kParse.
[[nodiscard]] HEED_API std::string chat_prompt(const GgufFile& file, std::span<const ChatMessage> messages);

}  // namespace heed::model
