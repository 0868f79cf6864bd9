// SPDX-License-Identifier: Apache-2.0
#include "kv/page_layout.hpp"

#include "kv/checked_math.hpp"
#include "kv/int8_rows.hpp"

namespace heed::kv {

DType dtype_of(KvFormat format) noexcept {
  switch (format) {
    case KvFormat::kBFloat16: return DType::kBFloat16;
    case KvFormat::kFloat16: return DType::kFloat16;
    default: return DType::kFloat32;
  }
}

KvFormat format_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::kBFloat16: return KvFormat::kBFloat16;
    case DType::kFloat16: return KvFormat::kFloat16;
    default: return KvFormat::kFloat32;
  }
}

PageLayout::PageLayout(KvFormat format, std::int64_t heads, std::int64_t head_dim, std::int64_t value_dim)
    : format_(format), heads_(heads), head_dim_(head_dim), value_dim_(value_dim) {
  // Before anything is computed unchecked: no format takes more than 4 bytes an element and 64 beside.
  static_cast<void>(product({heads, kPageTokens, sum(sum(head_dim, value_dim), 64), 4}));
  head_bytes_ = format == KvFormat::kInt8 ? kernels::Int8PageLayout{head_dim, value_dim}.bytes()
                                          : kPageTokens * (head_dim + value_dim) * size_bytes(dtype_of(format));
}

void PageLayout::write(std::byte* page, std::int64_t head, std::int64_t row, const SourceRows& keys,
                       const SourceRows& values) const noexcept {
  std::byte* block = page + head * head_bytes_;
  if (format_ == KvFormat::kInt8) return write_int8_rows({head_dim_, value_dim_}, block, row, keys, values);
  const DType dtype = dtype_of(format_);
  const std::int64_t width = size_bytes(dtype);
  write_rows(block + row * head_dim_ * width, dtype, keys);
  write_rows(block + (kPageTokens * head_dim_ + row * value_dim_) * width, dtype, values);
}

StoredRows PageLayout::describe(std::int64_t kv_heads) const {
  StoredRows rows;
  rows.format = format_;
  rows.kv_heads = kv_heads;
  rows.head_dim = head_dim_;
  rows.value_dim = value_dim_;
  rows.k_head_stride = rows.v_head_stride = rows.is_quantized() ? head_bytes_ : head_bytes_ / size_bytes(dtype_of(format_));
  return rows;
}

kernels::KvSegment PageLayout::segment(const std::byte* page, std::int64_t head, std::int64_t count) const noexcept {
  const std::byte* keys = page + head * head_bytes_;
  return {keys, keys + kPageTokens * head_dim_ * size_bytes(dtype_of(format_)), head_dim_, value_dim_, count};
}

kernels::KvSegment PageLayout::stand_in(const std::byte* page, std::int64_t head, std::int64_t count) const noexcept {
  kernels::KvSegment segment = this->segment(page, head, count);
  segment.k_row_stride = segment.v_row_stride = 0;
  return segment;
}

}  // namespace heed::kv
