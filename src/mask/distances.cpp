// SPDX-License-Identifier: Apache-2.0
// Masks that ask for the distance p - j only: strided, dilated, diagonals. A tile holds every distance between its two far corners, so
// that whether a range of distances is in the set decides it.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::Row;
using mask::Tile;

template <class Set>
class DistanceNode final : public MaskNode {
 public:
  explicit DistanceNode(Set set) : MaskNode({}), set_(std::move(set)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    return set_.cover(mask::difference(tile.first_position(), tile.key_end - 1), mask::difference(tile.last_position(), tile.key_begin));
  }
  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    return set_.bits(mask::difference(row.position, key_begin), count) & mask::low_bits(count);
  }
  void append_text(std::string& out) const override { set_.append_text(out); }
  void append_description(std::string& out) const override { out += set_.description(); }
  bool equals(const MaskNode& other) const noexcept override { return set_ == static_cast<const DistanceNode&>(other).set_; }

 private:
  Set set_;
};

struct Strided {
  std::int64_t stride;

  Coverage cover(std::int64_t least, std::int64_t most) const noexcept {
    if (!mask::holds_multiple(least, most, stride)) return Coverage::kNone;
    return stride == 1 || least == most ? Coverage::kFull : Coverage::kMixed;
  }
  /// Bit k: distance first - k.
  std::uint64_t bits(std::int64_t first, int) const noexcept { return mask::bits_of_steps(mask::floor_modulo(first, stride), stride); }
  void append_text(std::string& out) const { out.append("strided ").append(std::to_string(stride)); }
  std::string description() const { return "their distance is a multiple of " + std::to_string(stride); }
  bool operator==(const Strided&) const = default;
};

struct Dilated {
  std::int64_t side, dilation;

  Coverage cover(std::int64_t least, std::int64_t most) const noexcept {
    const std::int64_t first = std::max(least, -reach());
    const std::int64_t last = std::min(most, reach());
    if (first > last || !mask::holds_multiple(first, last, dilation)) return Coverage::kNone;
    const bool inside = first == least && last == most;
    return inside && (dilation == 1 || first == last) ? Coverage::kFull : Coverage::kMixed;
  }
  std::uint64_t bits(std::int64_t first, int count) const noexcept {
    const std::int64_t begin = mask::backward(first, reach());
    const std::int64_t end = mask::forward(mask::forward(first, reach()), 1);
    return Strided{dilation}.bits(first, count) & mask::bits_of_range(begin, end, 0, count);
  }
  void append_text(std::string& out) const {
    out.append("dilated ").append(std::to_string(side)).append(" ").append(std::to_string(dilation));
  }
  std::string description() const {
    return "the key is the query's own or one of " + std::to_string(side) + " to each side in steps of " + std::to_string(dilation);
  }
  bool operator==(const Dilated&) const = default;

 private:
  std::int64_t reach() const noexcept {
    std::int64_t product = 0;
    return __builtin_mul_overflow(side, dilation, &product) ? mask::kLast : product;
  }
};

struct Diagonals {
  std::vector<std::int64_t> distances;  // rising, each once

  Coverage cover(std::int64_t least, std::int64_t most) const noexcept {
    const auto begin = std::lower_bound(distances.begin(), distances.end(), least);
    const auto end = std::upper_bound(begin, distances.end(), most);
    if (begin == end) return Coverage::kNone;
    // Of different whole numbers as many as there are between the two ends: all of them.
    const auto between = static_cast<std::uint64_t>(most) - static_cast<std::uint64_t>(least);
    return static_cast<std::uint64_t>(end - begin) - 1 == between ? Coverage::kFull : Coverage::kMixed;
  }
  std::uint64_t bits(std::int64_t first, int count) const noexcept {
    std::uint64_t result = 0;
    auto next = std::upper_bound(distances.begin(), distances.end(), first);
    for (; next != distances.begin() && first - *(next - 1) < count; --next) result |= std::uint64_t{1} << (first - *(next - 1));
    return result;
  }
  void append_text(std::string& out) const {
    out += "diagonals";
    mask::append_numbers(out, distances);
  }
  std::string description() const { return "the key lies " + mask::listed(distances, "or") + " before the query"; }
  bool operator==(const Diagonals&) const = default;
};

}  // namespace

Mask Mask::strided(std::int64_t stride) {
  mask::require_at_least(1, "Mask::strided", "stride", stride);
  return Mask(std::make_shared<DistanceNode<Strided>>(Strided{stride}));
}

Mask Mask::dilated(std::int64_t side, std::int64_t dilation) {
  mask::require_at_least(0, "Mask::dilated", "side", side);
  mask::require_at_least(1, "Mask::dilated", "dilation", dilation);
  return Mask(std::make_shared<DistanceNode<Dilated>>(Dilated{side, dilation}));
}

Mask Mask::diagonals(std::span<const std::int64_t> distances) {
  return Mask(std::make_shared<DistanceNode<Diagonals>>(Diagonals{mask::sorted_numbers("Mask::diagonals", "distances", distances)}));
}

}  // namespace heed
