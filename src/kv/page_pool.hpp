// SPDX-License-Identifier: Apache-2.0
// Which page belongs to whom: reference counts, what is cached under which tokens, and which page goes first. Knows nothing of memory.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace heed::kv {

class PagePool {
 public:
  using Page = std::int64_t;
  using TokenId = std::int32_t;
  /// Of a cached page: unlike a page's number it is never used twice, so that a child cannot mistake a stranger for its parent.
  using Serial = std::int64_t;
  static constexpr Serial kNoParent = 0;

  explicit PagePool(std::int64_t pages);

  [[nodiscard]] std::int64_t used() const noexcept { return static_cast<std::int64_t>(pages_.size()) - cached() - free_count(); }
  [[nodiscard]] std::int64_t cached() const noexcept { return static_cast<std::int64_t>(idle_.size()); }
  [[nodiscard]] std::int64_t free_count() const noexcept { return static_cast<std::int64_t>(free_.size()); }
  /// Pages that take() can give.
  [[nodiscard]] std::int64_t available() const noexcept { return cached() + free_count(); }

  /// A page with one user; the longest idle cached page goes where none is free. There must be an available one.
  [[nodiscard]] Page take();
  /// One more user.
  void share(Page page);
  /// One user less: without any it is idle if it is cached, else free.
  void drop(Page page);
  /// Whether somebody else may read it: another sequence now, or one to come.
  [[nodiscard]] bool is_shared(Page page) const { return at(page).users > 1; }
  [[nodiscard]] std::int64_t users(Page page) const { return at(page).users; }

  /// Makes a page findable as what follows `parent` with these tokens. Returns the serial under which these tokens are known: that of another
  /// page if they are already.
  Serial publish(Page page, Serial parent, std::span<const TokenId> tokens);
  /// Its content is about to change.
  void withdraw(Page page);
  struct Found {
    Page page = 0;
    Serial serial = kNoParent;
  };
  [[nodiscard]] std::optional<Found> find(Serial parent, std::span<const TokenId> tokens) const;

 private:
  struct Entry {
    std::int64_t users = 0;
    Serial serial = kNoParent;  ///< kNoParent: not published
    Serial parent = kNoParent;
    std::vector<TokenId> tokens;
    std::list<Page>::iterator place;
    std::list<Page> node;  ///< its place in idle_ while it is not there; made when it is published, so that drop() cannot fail
  };
  [[nodiscard]] const Entry& at(Page page) const { return pages_[static_cast<std::size_t>(page)]; }
  [[nodiscard]] Entry& at(Page page) { return pages_[static_cast<std::size_t>(page)]; }
  [[nodiscard]] static std::uint64_t key_of(Serial parent, std::span<const TokenId> tokens) noexcept;

  std::vector<Entry> pages_;
  std::vector<Page> free_;  ///< a stack
  std::list<Page> idle_;    ///< published pages without users, the longest idle in front
  std::unordered_multimap<std::uint64_t, Page> published_;
  Serial next_serial_ = 1;
};

}  // namespace heed::kv
