// SPDX-License-Identifier: Apache-2.0
#include "cli/picture.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace heed::cli {
namespace {

void put_big_endian(std::string& to, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) to.push_back(static_cast<char>(value >> shift & 0xff));
}

std::array<std::uint32_t, 256> make_crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t n = 0; n < 256; ++n) {
    std::uint32_t c = n;
    for (int bit = 0; bit < 8; ++bit) c = (c & 1U) != 0 ? 0xedb88320U ^ c >> 1 : c >> 1;
    table[n] = c;
  }
  return table;
}

std::uint32_t crc32(std::string_view bytes) {
  static const std::array<std::uint32_t, 256> table = make_crc_table();
  std::uint32_t c = 0xffffffffU;
  for (const char byte : bytes) c = table[(c ^ static_cast<std::uint8_t>(byte)) & 0xffU] ^ c >> 8;
  return ~c;
}

std::uint32_t adler32(std::string_view bytes) {
  std::uint32_t a = 1, b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<std::uint8_t>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

void put_chunk(std::string& to, std::string_view type, std::string_view data) {
  put_big_endian(to, static_cast<std::uint32_t>(data.size()));
  const std::string content = std::string(type) + std::string(data);
  to += content;
  put_big_endian(to, crc32(content));
}

/// A zlib stream of stored blocks.
std::string stored(std::string_view bytes) {
  constexpr std::size_t kMost = 65535;
  std::string stream = "\x78\x01";
  for (std::size_t at = 0; at < bytes.size(); at += kMost) {
    const std::string_view block = bytes.substr(at, kMost);
    const auto size = static_cast<std::uint16_t>(block.size());
    stream.push_back(at + kMost >= bytes.size() ? '\1' : '\0');
    for (const std::uint16_t field : {size, static_cast<std::uint16_t>(~size)}) {
      stream.push_back(static_cast<char>(field & 0xff));
      stream.push_back(static_cast<char>(field >> 8));
    }
    stream += block;
  }
  put_big_endian(stream, adler32(bytes));
  return stream;
}

}  // namespace

Picture::Picture(std::int64_t width, std::int64_t height, Colour background)
    : width_(width), height_(height), pixels_(static_cast<std::size_t>(width * height), background) {}

std::string Picture::png() const {
  std::string rows;
  rows.reserve(static_cast<std::size_t>(height_ * (1 + 3 * width_)));
  for (std::int64_t y = 0; y < height_; ++y) {
    rows.push_back('\0');  // no filter
    for (std::int64_t x = 0; x < width_; ++x) {
      const Colour c = at(x, y);
      for (const std::uint8_t channel : {c.red, c.green, c.blue}) rows.push_back(static_cast<char>(channel));
    }
  }
  std::string header;
  put_big_endian(header, static_cast<std::uint32_t>(width_));
  put_big_endian(header, static_cast<std::uint32_t>(height_));
  header += std::string_view("\x08\x02\x00\x00\x00", 5);  // 8 bits, RGB, deflate, adaptive filters, not interlaced
  std::string file("\x89PNG\r\n\x1a\n", 8);
  put_chunk(file, "IHDR", header);
  put_chunk(file, "IDAT", stored(rows));
  put_chunk(file, "IEND", {});
  return file;
}

}  // namespace heed::cli
