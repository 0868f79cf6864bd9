// SPDX-License-Identifier: Apache-2.0
// How the tokens of one page lie in memory: head behind head; of a head its keys, then its values.
#pragma once

#include <cstddef>
#include <cstdint>

#include <heed/kv_cache.hpp>

#include "kernels/attention/int8_page.hpp"
#include "kv/stored_rows.hpp"
#include "kv/write_rows.hpp"

namespace heed::kv {

/// A page is what the decode kernels cut keys into, so its sums are those of a contiguous cache.
inline constexpr std::int64_t kPageTokens = kernels::kPieceKeys;

/// What elements of the format are as a tensor.
[[nodiscard]] DType dtype_of(KvFormat format) noexcept;
[[nodiscard]] KvFormat format_of(DType dtype) noexcept;

class PageLayout {
 public:
  /// Throws std::bad_alloc for sizes whose bytes overflow.
  PageLayout(KvFormat format, std::int64_t heads, std::int64_t head_dim, std::int64_t value_dim);

  [[nodiscard]] std::int64_t bytes() const noexcept { return heads_ * head_bytes_; }
  /// Of all heads together.
  [[nodiscard]] std::int64_t token_bytes() const noexcept { return bytes() / kPageTokens; }
  /// Keys and values of one head to the page's rows [row, row + n).
  void write(std::byte* page, std::int64_t head, std::int64_t row, const SourceRows& keys, const SourceRows& values) const noexcept;

  /// Rows of no segment yet, of `kv_heads` heads.
  [[nodiscard]] StoredRows describe(std::int64_t kv_heads) const;
  /// The first `count` tokens of a page, from head `head` on.
  [[nodiscard]] kernels::KvSegment segment(const std::byte* page, std::int64_t head, std::int64_t count) const noexcept;
  /// `count` tokens that are gone: they all read the page's first.
  [[nodiscard]] kernels::KvSegment stand_in(const std::byte* page, std::int64_t head, std::int64_t count) const noexcept;

 private:
  KvFormat format_;
  std::int64_t heads_, head_dim_, value_dim_;
  std::int64_t head_bytes_ = 0;
};

}  // namespace heed::kv
