// SPDX-License-Identifier: Apache-2.0
// SentencePiece byte-pair encoding: blanks become U+2581, characters merge by the score of what they become, the rest becomes bytes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/bpe_merge.hpp"
#include "model/tokenizer_vocabulary.hpp"
#include "model/tokenizer_word_cache.hpp"

namespace heed::model {

/// U+2581, which stands for a blank in the vocabulary.
inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";

/// Immutable; the vocabulary must outlive it.
class SpmEncoder {
 public:
  /// Throws FormatError naming `tokenizer.ggml.scores` or `tokenizer.ggml.add_space_prefix`.
  SpmEncoder(const GgufFile& file, const Vocabulary& vocabulary);

  /// Appends the tokens of plain text (special tokens already cut out).
  void encode(std::string_view text, std::vector<Token>& tokens, WordCache& cache) const;
  /// Whether the file asks for a blank in front of text at the start and after special tokens.
  [[nodiscard]] bool adds_blank_prefix() const noexcept { return adds_blank_prefix_; }

  /// The bytes that a normal token's text stands for: U+2581 is a blank.
  [[nodiscard]] static std::string bytes_of(std::string_view text);
  /// The byte that "<0xNN>" names, or -1.
  [[nodiscard]] static int byte_of(std::string_view text) noexcept;

 private:
  void encode_chunk(std::string_view chunk, std::vector<Token>& tokens, Merger<double>& merger) const;
  [[nodiscard]] Token find_text(std::string_view text) const;
  [[nodiscard]] bool is_chunk_start(std::string_view marked, std::size_t position) const noexcept;
  void note_inner_marks(std::string_view text);

  const Vocabulary* vocabulary_;
  std::vector<double> scores_;            ///< [vocabulary]
  std::array<Token, 256> byte_tokens_{};  ///< kNoToken: the vocabulary lacks the byte
  std::array<bool, 256> joins_mark_{};    ///< by byte: some token holds it directly before a U+2581
  std::size_t longest_ = 0;               ///< bytes of the longest token
  bool adds_blank_prefix_ = true;
};

}  // namespace heed::model
