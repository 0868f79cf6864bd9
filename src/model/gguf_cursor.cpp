// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_cursor.hpp"

#include <heed/error.hpp>

namespace heed::model {

void throw_format_error(std::string_view file, std::string_view field, std::string_view problem, std::int64_t offset) {
  std::string text(file);
  text.append(": ").append(field).append(": ").append(problem).append(" (byte ").append(std::to_string(offset)).append(")");
  throw FormatError(text);
}

std::string quoted(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string result = "\"";
  for (const char c : text.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      result += c;
    } else {
      result.append("\\x").append(1, kDigits[byte >> 4]).append(1, kDigits[byte & 15]);
    }
  }
  return result.append(text.size() > kLongest ? "...\"" : "\"");
}

std::string_view GgufCursor::read_string(std::string_view field) {
  const auto length = read<std::uint64_t>(field);
  if (length > static_cast<std::uint64_t>(left())) {
    fail(field, "string of " + std::to_string(length) + " bytes, but only " + std::to_string(left()) + " are left in the file", 8);
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<std::size_t>(length));
  position_ += static_cast<std::int64_t>(length);
  return text;
}

std::int64_t GgufCursor::read_count(std::string_view field, std::int64_t least_bytes) {
  const auto count = read<std::uint64_t>(field);
  const std::int64_t most = left() / least_bytes;
  if (count > static_cast<std::uint64_t>(most)) {
    fail(field, std::to_string(count) + " is more than the " + std::to_string(left()) + " bytes left in the file can hold", 8);
  }
  return static_cast<std::int64_t>(count);
}

void GgufCursor::fail(std::string_view field, std::string_view problem, std::int64_t back_bytes) const {
  throw_format_error(file_, context_ + ": " + std::string(field), problem, position_ - back_bytes);
}

void GgufCursor::need(std::string_view field, std::int64_t bytes) const {
  if (left() < bytes) {
    fail(field, "needs " + std::to_string(bytes) + " bytes, but only " + std::to_string(left()) + " are left in the file");
  }
}

}  // namespace heed::model
