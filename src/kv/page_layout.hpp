// SPDX-License-Identifier: Apache-2.0
// How the tokens of one page lie in memory: for every head its keys [kPageTokens, D], then its values [kPageTokens, Dv].
#pragma once

#include <cstddef>
#include <cstdint>

#include <heed/kv_cache.hpp>

#include "kernels/attention/forward.hpp"
#include "kv/write_rows.hpp"

namespace heed::kv {

/// A page is what the decode kernels cut keys into, so its sums are those of a contiguous cache.
inline constexpr std::int64_t kPageTokens = kernels::kPieceKeys;

[[nodiscard]] DType dtype_of(KvFormat format) noexcept;

class PageLayout {
 public:
  /// Throws std::bad_alloc for sizes whose bytes overflow.
  PageLayout(KvFormat format, std::int64_t heads, std::int64_t head_dim, std::int64_t value_dim);

  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  [[nodiscard]] std::int64_t bytes() const noexcept { return heads_ * head_elements() * size_bytes(dtype_); }
  /// Elements from one head's keys to the next one's; values likewise.
  [[nodiscard]] std::int64_t head_elements() const noexcept { return kPageTokens * (head_dim_ + value_dim_); }
  [[nodiscard]] std::int64_t head_dim() const noexcept { return head_dim_; }
  [[nodiscard]] std::int64_t value_dim() const noexcept { return value_dim_; }
  [[nodiscard]] std::byte* keys(std::byte* page, std::int64_t head) const noexcept {
    return page + head * head_elements() * size_bytes(dtype_);
  }
  [[nodiscard]] std::byte* values(std::byte* page, std::int64_t head) const noexcept {
    return keys(page, head) + kPageTokens * head_dim_ * size_bytes(dtype_);
  }
  /// Keys and values of one head to the page's rows [row, row + n).
  void write(std::byte* page, std::int64_t head, std::int64_t row, const SourceRows& keys, const SourceRows& values) const noexcept;

 private:
  DType dtype_;
  std::int64_t heads_, head_dim_, value_dim_;
};

}  // namespace heed::kv
