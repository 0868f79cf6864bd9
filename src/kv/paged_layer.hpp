// SPDX-License-Identifier: Apache-2.0
// One layer of a cache in pages on the grid of absolute positions. Where it has a window, pages from the front are dropped as that moves on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "kv/page_layout.hpp"

namespace heed::kv {

class PagedLayer {
 public:
  /// Without a window everything is kept.
  PagedLayer(const KvCacheConfig& config, std::optional<std::int64_t> window_tokens);

  /// The first token that is still held.
  [[nodiscard]] std::int64_t first_key() const noexcept { return first_page_ * kPageTokens; }
  /// From here on a query finds every key of its window.
  [[nodiscard]] std::int64_t earliest_length() const noexcept { return first_page_ == 0 ? 0 : first_key() + *window_ - 1; }
  [[nodiscard]] std::int64_t bytes_in_use() const noexcept { return static_cast<std::int64_t>(pages_.size()) * layout_.bytes(); }

  /// Writes tokens [first, first + n), after dropping what no query from position `step` on can see. All or nothing.
  void append(std::int64_t step, std::int64_t first, const TensorView& k, const TensorView& v);
  void truncate(std::int64_t length);
  [[nodiscard]] std::shared_ptr<const StoredRows> view(std::int64_t tokens) const;

 private:
  using Page = std::shared_ptr<std::byte[]>;

  PageLayout layout_;
  std::int64_t batch_, heads_;
  std::optional<std::int64_t> window_;
  std::int64_t first_page_ = 0;  ///< index of pages_.front() on the grid of absolute positions
  std::deque<Page> pages_;       ///< [batch * heads] heads each; views share them, so that a stale one reads no freed memory
};

}  // namespace heed::kv
