// SPDX-License-Identifier: Apache-2.0
#include "mask/node.hpp"

#include <algorithm>
#include <typeinfo>

#include "base/message.hpp"

namespace heed {

MaskNode::~MaskNode() = default;

bool MaskNode::heads_alike(std::int64_t head1, std::int64_t head2) const noexcept { return head1 == head2 || !traits_.uses_head; }

namespace mask {
namespace {

void require_same(const char* function, const char* axis, std::int64_t& known, std::int64_t wanted) {
  if (wanted == 0 || wanted == known) return;
  if (known != 0) {
    base::throw_invalid(function, "masks", std::string("masks for one ") + axis, std::to_string(known) + " and " + std::to_string(wanted));
  }
  known = wanted;
}

}  // namespace

bool same(const MaskNode& a, const MaskNode& b) noexcept { return &a == &b || (typeid(a) == typeid(b) && a.equals(b)); }

bool same(const std::vector<NodePointer>& a, const std::vector<NodePointer>& b) noexcept {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const NodePointer& x, const NodePointer& y) { return same(*x, *y); });
}

Traits traits_over(const char* function, const std::vector<NodePointer>& children) {
  Traits all;
  for (const NodePointer& child : children) {
    const Traits& one = child->traits();
    all.uses_batch = all.uses_batch || one.uses_batch;
    all.uses_head = all.uses_head || one.uses_head;
    require_same(function, "batch size", all.batch, one.batch);
    require_same(function, "number of query heads", all.heads, one.heads);
    all.depth = std::max(all.depth, one.depth + 1);
  }
  if (all.depth > kMaxDepth) {
    base::throw_invalid(function, "masks", "a nesting of at most " + std::to_string(kMaxDepth), std::to_string(all.depth));
  }
  return all;
}

}  // namespace mask
}  // namespace heed
