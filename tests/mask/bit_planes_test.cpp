// SPDX-License-Identifier: Apache-2.0
// Bit matrices against single elements: every column and count, every rectangle, inside and outside.
#include <gtest/gtest.h>

#include <vector>

#include "mask/bit_planes.hpp"

namespace heed::test {
namespace {

using mask::BitPlanes;
using mask::Coverage;

constexpr std::int64_t kPlanes = 2, kRows = 3, kColumns = 131;

/// True from a column on that differs by row, in both directions, so that rectangles of all three kinds exist.
bool element_at(std::int64_t plane, std::int64_t row, std::int64_t column) {
  if (plane < 0 || plane >= kPlanes || row < 0 || row >= kRows || column < 0 || column >= kColumns) return false;
  return plane == 0 ? column >= 60 + row : column < 67 - row || column == 130;
}

BitPlanes make_planes() {
  std::vector<unsigned char> bytes;
  for (std::int64_t plane = 0; plane < kPlanes; ++plane) {
    for (std::int64_t row = 0; row < kRows; ++row) {
      for (std::int64_t column = 0; column < kColumns; ++column) {
        // Any byte but 0 is true.
        bytes.push_back(element_at(plane, row, column) ? static_cast<unsigned char>(1 + column) : static_cast<unsigned char>(0));
      }
    }
  }
  return BitPlanes(TensorView(bytes.data(), DType::kBool, Shape{1, kPlanes, kRows, kColumns}));
}

TEST(BitPlanes, BitsOfEveryColumnAndCount) {
  const BitPlanes planes = make_planes();
  for (std::int64_t plane = -1; plane <= kPlanes; ++plane) {
    for (std::int64_t row = -1; row <= kRows; ++row) {
      for (std::int64_t column = 0; column < kColumns + 3; ++column) {
        for (int count = 1; count <= 64; ++count) {
          std::uint64_t expected = 0;
          for (int k = 0; k < count; ++k) expected |= std::uint64_t{element_at(plane, row, column + k)} << k;
          ASSERT_EQ(planes.bits(plane, row, column, count), expected) << plane << " " << row << " " << column << " " << count;
        }
      }
    }
  }
}

Coverage cover_one_by_one(std::int64_t plane, mask::Span rows, mask::Span columns) {
  std::int64_t set = 0;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    for (std::int64_t column = columns.begin; column < columns.end; ++column) set += element_at(plane, row, column) ? 1 : 0;
  }
  if (set == 0) return Coverage::kNone;
  return set == (rows.end - rows.begin) * (columns.end - columns.begin) ? Coverage::kFull : Coverage::kMixed;
}

TEST(BitPlanes, CoverOfEveryRectangle) {
  const BitPlanes planes = make_planes();
  for (std::int64_t plane = -1; plane <= kPlanes; ++plane) {
    for (std::int64_t top = -1; top <= kRows; ++top) {
      for (std::int64_t bottom = top + 1; bottom <= kRows + 1; ++bottom) {
        for (std::int64_t left = 0; left < kColumns + 2; left += left < 56 || left > 70 ? 5 : 1) {
          for (std::int64_t right = left + 1; right <= kColumns + 2; right += right < 56 || right > 70 ? 3 : 1) {
            ASSERT_EQ(planes.cover(plane, {top, bottom}, {left, right}), cover_one_by_one(plane, {top, bottom}, {left, right}))
                << plane << " [" << top << ", " << bottom << ") [" << left << ", " << right << ")";
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace heed::test
