// SPDX-License-Identifier: Apache-2.0
#include "kv/page_layout.hpp"

#include "kv/checked_math.hpp"

namespace heed::kv {

DType dtype_of(KvFormat format) noexcept {
  switch (format) {
    case KvFormat::kBFloat16: return DType::kBFloat16;
    case KvFormat::kFloat16: return DType::kFloat16;
    default: return DType::kFloat32;
  }
}

PageLayout::PageLayout(KvFormat format, std::int64_t heads, std::int64_t head_dim, std::int64_t value_dim)
    : dtype_(dtype_of(format)), heads_(heads), head_dim_(head_dim), value_dim_(value_dim) {
  static_cast<void>(product({heads, kPageTokens, sum(head_dim, value_dim), size_bytes(dtype_)}));
}

void PageLayout::write(std::byte* page, std::int64_t head, std::int64_t row, const SourceRows& keys,
                       const SourceRows& values) const noexcept {
  write_rows(this->keys(page, head) + row * head_dim_ * size_bytes(dtype_), dtype_, keys);
  write_rows(this->values(page, head) + row * value_dim_ * size_bytes(dtype_), dtype_, values);
}

}  // namespace heed::kv
