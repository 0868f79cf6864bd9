// SPDX-License-Identifier: Apache-2.0
// Boolean matrices, one bit an element, that answer for whole rectangles a word at a time.
#pragma once

#include <cstdint>
#include <vector>

#include <heed/tensor.hpp>

#include "mask/node.hpp"

namespace heed::mask {

/// Half-open.
struct Span {
  std::int64_t begin, end;
};

/// [planes, rows, columns]; everything outside is false.
class BitPlanes {
 public:
  /// `source` is a boolean [batch, heads, rows, columns] view of any strides; plane = batch entry * heads + head.
  explicit BitPlanes(const TensorView& source);

  [[nodiscard]] std::int64_t planes() const noexcept { return planes_; }
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  [[nodiscard]] std::int64_t columns() const noexcept { return columns_; }

  /// Bit k: element (plane, row, column + k), k < count <= 64.
  [[nodiscard]] std::uint64_t bits(std::int64_t plane, std::int64_t row, std::int64_t column, int count) const noexcept;
  /// How much of a rectangle is true; a non-empty rectangle may reach outside. Stops at the first word that shows a mixture.
  [[nodiscard]] Coverage cover(std::int64_t plane, Span rows, Span columns) const noexcept;

  bool operator==(const BitPlanes&) const = default;

 private:
  [[nodiscard]] bool has(std::int64_t plane, std::int64_t row) const noexcept {
    return plane >= 0 && plane < planes_ && row >= 0 && row < rows_;
  }
  [[nodiscard]] const std::uint64_t* words_of(std::int64_t plane, std::int64_t row) const noexcept {
    return words_.data() + (plane * rows_ + row) * words_per_row_;
  }

  std::int64_t planes_, rows_, columns_;
  std::int64_t words_per_row_;
  std::vector<std::uint64_t> words_;  // [planes][rows][words_per_row], bits past the last column are 0
};

}  // namespace heed::mask
