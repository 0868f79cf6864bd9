// SPDX-License-Identifier: Apache-2.0
// Walks over bytes that may or may not be UTF-8.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heed::model {

enum class Utf8Kind : std::uint8_t {
  kCharacter,  ///< a whole, valid character
  kInvalid,    ///< bytes that no continuation can make valid
  kUnfinished  ///< the text ends in the middle of a character that was valid so far
};
struct Utf8Step {
  std::size_t length = 0;  ///< bytes, 1-4
  Utf8Kind kind = Utf8Kind::kInvalid;
};

/// What starts at `position` < text.size(). Overlong forms, surrogates and values above U+10FFFF are invalid. An invalid step covers the
/// longest start of a character (Unicode 15, section 3.9, "maximal subpart"), which is what other decoders replace by one U+FFFD.
[[nodiscard]] Utf8Step utf8_step(std::string_view text, std::size_t position) noexcept;

/// The character's bytes as a number; `text` is one valid character.
[[nodiscard]] std::uint32_t utf8_value(std::string_view text) noexcept;
/// Appends a code point below U+110000.
void append_utf8(std::string& to, std::uint32_t code_point);

}  // namespace heed::model
