// SPDX-License-Identifier: Apache-2.0
#include "mask/bit_planes.hpp"

#include <algorithm>

namespace heed::mask {
namespace {

void pack_row(const unsigned char* element, std::int64_t stride, std::int64_t columns, std::uint64_t* words) noexcept {
  for (std::int64_t begin = 0; begin < columns; begin += 64) {
    const std::int64_t count = std::min<std::int64_t>(64, columns - begin);
    std::uint64_t word = 0;
    for (std::int64_t k = 0; k < count; ++k, element += stride) word |= std::uint64_t{*element != 0} << k;
    words[begin / 64] = word;
  }
}

/// What has been seen of a rectangle so far.
struct Seen {
  bool set = false, unset = false;

  [[nodiscard]] bool mixed() const noexcept { return set && unset; }
  void add(std::uint64_t word, std::uint64_t wanted) noexcept {
    set = set || (word & wanted) != 0;
    unset = unset || (word & wanted) != wanted;
  }
};

/// One row's words over columns [begin, end).
void look_at(const std::uint64_t* words, Span columns, Seen& seen) noexcept {
  const std::int64_t first = columns.begin / 64;
  const std::int64_t last = (columns.end - 1) / 64;
  for (std::int64_t word = first; word <= last && !seen.mixed(); ++word) {
    seen.add(words[word], bits_of_range(columns.begin, columns.end, word * 64, 64));
  }
}

}  // namespace

BitPlanes::BitPlanes(const TensorView& source)
    : planes_(source.size(0) * source.size(1)), rows_(source.size(2)), columns_(source.size(3)), words_per_row_((columns_ + 63) / 64) {
  words_.resize(static_cast<std::size_t>(element_count({source.size(0), source.size(1), rows_, words_per_row_})));
  if (words_.empty()) return;
  const auto* data = static_cast<const unsigned char*>(source.data());
  std::uint64_t* words = words_.data();
  for (std::int64_t plane = 0; plane < planes_; ++plane) {
    const std::int64_t batch = plane / source.size(1);
    const std::int64_t head = plane % source.size(1);
    for (std::int64_t row = 0; row < rows_; ++row, words += words_per_row_) {
      const unsigned char* first = data + batch * source.stride(0) + head * source.stride(1) + row * source.stride(2);
      pack_row(first, source.stride(3), columns_, words);
    }
  }
}

std::uint64_t BitPlanes::bits(std::int64_t plane, std::int64_t row, std::int64_t column, int count) const noexcept {
  if (!has(plane, row) || column < 0 || column >= columns_) return 0;
  const std::uint64_t* words = words_of(plane, row) + column / 64;
  const std::int64_t shift = column % 64;
  std::uint64_t result = words[0] >> shift;
  if (shift != 0 && column / 64 + 1 < words_per_row_) result |= words[1] << (64 - shift);
  return result & low_bits(count);
}

Coverage BitPlanes::cover(std::int64_t plane, Span rows, Span columns) const noexcept {
  const Span inside = {std::max<std::int64_t>(columns.begin, 0), std::min(columns.end, columns_)};
  Seen seen;
  for (std::int64_t row = rows.begin; row < rows.end && !seen.mixed(); ++row) {
    if (!has(plane, row) || inside.begin >= inside.end) {
      seen.unset = true;
      continue;
    }
    seen.unset = seen.unset || inside.begin != columns.begin || inside.end != columns.end;
    look_at(words_of(plane, row), inside, seen);
  }
  if (seen.mixed()) return Coverage::kMixed;
  return seen.set ? Coverage::kFull : Coverage::kNone;
}

}  // namespace heed::mask
