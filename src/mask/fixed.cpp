// SPDX-License-Identifier: Apache-2.0
// The fixed pattern of the Sparse Transformer (arXiv 1904.10509, section 4.3): a token sees its own block, and of every block a few
// positions at its end, which sum it up.
#include <memory>

#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::floor_divide;
using mask::floor_modulo;
using mask::forward;
using mask::Row;
using mask::Tile;

class Fixed final : public MaskNode {
 public:
  explicit Fixed(const FixedPattern& pattern) : MaskNode({.uses_head = pattern.rotation > 1}), pattern_(pattern) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const std::int64_t stride = pattern_.stride;
    const std::int64_t first = floor_divide(tile.first_position(), stride);
    const std::int64_t last = floor_divide(tile.last_position(), stride);
    // Keys of the query blocks, [own_begin, own_end); they matter for kFull only where there is one such block.
    const std::int64_t own_begin = mask::backward(tile.first_position(), floor_modulo(tile.first_position(), stride));
    const std::int64_t own_end = forward(mask::backward(tile.last_position(), floor_modulo(tile.last_position(), stride)), stride);
    if (tile.key_end <= own_begin || tile.key_begin >= own_end) return cover_verticals(tile.head, tile.key_begin, tile.key_end);
    if (first != last) return verticals_full(tile.head, tile.key_begin, tile.key_end) ? Coverage::kFull : Coverage::kMixed;
    // Keys outside of the one block must all be vertical.
    const bool left = tile.key_begin >= own_begin || verticals_full(tile.head, tile.key_begin, own_begin);
    const bool right = tile.key_end <= own_end || verticals_full(tile.head, own_end, tile.key_end);
    return left && right ? Coverage::kFull : Coverage::kMixed;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const std::int64_t stride = pattern_.stride;
    const std::int64_t own_begin = mask::backward(row.position, floor_modulo(row.position, stride));
    std::uint64_t result = mask::bits_of_range(own_begin, forward(own_begin, stride), key_begin, count);
    std::int64_t begin = vertical_begin(row.head) - floor_modulo(key_begin, stride);  // of a group, counted from key_begin
    for (; begin < count; begin = forward(begin, stride)) {
      result |= mask::bits_of_range(begin, forward(begin, pattern_.vertical), 0, count);
    }
    return result;
  }

  bool heads_alike(std::int64_t head1, std::int64_t head2) const noexcept override { return group_of(head1) == group_of(head2); }
  void append_text(std::string& out) const override {
    out.append("fixed ").append(std::to_string(pattern_.stride)).append(" ").append(std::to_string(pattern_.vertical));
    if (pattern_.rotation != 1) out.append(" ").append(std::to_string(pattern_.rotation));
  }
  void append_description(std::string& out) const override {
    const std::string stride = std::to_string(pattern_.stride);
    out.append("both lie in the same block of ").append(stride).append(" tokens or the key is among the last ");
    out.append(std::to_string(pattern_.vertical)).append(" of its block");
    if (pattern_.rotation == 1) return;
    out.append(", counted from ").append(std::to_string(pattern_.vertical)).append(" further ahead for each next of ");
    out.append(std::to_string(pattern_.rotation)).append(" heads");
  }
  bool equals(const MaskNode& other) const noexcept override {
    const FixedPattern& fixed = static_cast<const Fixed&>(other).pattern_;
    return pattern_.stride == fixed.stride && pattern_.vertical == fixed.vertical && pattern_.rotation == fixed.rotation;
  }

 private:
  std::int64_t group_of(std::int64_t head) const noexcept { return floor_modulo(head, pattern_.rotation); }
  /// In [0, stride).
  std::int64_t vertical_begin(std::int64_t head) const noexcept { return pattern_.stride - pattern_.vertical * (group_of(head) + 1); }

  /// Place of a key in the group of its block, or outside of [0, vertical).
  std::int64_t place(std::int64_t head, std::int64_t key) const noexcept {
    return floor_modulo(key, pattern_.stride) - vertical_begin(head);
  }
  /// Keys [begin, end), not empty, are all in one group, or groups leave no gap.
  bool verticals_full(std::int64_t head, std::int64_t begin, std::int64_t end) const noexcept {
    if (pattern_.vertical == pattern_.stride) return true;
    const std::int64_t first = place(head, begin);
    return first >= 0 && end - begin <= pattern_.vertical - first;
  }
  Coverage cover_verticals(std::int64_t head, std::int64_t begin, std::int64_t end) const noexcept {
    if (verticals_full(head, begin, end)) return Coverage::kFull;
    const std::int64_t first = place(head, begin);
    const bool any = (first >= 0 && first < pattern_.vertical) || floor_modulo(-first, pattern_.stride) < end - begin;
    return any ? Coverage::kMixed : Coverage::kNone;
  }

  FixedPattern pattern_;
};

}  // namespace

Mask Mask::fixed(const FixedPattern& pattern) {
  constexpr const char* kFunction = "Mask::fixed";
  mask::require_at_least(1, kFunction, "stride", pattern.stride);
  mask::require_at_least(1, kFunction, "vertical", pattern.vertical);
  mask::require_at_least(1, kFunction, "rotation", pattern.rotation);
  if (pattern.vertical > pattern.stride / pattern.rotation) {
    base::throw_invalid(kFunction, "vertical", "rotation * vertical of at most the stride, " + std::to_string(pattern.stride),
                        std::to_string(pattern.rotation) + " * " + std::to_string(pattern.vertical));
  }
  return Mask(std::make_shared<Fixed>(pattern));
}

}  // namespace heed
