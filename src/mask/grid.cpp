// SPDX-License-Identifier: Apache-2.0
// Tokens of a row-major grid of up to six axes: axial, neighborhood, shifted_window. Each asks one question of the two coordinates along
// every axis, and shows a pair where at most `slack` axes say no. A tile's tokens are a few boxes, and of two boxes each axis can be
// answered by its ends, so tiles are decided exactly.
#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::Row;
using mask::Tile;

/// Coordinates [first, last] along one axis.
struct Range {
  std::int64_t first, last;
};

/// Keys begin, begin + step, ... < end.
struct Keys {
  std::int64_t begin, end, step;

  [[nodiscard]] bool holds(std::int64_t y) const noexcept { return y >= begin && y < end && (y - begin) % step == 0; }
  /// Bit k: y + k is one of them.
  [[nodiscard]] std::uint64_t bits(std::int64_t y, int count) const noexcept {
    const std::uint64_t range = mask::bits_of_range(begin, end, y, count);
    return step == 1 ? range : range & mask::bits_of_steps(mask::floor_modulo(begin - y, step), step);
  }
};

/// Coordinates of the same segment: segments of `window`, the first of them cut off after `shift`.
struct Segments {
  std::int64_t window, shift;

  Keys keys(std::int64_t x) const noexcept {
    const std::int64_t n = number(x);
    if (n == 0) return {0, shift, 1};
    const std::int64_t begin = shift + (n - 1) * window;
    return {begin, mask::forward(begin, window), 1};
  }
  Coverage cover(Range x, Range y) const noexcept {
    const Range a = {number(x.first), number(x.last)};
    const Range b = {number(y.first), number(y.last)};
    if (a.last < b.first || b.last < a.first) return Coverage::kNone;
    return a.first == a.last && b.first == b.last ? Coverage::kFull : Coverage::kMixed;
  }
  bool operator==(const Segments&) const = default;

 private:
  std::int64_t number(std::int64_t x) const noexcept { return x < shift ? 0 : 1 + (x - shift) / window; }
};

/// The `window` coordinates of the same remainder around x, pushed inside of [0, size). window * dilation <= size.
struct Neighbors {
  std::int64_t size, window, dilation;

  Keys keys(std::int64_t x) const noexcept {
    const std::int64_t remainder = x % dilation;
    const std::int64_t length = (size - 1 - remainder) / dilation + 1;
    const std::int64_t start = std::clamp<std::int64_t>(x / dilation - window / 2, 0, length - window);
    return {start * dilation + remainder, (start + window - 1) * dilation + remainder + 1, dilation};
  }
  Coverage cover(Range x, Range y) const noexcept {
    if (dilation == 1) return cover_dense(x, y);
    if (x.first == x.last && y.first == y.last) return keys(x.first).holds(y.first) ? Coverage::kFull : Coverage::kNone;
    // Neighbours have different remainders, so that no two of them see the same keys.
    return any_dilated(x, y) ? Coverage::kMixed : Coverage::kNone;
  }
  bool operator==(const Neighbors&) const = default;

 private:
  /// Windows move by at most one from coordinate to coordinate, so that together they are an interval.
  Coverage cover_dense(Range x, Range y) const noexcept {
    const Keys first = keys(x.first);
    const Keys last = keys(x.last);
    if (y.last < first.begin || y.first >= last.end) return Coverage::kNone;
    return last.begin <= y.first && y.last < first.end ? Coverage::kFull : Coverage::kMixed;
  }
  bool any_dilated(Range x, Range y) const noexcept {
    constexpr std::int64_t kMostRemainders = 64;  // beyond it "perhaps" will do
    const std::int64_t remainders = std::min({dilation, x.last - x.first + 1, y.last - y.first + 1});
    if (remainders > kMostRemainders) return true;
    // Each remainder that both have occurs in the first `dilation` coordinates of the shorter range.
    const Range& shorter = x.last - x.first < y.last - y.first ? x : y;
    for (std::int64_t at = shorter.first; at < shorter.first + remainders; ++at) {
      if (any_of_remainder(at % dilation, x, y)) return true;
    }
    return false;
  }
  bool any_of_remainder(std::int64_t remainder, Range x, Range y) const noexcept {
    const Range a = of_remainder(remainder, x);
    const Range b = of_remainder(remainder, y);
    if (a.first > a.last || b.first > b.last) return false;
    return b.last >= keys(a.first).begin && b.first < keys(a.last).end;
  }
  /// The part of a range with this remainder, by its ends; empty where there is none.
  Range of_remainder(std::int64_t remainder, Range range) const noexcept {
    const std::int64_t ahead = mask::floor_modulo(remainder - range.first, dilation);
    const std::int64_t behind = mask::floor_modulo(range.last - remainder, dilation);
    if (ahead > range.last - range.first) return {1, 0};
    return {range.first + ahead, range.last - behind};
  }
};

