// SPDX-License-Identifier: Apache-2.0
// The vocabulary of a model file, checked: texts, kinds, and the ids with a meaning of their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <heed/model/gguf.hpp>
#include <heed/model/tokenizer.hpp>

namespace heed::model {

/// `tokenizer.ggml.token_type`.
enum class TokenKind : std::uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

inline constexpr Token kNoToken = -1;

struct Vocabulary {
  Vocabulary() = default;
  Vocabulary(Vocabulary&&) = default;  // a copy's `ids` would look into the original
  Vocabulary& operator=(Vocabulary&&) = default;

  std::vector<std::string> texts;  ///< [vocabulary]
  std::vector<TokenKind> kinds;    ///< [vocabulary]
  std::vector<Token> end_tokens;   ///< rising
  Token bos = kNoToken;
  /// By text; of equal texts the last id counts, empty texts are left out. Views into `texts`.
  std::unordered_map<std::string_view, Token> ids;

  [[nodiscard]] std::int64_t size() const noexcept { return static_cast<std::int64_t>(texts.size()); }
  [[nodiscard]] TokenKind kind(Token token) const noexcept { return kinds[static_cast<std::size_t>(token)]; }
  [[nodiscard]] Token find(std::string_view text) const noexcept {
    const auto found = ids.find(text);
    return found != ids.end() ? found->second : kNoToken;
  }
  /// Whether plain text may become this token. Control and unknown tokens never come from text, and byte tokens only from bytes: else a
  /// user who types their names would get them.
  [[nodiscard]] bool is_text(Token token) const noexcept {
    return kind(token) == TokenKind::kNormal || kind(token) == TokenKind::kUserDefined || kind(token) == TokenKind::kUnused;
  }
};

/// Throws FormatError naming the file and the key.
[[nodiscard]] Vocabulary read_vocabulary(const GgufFile& file);
/// `tokenizer.ggml.scores` [vocabulary]; FormatError when they are missing, not numbers, or of another count.
[[nodiscard]] std::vector<double> read_scores(const GgufFile& file, std::int64_t vocabulary);
/// Throws FormatError "<file>: <key>: expected <expected>, got <got>".
[[noreturn]] void throw_bad_key(const GgufFile& file, std::string_view key, std::string_view expected, std::string_view got);

}  // namespace heed::model
