// SPDX-License-Identifier: Apache-2.0
// The Mask handle, and the mask that shows everything.
#include <heed/mask.hpp>

#include <utility>

#include "mask/combine.hpp"
#include "mask/node.hpp"

namespace heed {
namespace {

class None final : public MaskNode {
 public:
  None() : MaskNode({}) {}
  mask::Coverage classify(const mask::Tile&) const noexcept override { return mask::Coverage::kFull; }
  std::uint64_t bits(const mask::Row&, std::int64_t, int count) const noexcept override { return mask::low_bits(count); }
  void append_text(std::string& out) const override { out += "none"; }
  void append_description(std::string& out) const override { out += "the key exists"; }
  bool equals(const MaskNode&) const noexcept override { return true; }
};

/// One node for all: options are built for every call.
const mask::NodePointer& none_node() {
  static const mask::NodePointer node = std::make_shared<None>();
  return node;
}

}  // namespace

namespace mask {

bool is_none(const MaskNode& node) noexcept { return dynamic_cast<const None*>(&node) != nullptr; }

}  // namespace mask

Mask::Mask() : node_(none_node()) {}

Mask::Mask(std::shared_ptr<const MaskNode> node) : node_(node ? std::move(node) : none_node()) {}

Mask Mask::none() { return Mask(); }

std::string Mask::to_string() const {
  std::string text;
  node_->append_text(text);
  return text;
}

std::string Mask::describe() const {
  std::string text = "A query sees a key when ";
  node_->append_description(text);
  return text + ".";
}

bool Mask::visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t p, std::int64_t j) const {
  return node_->bits({.batch = b, .head = h, .index = i, .position = p}, j, 1) != 0;
}

bool operator==(const Mask& a, const Mask& b) { return mask::same(*a.node_, *b.node_); }

}  // namespace heed
