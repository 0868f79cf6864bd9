// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_utf8.hpp"

namespace heed::model {

namespace {

/// Bytes that a lead byte announces and the range of the second byte (Unicode 15, table 3-7); the others lie in 0x80-0xBF.
struct Lead {
  std::size_t length;  ///< 0: not a lead byte
  unsigned low, high;
};

Lead lead_of(unsigned byte) noexcept {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step utf8_step(std::string_view text, std::size_t position) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned>(static_cast<unsigned char>(text[i])); };
  const Lead lead = lead_of(byte(position));
  if (lead.length == 0) return {1, Utf8Kind::kInvalid};
  for (std::size_t i = 1; i < lead.length; ++i) {
    if (position + i == text.size()) return {i, Utf8Kind::kUnfinished};
    const unsigned next = byte(position + i);
    const unsigned low = i == 1 ? lead.low : 0x80;
    const unsigned high = i == 1 ? lead.high : 0xBF;
    if (next < low || next > high) return {i, Utf8Kind::kInvalid};
  }
  return {lead.length, Utf8Kind::kCharacter};
}

std::uint32_t utf8_value(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  if (text.size() == 1) return byte(0);
  std::uint32_t value = byte(0) & (0x7Fu >> text.size());
  for (std::size_t i = 1; i < text.size(); ++i) value = (value << 6) | (byte(i) & 0x3F);
  return value;
}

void append_utf8(std::string& to, std::uint32_t code_point) {
  const auto put = [&](std::uint32_t byte) { to.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
  const auto tail = [&](int shift) { put(0x80 | ((code_point >> shift) & 0x3F)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | (code_point >> 6));
    tail(0);
  } else if (code_point < 0x10000) {
    put(0xE0 | (code_point >> 12));
    tail(6);
    tail(0);
  } else {
    put(0xF0 | (code_point >> 18));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace heed::model
