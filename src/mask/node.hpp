// SPDX-License-Identifier: Apache-2.0
// What every mask answers: how much of a tile is visible, and which keys a row sees. A new kind of mask is one class that answers these
// two questions exactly; combinations, plans and kernels follow from them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <heed/mask.hpp>

namespace heed {
namespace mask {

/// How much of a tile is visible.
enum class Coverage : std::uint8_t { kNone, kMixed, kFull };

/// Queries [index_begin, index_end) and keys [key_begin, key_end) of one batch entry and query head; neither range is empty.
/// Query i sits at position i + query_offset, which may be negative and is less than 2^62 away from 0.
struct Tile {
  std::int64_t batch, head;
  std::int64_t index_begin, index_end;
  std::int64_t query_offset;
  std::int64_t key_begin, key_end;

  [[nodiscard]] std::int64_t first_position() const noexcept { return index_begin + query_offset; }
  [[nodiscard]] std::int64_t last_position() const noexcept { return index_end - 1 + query_offset; }
};

/// One query.
struct Row {
  std::int64_t batch, head;
  std::int64_t index, position;
};

/// What a mask needs to know of the call, for sharing plans and for checks.
struct Traits {
  bool uses_batch = false;  ///< batch entries may see different keys at the same position
  bool uses_head = false;   ///< query heads may see different keys at the same position
  std::int64_t batch = 0;   ///< the call's B must be this; 0: any
  std::int64_t heads = 0;   ///< the call's Hq must be this; 0: any
  int depth = 1;            ///< longest path to a leaf
};

/// Deepest nesting, so that walking a mask cannot overflow the stack. Chains of one operator are flat and do not count.
inline constexpr int kMaxDepth = 100;

/// How tightly a mask's text holds together, loosest first.
enum class Precedence : std::uint8_t { kOr, kAnd, kNot, kName };

using NodePointer = std::shared_ptr<const MaskNode>;

/// The lowest n bits, 0 <= n <= 64.
[[nodiscard]] constexpr std::uint64_t low_bits(std::int64_t n) noexcept {
  return n >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << n) - 1;
}

/// Bit k set for begin <= key_begin + k < end, k < count <= 64.
[[nodiscard]] constexpr std::uint64_t bits_of_range(std::int64_t begin, std::int64_t end, std::int64_t key_begin, int count) noexcept {
  const std::int64_t key_end = key_begin + count;
  const std::int64_t low = begin < key_begin ? key_begin : begin;
  const std::int64_t high = end > key_end ? key_end : end;
  if (low >= high) return 0;
  return low_bits(high - key_begin) & ~low_bits(low - key_begin);
}

/// Coverage of two regions together.
[[nodiscard]] constexpr Coverage united(Coverage a, Coverage b) noexcept { return a == b ? a : Coverage::kMixed; }

}  // namespace mask

/// Immutable; every answer is pure and thread-safe.
class MaskNode {
 public:
  virtual ~MaskNode();
  MaskNode(const MaskNode&) = delete;
  MaskNode& operator=(const MaskNode&) = delete;

  /// kNone and kFull are promises. kMixed is always allowed and costs time only: the tile is split or its bits are looked at.
  [[nodiscard]] virtual mask::Coverage classify(const mask::Tile& tile) const noexcept = 0;
  /// Bit k: the row may attend key key_begin + k, for k < count (1 to 64); the other bits are 0.
  [[nodiscard]] virtual std::uint64_t bits(const mask::Row& row, std::int64_t key_begin, int count) const noexcept = 0;
  /// Both heads see the same keys everywhere, so that they may share a plan. `false` is always allowed.
  [[nodiscard]] virtual bool heads_alike(std::int64_t head1, std::int64_t head2) const noexcept;

  virtual void append_text(std::string& out) const = 0;
  /// What must hold of "the query" and "the key", in English: goes on from "A query sees a key when".
  virtual void append_description(std::string& out) const = 0;
  [[nodiscard]] virtual mask::Precedence precedence() const noexcept { return mask::Precedence::kName; }
  /// Same structure and data; `other` has the same dynamic type.
  [[nodiscard]] virtual bool equals(const MaskNode& other) const noexcept = 0;

  [[nodiscard]] const mask::Traits& traits() const noexcept { return traits_; }

 protected:
  explicit MaskNode(const mask::Traits& traits) noexcept : traits_(traits) {}

 private:
  mask::Traits traits_;
};

namespace mask {

/// Same type, structure and data.
[[nodiscard]] bool same(const MaskNode& a, const MaskNode& b) noexcept;
[[nodiscard]] bool same(const std::vector<NodePointer>& a, const std::vector<NodePointer>& b) noexcept;

/// Traits of a node over these children. Throws InvalidArgument on behalf of `function` where they contradict each other or nest too deeply.
[[nodiscard]] Traits traits_over(const char* function, const std::vector<NodePointer>& children);

}  // namespace mask
}  // namespace heed
