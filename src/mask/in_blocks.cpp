// SPDX-License-Identifier: Apache-2.0
// Any mask at the scale of blocks. A tile's blocks are a tile of the inner mask, whose answer is exact for both.
#include <memory>
#include <utility>

#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::floor_divide;
using mask::NodePointer;
using mask::Row;
using mask::Tile;

class InBlocks final : public MaskNode {
 public:
  InBlocks(const mask::Traits& traits, std::int64_t block, NodePointer inner) : MaskNode(traits), block_(block), inner_(std::move(inner)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    return inner_->classify({.batch = tile.batch,
                             .head = tile.head,
                             .index_begin = floor_divide(tile.first_position(), block_),
                             .index_end = floor_divide(tile.last_position(), block_) + 1,
                             .query_offset = 0,
                             .key_begin = floor_divide(tile.key_begin, block_),
                             .key_end = floor_divide(tile.key_end - 1, block_) + 1});
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const std::int64_t row_block = floor_divide(row.position, block_);
    const std::int64_t first = floor_divide(key_begin, block_);
    // At most 64 blocks meet at most 64 keys.
    const auto blocks = static_cast<int>(floor_divide(key_begin + count - 1, block_) - first + 1);
    const std::uint64_t live = inner_->bits({row.batch, row.head, row_block, row_block}, first, blocks);
    std::uint64_t result = 0;
    std::int64_t begin = -mask::floor_modulo(key_begin, block_);  // of a block, counted from key_begin
    for (int i = 0; i < blocks; ++i, begin += block_) {
      if ((live >> i & 1U) != 0) result |= mask::bits_of_range(begin, mask::forward(begin, block_), 0, count);
    }
    return result;
  }

  bool heads_alike(std::int64_t head1, std::int64_t head2) const noexcept override { return inner_->heads_alike(head1, head2); }
  void append_text(std::string& out) const override {
    out.append("in_blocks ").append(std::to_string(block_)).append(" (");
    inner_->append_text(out);
    out += ')';
  }
  void append_description(std::string& out) const override {
    out.append("counted in blocks of ").append(std::to_string(block_)).append(" tokens (");
    inner_->append_description(out);
    out += ')';
  }
  bool equals(const MaskNode& other) const noexcept override {
    const auto& blocks = static_cast<const InBlocks&>(other);
    return block_ == blocks.block_ && mask::same(*inner_, *blocks.inner_);
  }

 private:
  std::int64_t block_;
  NodePointer inner_;
};

}  // namespace

Mask Mask::in_blocks(std::int64_t block, const Mask& mask) {
  mask::require_at_least(1, "Mask::in_blocks", "block", block);
  const mask::Traits traits = mask::traits_over("Mask::in_blocks", {mask.node_});
  return Mask(std::make_shared<InBlocks>(traits, block, mask.node_));
}

}  // namespace heed
