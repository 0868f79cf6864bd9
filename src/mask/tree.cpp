// SPDX-License-Identifier: Apache-2.0
// A tree of draft tokens behind a prefix, for speculative decoding (SpecInfer, arXiv 2305.09781). Tokens are numbered in the order of a
// walk through the tree, parents first, so that the descendants of a token are an interval and one comparison finds an ancestor.
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

class Tree final : public MaskNode {
 public:
  explicit Tree(std::vector<std::int64_t> parents) : MaskNode({}), parents_(std::move(parents)), nodes_(parents_.size()) {
    const std::size_t count = parents_.size();
    for (std::size_t i = count; i-- > 0;) {  // children come behind their parents
      nodes_[i].size += 1;
      if (parents_[i] != kRoot) nodes_[static_cast<std::size_t>(parents_[i])].size += nodes_[i].size;
    }
    std::vector<std::int64_t> next(count);  // free number below each token
    std::int64_t next_root = 0;
    for (std::size_t i = 0; i < count; ++i) {
      std::int64_t& free = parents_[i] == kRoot ? next_root : next[static_cast<std::size_t>(parents_[i])];
      nodes_[i].number = free;
      free += nodes_[i].size;
      next[i] = nodes_[i].number + 1;
      const auto index = static_cast<std::int64_t>(i);
      nodes_[i].chain = i > 0 && parents_[i] == index - 1 ? nodes_[i - 1].chain : index;
    }
  }

  static constexpr std::int64_t kRoot = -1;

  Coverage classify(const Tile& tile) const noexcept override {
    const std::int64_t begin = std::max<std::int64_t>(tile.index_begin, 0);
    const std::int64_t end = std::min(tile.index_end, count());
    if (begin >= end) return Coverage::kNone;
    const bool inside = begin == tile.index_begin && end == tile.index_end;
    const std::int64_t prefix = tile.query_offset;
    if (tile.key_end <= prefix) return inside ? Coverage::kFull : Coverage::kMixed;
    const std::int64_t first = std::max<std::int64_t>(mask::difference(tile.key_begin, prefix), 0);  // draft tokens among the keys
    const std::int64_t last = mask::difference(tile.key_end - 1, prefix);
    if (first >= end) return Coverage::kNone;
    return inside && all_see({begin, end}, first, last) ? Coverage::kFull : Coverage::kMixed;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count_of_keys) const noexcept override {
    if (row.index < 0 || row.index >= count()) return 0;
    const std::int64_t prefix = mask::difference(row.position, row.index);
    std::uint64_t result = mask::bits_of_range(mask::kFirst, prefix, key_begin, count_of_keys);
    const std::int64_t first = mask::difference(key_begin, prefix);  // as a draft token
    const std::int64_t behind = first >= 0 ? 0 : first > -64 ? -first : 64;
    for (int k = static_cast<int>(behind); k < count_of_keys && first + k <= row.index; ++k) {
      if (sees(row.index, first + k)) result |= std::uint64_t{1} << k;
    }
    return result;
  }

  void append_text(std::string& out) const override {
    out += "tree";
    for (const std::int64_t parent : parents_) out += parent == kRoot ? std::string(" *") : " " + std::to_string(parent);
  }
  void append_description(std::string& out) const override {
    out.append("the key lies before the ").append(std::to_string(count()));
    out.append(" draft tokens, or is the query's own token or one of its ancestors in their tree");
  }
  bool equals(const MaskNode& other) const noexcept override { return parents_ == static_cast<const Tree&>(other).parents_; }

 private:
  struct Node {
    std::int64_t number = 0;  ///< its descendants are numbered [number, number + size), itself included
    std::int64_t size = 0;
    std::int64_t chain = 0;  ///< each token of [chain, this one] but the first is the child of the one before it
  };
  struct Range {
    std::int64_t begin, end;
  };

  std::int64_t count() const noexcept { return static_cast<std::int64_t>(parents_.size()); }
  const Node& node(std::int64_t i) const noexcept { return nodes_[static_cast<std::size_t>(i)]; }
  bool sees(std::int64_t query, std::int64_t key) const noexcept {
    return node(query).number >= node(key).number && node(query).number < node(key).number + node(key).size;
  }
  /// Queries see all draft tokens [first, last]. Ancestors of a token follow each other in a chain, so that a range of them is one.
  bool all_see(Range queries, std::int64_t first, std::int64_t last) const noexcept {
    constexpr std::int64_t kMostQueries = 64;  // beyond it "perhaps" will do
    if (last >= queries.end || queries.end - queries.begin > kMostQueries || node(last).chain > first) return false;
    for (std::int64_t query = queries.begin; query < queries.end; ++query) {
      if (!sees(query, last)) return false;
    }
    return true;
  }

  std::vector<std::int64_t> parents_;  // [tokens], kRoot for children of the prefix
  std::vector<Node> nodes_;            // [tokens]
};

}  // namespace

Mask Mask::tree(std::span<const std::optional<std::int64_t>> parents) {
  std::vector<std::int64_t> list;
  list.reserve(parents.size());
  for (const std::optional<std::int64_t>& parent : parents) {
    const auto index = static_cast<std::int64_t>(list.size());
    if (parent && (*parent < 0 || *parent >= index)) {
      base::throw_invalid("Mask::tree", "parents", "parents of token " + std::to_string(index) + " among the tokens before it",
                          std::to_string(*parent));
    }
    list.push_back(parent.value_or(Tree::kRoot));
  }
  return Mask(std::make_shared<Tree>(std::move(list)));
}

}  // namespace heed
