// SPDX-License-Identifier: Apache-2.0
// A matrix that says which (query block, key block) pairs are visible, the same or another one for every head.
#include <memory>
#include <utility>

#include "base/message.hpp"
#include "mask/bit_planes.hpp"

namespace heed {
namespace {

using mask::BitPlanes;
using mask::Coverage;
using mask::Row;
using mask::Tile;

/// Rounds down, also below 0: such positions lie outside of every layout.
std::int64_t block_of(std::int64_t position, std::int64_t block) noexcept { return position >= 0 ? position / block : -1; }

class BlockSparse final : public MaskNode {
 public:
  BlockSparse(const mask::Traits& traits, BitPlanes layout, std::int64_t block)
      : MaskNode(traits), layout_(std::move(layout)), block_(block) {}

  Coverage classify(const Tile& tile) const noexcept override {
    return layout_.cover(plane(tile.head), {block_of(tile.first_position(), block_), block_of(tile.last_position(), block_) + 1},
                         {tile.key_begin / block_, (tile.key_end - 1) / block_ + 1});
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const std::int64_t first = key_begin / block_;
    const std::int64_t last = (key_begin + count - 1) / block_;
    // At most 64 blocks meet at most 64 keys.
    const std::uint64_t live = layout_.bits(plane(row.head), block_of(row.position, block_), first, static_cast<int>(last - first + 1));
    if (block_ == 1) return live;
    std::uint64_t result = 0;
    for (std::int64_t i = 0; i <= last - first; ++i) {
      if ((live >> i & 1U) == 0) continue;
      const std::int64_t begin = (first + i) * block_;
      const std::int64_t end = begin > key_begin + count - block_ ? key_begin + count : begin + block_;
      result |= mask::bits_of_range(begin, end, key_begin, count);
    }
    return result;
  }

  void append_text(std::string& out) const override {
    out.append("<block_sparse ").append(heed::to_string(Shape{layout_.planes(), layout_.rows(), layout_.columns()}));
    out.append(" block ").append(std::to_string(block_)).append(">");
  }
  void append_description(std::string& out) const override {
    out.append("a table of ").append(std::to_string(layout_.rows())).append(" by ").append(std::to_string(layout_.columns()));
    out.append(layout_.planes() > 1 ? " blocks for each head" : " blocks").append(" of ").append(std::to_string(block_));
    out.append(" tokens shows the block of the two");
  }
  bool equals(const MaskNode& other) const noexcept override {
    const auto& sparse = static_cast<const BlockSparse&>(other);
    return block_ == sparse.block_ && traits().heads == sparse.traits().heads && layout_ == sparse.layout_;
  }

 private:
  std::int64_t plane(std::int64_t head) const noexcept { return layout_.planes() == 1 ? 0 : head; }

  BitPlanes layout_;  // [1 or Hq][query blocks][key blocks]
  std::int64_t block_;
};

}  // namespace

Mask Mask::block_sparse(const TensorView& layout, std::int64_t block) {
  constexpr const char* kFunction = "Mask::block_sparse";
  if (layout.dtype() != DType::kBool) base::throw_invalid(kFunction, "layout", "bool", heed::to_string(layout.dtype()));
  if (layout.rank() != 2 && layout.rank() != 3) {
    base::throw_invalid(kFunction, "layout", "[rows, columns] or [Hq, rows, columns]", heed::to_string(layout.shape()));
  }
  if (block < 1) base::throw_invalid(kFunction, "block", "at least 1", std::to_string(block));
  base::require_memory(kFunction, "layout", layout);
  const int axes = layout.rank();
  const std::int64_t heads = axes == 3 ? layout.size(0) : 1;
  const TensorView planes(layout.data(), DType::kBool, Shape{1, heads, layout.size(axes - 2), layout.size(axes - 1)},
                          Strides{0, axes == 3 ? layout.stride(0) : 0, layout.stride(axes - 2), layout.stride(axes - 1)});
  const mask::Traits traits = {.uses_head = heads > 1, .heads = heads > 1 ? heads : 0};
  return Mask(std::make_shared<BlockSparse>(traits, BitPlanes(planes), block));
}

}  // namespace heed