struct Box {
  std::array<Range, kMaxRank> axes;
};

/// A run of a row-major grid cut into boxes: at most 2 * rank - 1.
class Boxes {
 public:
  Boxes(const Shape& grid, std::int64_t first, std::int64_t last) : grid_(grid) {
    const Extents low = coordinates(first);
    const Extents high = coordinates(last);
    int split = 0;  // the first axis along which the ends differ
    while (split < grid.rank() - 1 && low[split] == high[split]) ++split;
    const int innermost = grid.rank() - 1;
    if (split == innermost) {
      add(low, split, {low[split], high[split]});
      return;
    }
    for (int axis = innermost; axis > split; --axis) add(low, axis, {low[axis] + (axis == innermost ? 0 : 1), grid[axis] - 1});
    add(low, split, {low[split] + 1, high[split] - 1});
    for (int axis = split + 1; axis <= innermost; ++axis) add(high, axis, {0, high[axis] - (axis == innermost ? 0 : 1)});
  }
  [[nodiscard]] const Box* begin() const noexcept { return boxes_.data(); }
  [[nodiscard]] const Box* end() const noexcept { return boxes_.data() + count_; }

 private:
  [[nodiscard]] Extents coordinates(std::int64_t token) const noexcept {
    Extents result = grid_;
    for (int axis = grid_.rank() - 1; axis >= 0; --axis) {
      result[axis] = token % grid_[axis];
      token /= grid_[axis];
    }
    return result;
  }
  /// Fixed before `axis`, `range` along it, everything behind it.
  void add(const Extents& fixed, int axis, Range range) noexcept {
    if (range.first > range.last) return;
    Box& box = boxes_[count_++];
    for (int a = 0; a < grid_.rank(); ++a) {
      const auto n = static_cast<std::size_t>(a);
      box.axes[n] = a < axis ? Range{fixed[a], fixed[a]} : a == axis ? range : Range{0, grid_[a] - 1};
    }
  }

  const Shape& grid_;
  std::array<Box, 2 * kMaxRank> boxes_{};
  std::size_t count_ = 0;
};

/// How a mask is written.
struct Words {
  const char* name;
  std::string text, description;
};

