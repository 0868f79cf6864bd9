// SPDX-License-Identifier: Apache-2.0
// Some positions see everything and are seen by everybody (Longformer, arXiv 2004.05150, section 3.1).
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::Row;
using mask::Tile;

class GlobalTokens final : public MaskNode {
 public:
  explicit GlobalTokens(std::vector<std::int64_t> positions) : MaskNode({}), positions_(std::move(positions)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const std::int64_t rows = mask::count_in(positions_, tile.first_position(), tile.last_position() + 1);
    const std::int64_t keys = mask::count_in(positions_, tile.key_begin, tile.key_end);
    if (rows == tile.index_end - tile.index_begin || keys == tile.key_end - tile.key_begin) return Coverage::kFull;
    return rows == 0 && keys == 0 ? Coverage::kNone : Coverage::kMixed;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    if (std::binary_search(positions_.begin(), positions_.end(), row.position)) return mask::low_bits(count);
    std::uint64_t result = 0;
    auto next = std::lower_bound(positions_.begin(), positions_.end(), key_begin);
    for (; next != positions_.end() && *next < key_begin + count; ++next) result |= std::uint64_t{1} << (*next - key_begin);
    return result;
  }

  void append_text(std::string& out) const override {
    out += "global_tokens";
    mask::append_numbers(out, positions_);
  }
  void append_description(std::string& out) const override {
    out.append("the query or the key is at position ").append(mask::listed(positions_, "or"));
  }
  bool equals(const MaskNode& other) const noexcept override { return positions_ == static_cast<const GlobalTokens&>(other).positions_; }

 private:
  std::vector<std::int64_t> positions_;  // rising, each once
};

}  // namespace

Mask Mask::global_tokens(std::span<const std::int64_t> positions) {
  return Mask(std::make_shared<GlobalTokens>(mask::sorted_numbers("Mask::global_tokens", "positions", positions)));
}

}  // namespace heed
