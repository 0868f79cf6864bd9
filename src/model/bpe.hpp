// SPDX-License-Identifier: Apache-2.0
// Byte-level byte-pair encoding (GPT-2): text -> pieces -> bytes -> merges in the order of their rank.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/bpe_merge.hpp"
#include "model/pre_splitter.hpp"
#include "model/tokenizer_vocabulary.hpp"
#include "model/tokenizer_word_cache.hpp"

namespace heed::model {

/// (left token, right token) -> Merge: open addressing, at most half full, because this look-up is where encoding spends its time.
class MergeTable {
 public:
  using Merge = MergeResult<std::uint32_t>;  ///< ordered by rank

  explicit MergeTable(std::size_t merges);
  /// The first insertion of a pair counts.
  void insert(Token left, Token right, Merge merge);
  [[nodiscard]] Merge find(Token left, Token right) const noexcept;

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Merge merge;
  };
  static constexpr std::uint64_t kEmpty = ~std::uint64_t{0};  // two ids of -1: never a key
  [[nodiscard]] std::size_t slot_of(std::uint64_t key) const noexcept;

  std::vector<Slot> slots_;
  int shift_ = 0;
};

/// Immutable; the vocabulary must outlive it.
class BpeEncoder {
 public:
  /// Throws FormatError naming `tokenizer.ggml.pre` or `tokenizer.ggml.merges`.
  BpeEncoder(const GgufFile& file, const Vocabulary& vocabulary);

  /// Appends the tokens of plain text (special tokens already cut out).
  void encode(std::string_view text, std::vector<Token>& tokens, WordCache& cache) const;

  /// The bytes that a normal token's text stands for: every character back to its byte. Characters that stand for no byte keep their own.
  [[nodiscard]] static std::string bytes_of(std::string_view text);

 private:
  void read_merges(const GgufFile& file);
  void encode_piece(std::string_view piece, std::vector<Token>& tokens, Merger<std::uint32_t>& merger) const;
  /// The text token that the whole piece is, or kNoToken.
  [[nodiscard]] Token find_whole(std::string_view piece) const;

  const Vocabulary* vocabulary_;
  PreSplitter splitter_;
  MergeTable merges_;
  std::array<Token, 256> byte_tokens_{};                                  ///< kNoToken: the vocabulary lacks the byte
  enum class WholePiece : std::uint8_t { kMerge, kLookUp } whole_piece_;  ///< kLookUp: a piece that is a token becomes it without merging
};

/// The value of `tokenizer.ggml.pre`, "default" where it is absent.
[[nodiscard]] std::string read_pre_splitter_name(const GgufFile& file);

}  // namespace heed::model