template <class Axis>
class Grid final : public MaskNode {
 public:
  Grid(const Shape& grid, const std::array<Axis, kMaxRank>& axes, int slack, Words words)
      : MaskNode({}), grid_(grid), size_(element_count(grid)), axes_(axes), slack_(slack), words_(std::move(words)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const Range rows = {std::max<std::int64_t>(tile.first_position(), 0), std::min(tile.last_position(), size_ - 1)};
    const Range keys = {std::max<std::int64_t>(tile.key_begin, 0), std::min(tile.key_end, size_) - 1};
    if (rows.first > rows.last || keys.first > keys.last) return Coverage::kNone;
    const bool inside =
        rows.last - rows.first + 1 == tile.index_end - tile.index_begin && keys.last - keys.first + 1 == tile.key_end - tile.key_begin;
    const Coverage coverage = cover(Boxes(grid_, rows.first, rows.last), Boxes(grid_, keys.first, keys.last));
    return coverage == Coverage::kFull && !inside ? Coverage::kMixed : coverage;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    if (row.position < 0 || row.position >= size_ || key_begin < 0 || key_begin >= size_) return 0;
    const int inside = static_cast<int>(std::min<std::int64_t>(count, size_ - key_begin));
    const int innermost = grid_.rank() - 1;
    std::array<Keys, kMaxRank> seen{};  // along each axis
    Extents key = grid_;
    std::int64_t rest = row.position;
    for (int axis = innermost; axis >= 0; --axis) {
      seen[static_cast<std::size_t>(axis)] = axes_[static_cast<std::size_t>(axis)].keys(rest % grid_[axis]);
      key[axis] = key_begin % grid_[axis];
      rest /= grid_[axis];
      key_begin /= grid_[axis];
    }
    std::uint64_t result = 0;
    for (int done = 0; done < inside;) {  // one stretch along the innermost axis after the other
      const int length = static_cast<int>(std::min<std::int64_t>(inside - done, grid_[innermost] - key[innermost]));
      result |= stretch(seen, key, length) << done;
      done += length;
      key[innermost] = 0;
      for (int axis = innermost - 1; axis >= 0 && ++key[axis] == grid_[axis]; --axis) key[axis] = 0;
    }
    return result;
  }

  void append_text(std::string& out) const override { out.append(words_.name).append(" ").append(words_.text); }
  void append_description(std::string& out) const override { out += words_.description; }
  bool equals(const MaskNode& other) const noexcept override {
    const auto& grid = static_cast<const Grid&>(other);
    return grid_ == grid.grid_ && axes_ == grid.axes_ && slack_ == grid.slack_;
  }

 private:
  Coverage cover(const Boxes& rows, const Boxes& keys) const noexcept {
    bool any = false, missing = false;
    for (const Box& row : rows) {
      for (const Box& key : keys) {
        const Coverage one = cover(row, key);
        any = any || one != Coverage::kNone;
        missing = missing || one != Coverage::kFull;
        if (any && missing) return Coverage::kMixed;
      }
    }
    return any ? Coverage::kFull : Coverage::kNone;
  }
  /// Axes are free of each other inside boxes: some pair has as few noes as there are axes that only say no, and some pair as many as there
  /// are axes that ever say it.
  Coverage cover(const Box& rows, const Box& keys) const noexcept {
    int always = 0, ever = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(grid_.rank()); ++axis) {
      const Coverage one = axes_[axis].cover(rows.axes[axis], keys.axes[axis]);
      always += one == Coverage::kNone ? 1 : 0;
      ever += one == Coverage::kFull ? 0 : 1;
    }
    if (always > slack_) return Coverage::kNone;
    return ever <= slack_ ? Coverage::kFull : Coverage::kMixed;
  }
  std::uint64_t stretch(const std::array<Keys, kMaxRank>& seen, const Extents& key, int length) const noexcept {
    const int innermost = grid_.rank() - 1;
    int noes = 0;
    for (int axis = 0; axis < innermost; ++axis) noes += seen[static_cast<std::size_t>(axis)].holds(key[axis]) ? 0 : 1;
    if (noes > slack_) return 0;
    return noes < slack_ ? mask::low_bits(length) : seen[static_cast<std::size_t>(innermost)].bits(key[innermost], length);
  }

  Shape grid_;
  std::int64_t size_;
  std::array<Axis, kMaxRank> axes_;
  int slack_;  // axes that may say no
  Words words_;
};

/// "8x8"
std::string text_of(const Shape& sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text.append(text.empty() ? "" : "x").append(std::to_string(size));
  return text;
}

void require_grid(const char* function, const Shape& grid) {
  if (grid.rank() == 0) base::throw_invalid(function, "grid", "1 to " + std::to_string(kMaxRank) + " axes", "none");
  static_cast<void>(element_count(grid));  // its own error where it does not fit
  for (const std::int64_t size : grid) mask::require_at_least(1, function, "grid", size);
}

