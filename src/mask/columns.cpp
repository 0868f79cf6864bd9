// SPDX-License-Identifier: Apache-2.0
// Some keys, for everybody: the vertical lines of MInference (arXiv 2407.02490).
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

class Columns final : public MaskNode {
 public:
  explicit Columns(std::vector<std::int64_t> positions) : MaskNode({}), positions_(std::move(positions)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const std::int64_t keys = mask::count_in(positions_, tile.key_begin, tile.key_end);
    if (keys == 0) return Coverage::kNone;
    return keys == tile.key_end - tile.key_begin ? Coverage::kFull : Coverage::kMixed;
  }
  std::uint64_t bits(const Row&, std::int64_t key_begin, int count) const noexcept override {
    std::uint64_t result = 0;
    auto next = std::lower_bound(positions_.begin(), positions_.end(), key_begin);
    for (; next != positions_.end() && *next - key_begin < count; ++next) result |= std::uint64_t{1} << (*next - key_begin);
    return result;
  }
  void append_text(std::string& out) const override {
    out += "columns";
    mask::append_numbers(out, positions_);
  }
  void append_description(std::string& out) const override { out.append("the key is at position ").append(mask::listed(positions_, "or")); }
  bool equals(const MaskNode& other) const noexcept override { return positions_ == static_cast<const Columns&>(other).positions_; }

 private:
  std::vector<std::int64_t> positions_;  // rising, each once
};

}  // namespace

Mask Mask::columns(std::span<const std::int64_t> positions) {
  return Mask(std::make_shared<Columns>(mask::sorted_numbers("Mask::columns", "positions", positions)));
}

}  // namespace heed
