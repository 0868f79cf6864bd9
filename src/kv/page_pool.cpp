// SPDX-License-Identifier: Apache-2.0
#include "kv/page_pool.hpp"

#include <algorithm>

namespace heed::kv {

PagePool::PagePool(std::int64_t pages) : pages_(static_cast<std::size_t>(pages)) {
  free_.reserve(static_cast<std::size_t>(pages));
  for (Page page = pages; page-- > 0;) free_.push_back(page);  // low numbers first, so that memory is touched in order
}

PagePool::Page PagePool::take() {
  if (free_.empty()) {
    const Page oldest = idle_.front();
    withdraw(oldest);
  }
  const Page page = free_.back();
  free_.pop_back();
  at(page).users = 1;
  return page;
}

void PagePool::share(Page page) {
  Entry& entry = at(page);
  if (entry.users++ == 0) entry.node.splice(entry.node.end(), idle_, entry.place);
}

void PagePool::drop(Page page) {
  Entry& entry = at(page);
  if (--entry.users > 0) return;
  if (entry.serial == kNoParent) {
    free_.push_back(page);
  } else {
    idle_.splice(idle_.end(), entry.node);
  }
}

PagePool::Serial PagePool::publish(Page page, Serial parent, std::span<const TokenId> tokens) {
  if (const auto known = find(parent, tokens)) return known->serial;
  Entry& entry = at(page);
  entry.tokens.assign(tokens.begin(), tokens.end());
  entry.node = {page};
  entry.place = entry.node.begin();
  published_.emplace(key_of(parent, tokens), page);
  entry.parent = parent;
  entry.serial = next_serial_++;
  return entry.serial;
}

void PagePool::withdraw(Page page) {
  Entry& entry = at(page);
  if (entry.serial == kNoParent) return;
  const auto [begin, end] = published_.equal_range(key_of(entry.parent, entry.tokens));
  published_.erase(std::find_if(begin, end, [page](const auto& item) { return item.second == page; }));
  entry.serial = kNoParent;
  entry.tokens = {};
  if (entry.users > 0) return entry.node.clear();
  idle_.erase(entry.place);
  free_.push_back(page);
}

std::optional<PagePool::Found> PagePool::find(Serial parent, std::span<const TokenId> tokens) const {
  const auto [begin, end] = published_.equal_range(key_of(parent, tokens));
  for (auto it = begin; it != end; ++it) {
    const Entry& entry = at(it->second);
    // The hash only leads here: what is shared has the same parent and the same tokens.
    if (entry.parent == parent && std::equal(entry.tokens.begin(), entry.tokens.end(), tokens.begin(), tokens.end())) {
      return Found{it->second, entry.serial};
    }
  }
  return std::nullopt;
}

// FNV-1a, 64 bits.
std::uint64_t PagePool::key_of(Serial parent, std::span<const TokenId> tokens) noexcept {
  constexpr std::uint64_t kPrime = 0x100000001b3;
  std::uint64_t hash = 0xcbf29ce484222325;
  hash = (hash ^ static_cast<std::uint64_t>(parent)) * kPrime;
  for (const TokenId token : tokens) hash = (hash ^ static_cast<std::uint32_t>(token)) * kPrime;
  return hash;
}

}  // namespace heed::kv
