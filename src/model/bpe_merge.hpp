// SPDX-License-Identifier: Apache-2.0
// The merging loop that both kinds of byte-pair encoding share: a linked list of symbols and a heap of adjacent pairs, so that n symbols
// take O(n log n), whatever they hold.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <heed/model/tokenizer.hpp>

namespace heed::model {

/// A stretch of the text that is one token so far, or (-1) none.
struct MergeSymbol {
  std::int64_t begin = 0, size = 0;       ///< bytes; size 0: merged into a symbol on the left
  std::int64_t previous = -1, next = -1;  ///< neighbours by index; -1 at the ends
  Token token = -1;
};

/// What two neighbours become. A smaller order merges first, on ties the leftmost; token -1: they do not merge.
template <class Order>
struct MergeResult {
  Order order{};
  Token token = -1;
};

template <class Order>
class Merger {
 public:
  void clear() { symbols_.clear(); }
  void add(std::int64_t begin, std::int64_t size, Token token) {
    const auto index = static_cast<std::int64_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back({begin, size, index - 1, -1, token});
  }

  /// find(left, right) -> MergeResult<Order>, and must depend on the two symbols alone.
  template <class Find>
  void run(Find&& find) {
    heap_.clear();
    for (std::int64_t i = 0; i + 1 < static_cast<std::int64_t>(symbols_.size()); ++i) add_pair(find, i, i + 1);
    while (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end(), Later{});
      const Pair pair = heap_.back();
      heap_.pop_back();
      if (!is_stale(pair)) join(find, pair);
    }
  }

  /// consume(symbol), left to right.
  template <class Consume>
  void for_each(Consume&& consume) const {
    for (const MergeSymbol& symbol : symbols_) {
      if (symbol.size > 0) consume(symbol);
    }
  }

 private:
  struct Pair {
    MergeResult<Order> result;
    std::int64_t left, right, size;
  };
  struct Later {
    bool operator()(const Pair& a, const Pair& b) const noexcept {
      return a.result.order != b.result.order ? a.result.order > b.result.order : a.left > b.left;
    }
  };

  MergeSymbol& at(std::int64_t i) { return symbols_[static_cast<std::size_t>(i)]; }

  template <class Find>
  void add_pair(Find&& find, std::int64_t left, std::int64_t right) {
    if (left < 0 || right < 0) return;
    const MergeSymbol& a = at(left);
    const MergeSymbol& b = at(right);
    const MergeResult<Order> result = find(a, b);
    if (result.token < 0) return;
    heap_.push_back({result, left, right, a.size + b.size});
    std::push_heap(heap_.begin(), heap_.end(), Later{});
  }

  /// Symbols only grow or die, so an equal sum means that both are as they were.
  bool is_stale(const Pair& pair) {
    const MergeSymbol& left = at(pair.left);
    const MergeSymbol& right = at(pair.right);
    return left.size == 0 || right.size == 0 || left.size + right.size != pair.size;
  }

  template <class Find>
  void join(Find&& find, const Pair& pair) {
    MergeSymbol& left = at(pair.left);
    MergeSymbol& right = at(pair.right);
    left.token = pair.result.token;
    left.size = pair.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) at(left.next).previous = pair.left;
    add_pair(find, left.previous, pair.left);
    add_pair(find, pair.left, left.next);
  }

  std::vector<MergeSymbol> symbols_;
  std::vector<Pair> heap_;
};

}  // namespace heed::model