/// One number for each axis of the grid.
void require_axes(const char* function, const char* argument, const Shape& values, const Shape& grid) {
  if (values.rank() == grid.rank()) return;
  base::throw_invalid(function, argument, "a number for each axis of the grid " + heed::to_string(grid), heed::to_string(values));
}

void require_between(const char* function, const char* argument, std::int64_t value, std::int64_t least, std::int64_t most) {
  if (value >= least && value <= most) return;
  base::throw_invalid(function, argument, std::to_string(least) + " to " + std::to_string(most), std::to_string(value));
}

Shape filled(int rank, std::int64_t value) {
  Shape result = Shape(std::span<const std::int64_t>(std::array<std::int64_t, kMaxRank>{}.data(), static_cast<std::size_t>(rank)));
  for (int axis = 0; axis < rank; ++axis) result[axis] = value;
  return result;
}

}  // namespace

Mask Mask::axial(const Shape& grid) {
  require_grid("Mask::axial", grid);
  std::array<Segments, kMaxRank> axes{};
  axes.fill({1, 0});
  const std::string text = text_of(grid);
  return Mask(std::make_shared<Grid<Segments>>(
      grid, axes, 1, Words{"axial", text, "both lie on the " + text + " grid and their coordinates differ along at most one axis"}));
}

Mask Mask::neighborhood(const NeighborhoodPattern& pattern) {
  constexpr const char* kFunction = "Mask::neighborhood";
  require_grid(kFunction, pattern.grid);
  const Shape dilation = pattern.dilation.rank() == 0 ? filled(pattern.grid.rank(), 1) : pattern.dilation;
  require_axes(kFunction, "window", pattern.window, pattern.grid);
  require_axes(kFunction, "dilation", dilation, pattern.grid);
  std::array<Neighbors, kMaxRank> axes{};
  for (int axis = 0; axis < pattern.grid.rank(); ++axis) {
    require_between(kFunction, "window", pattern.window[axis], 1, pattern.grid[axis]);
    require_between(kFunction, "dilation", dilation[axis], 1, pattern.grid[axis] / pattern.window[axis]);
    axes[static_cast<std::size_t>(axis)] = {pattern.grid[axis], pattern.window[axis], dilation[axis]};
  }
  Words words = {"neighborhood", text_of(pattern.grid) + " " + text_of(pattern.window), {}};
  words.description = "both lie on the " + text_of(pattern.grid) + " grid and the key in the " + text_of(pattern.window) +
                      " window around the query, which is pushed inside at the borders";
  if (dilation != filled(dilation.rank(), 1)) {
    words.text += " " + text_of(dilation);
    words.description += ", in steps of " + text_of(dilation);
  }
  return Mask(std::make_shared<Grid<Neighbors>>(pattern.grid, axes, 0, std::move(words)));
}

Mask Mask::shifted_window(const ShiftedWindowPattern& pattern) {
  constexpr const char* kFunction = "Mask::shifted_window";
  require_grid(kFunction, pattern.grid);
  const Shape shift = pattern.shift.rank() == 0 ? filled(pattern.grid.rank(), 0) : pattern.shift;
  require_axes(kFunction, "window", pattern.window, pattern.grid);
  require_axes(kFunction, "shift", shift, pattern.grid);
  std::array<Segments, kMaxRank> axes{};
  for (int axis = 0; axis < pattern.grid.rank(); ++axis) {
    mask::require_at_least(1, kFunction, "window", pattern.window[axis]);
    require_between(kFunction, "shift", shift[axis], 0, pattern.window[axis] - 1);
    axes[static_cast<std::size_t>(axis)] = {pattern.window[axis], shift[axis]};
  }
  Words words = {"shifted_window", text_of(pattern.grid) + " " + text_of(pattern.window), {}};
  words.description = "both lie in the same " + text_of(pattern.window) + " window of the " + text_of(pattern.grid) + " grid";
  if (shift != filled(shift.rank(), 0)) {
    words.text += " " + text_of(shift);
    words.description += ", where windows start at " + text_of(shift);
  }
  return Mask(std::make_shared<Grid<Segments>>(pattern.grid, axes, 0, std::move(words)));
}

}  // namespace heed
