// SPDX-License-Identifier: Apache-2.0
// Another mask for every query head.
#include <memory>
#include <utility>

#include "base/message.hpp"
#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::NodePointer;
using mask::Row;
using mask::Tile;

class PerHead final : public MaskNode {
 public:
  PerHead(const mask::Traits& traits, std::vector<NodePointer> masks) : MaskNode(traits), masks_(std::move(masks)), like_(masks_.size()) {
    for (std::size_t head = 0; head < masks_.size(); ++head) {
      std::size_t first = 0;
      while (first < head && !mask::same(*masks_[first], *masks_[head])) ++first;
      like_[head] = first;
    }
  }

  Coverage classify(const Tile& tile) const noexcept override { return has(tile.head) ? of(tile.head).classify(tile) : Coverage::kNone; }
  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    return has(row.head) ? of(row.head).bits(row, key_begin, count) : 0;
  }
  bool heads_alike(std::int64_t head1, std::int64_t head2) const noexcept override {
    if (!has(head1) || !has(head2)) return head1 == head2;
    return like_[static_cast<std::size_t>(head1)] == like_[static_cast<std::size_t>(head2)] && of(head1).heads_alike(head1, head2);
  }
  void append_text(std::string& out) const override {
    out += "per_head";
    for (const NodePointer& mask : masks_) {
      out += " (";
      mask->append_text(out);
      out += ')';
    }
  }
  /// Heads with equal masks together.
  void append_description(std::string& out) const override {
    const char* separator = "(";
    for (std::size_t first = 0; first < masks_.size(); ++first) {
      if (like_[first] != first) continue;
      std::vector<std::int64_t> heads;
      for (std::size_t head = first; head < masks_.size(); ++head) {
        if (like_[head] == first) heads.push_back(static_cast<std::int64_t>(head));
      }
      out.append(separator).append(heads.size() > 1 ? "in heads " : "in head ").append(mask::listed(heads, "and")).append(": ");
      masks_[first]->append_description(out);
      separator = "; ";
    }
    out += ')';
  }
  bool equals(const MaskNode& other) const noexcept override { return mask::same(masks_, static_cast<const PerHead&>(other).masks_); }

 private:
  bool has(std::int64_t head) const noexcept { return head >= 0 && head < static_cast<std::int64_t>(masks_.size()); }
  const MaskNode& of(std::int64_t head) const noexcept { return *masks_[static_cast<std::size_t>(head)]; }

  std::vector<NodePointer> masks_;
  std::vector<std::size_t> like_;  // [heads] first head with an equal mask
};

}  // namespace

Mask Mask::per_head(std::vector<Mask> masks) {
  if (masks.empty()) base::throw_invalid("Mask::per_head", "masks", "one mask per query head", "no mask");
  std::vector<NodePointer> nodes;
  nodes.reserve(masks.size());
  for (Mask& mask : masks) nodes.push_back(std::move(mask.node_));
  mask::Traits traits = mask::traits_over("Mask::per_head", nodes);
  const auto heads = static_cast<std::int64_t>(nodes.size());
  if (traits.heads != 0 && traits.heads != heads) {
    base::throw_invalid("Mask::per_head", "masks", "parts made for " + std::to_string(heads) + " query heads",
                        std::to_string(traits.heads));
  }
  traits.heads = heads;
  traits.uses_head = heads > 1;
  return Mask(std::make_shared<PerHead>(traits, std::move(nodes)));
}

}  // namespace heed
