// SPDX-License-Identifier: Apache-2.0
// A raster of colours, and its bytes as a PNG file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heed::cli {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
  friend bool operator==(const Colour&, const Colour&) = default;
};

class Picture {
 public:
  Picture(std::int64_t width, std::int64_t height, Colour background);

  [[nodiscard]] std::int64_t width() const noexcept { return width_; }
  [[nodiscard]] std::int64_t height() const noexcept { return height_; }
  /// x to the right, y down.
  void set(std::int64_t x, std::int64_t y, Colour colour) { pixels_[static_cast<std::size_t>(y * width_ + x)] = colour; }
  [[nodiscard]] Colour at(std::int64_t x, std::int64_t y) const { return pixels_[static_cast<std::size_t>(y * width_ + x)]; }

  /// 8 bits a channel, in stored (uncompressed) deflate blocks: no library to link for pictures of a few megabytes.
  /// Source: PNG, third edition (W3C), sections 5 and 11; RFC 1950 and 1951.
  [[nodiscard]] std::string png() const;

 private:
  std::int64_t width_, height_;
  std::vector<Colour> pixels_;
};

}  // namespace heed::cli
