// SPDX-License-Identifier: Apache-2.0
#include "kv/contiguous_layer.hpp"

#include "base/parallel.hpp"
#include "kv/checked_math.hpp"
#include "kv/page_layout.hpp"
#include "kv/write_rows.hpp"

namespace heed::kv {
namespace {

/// Every head starts on a cache line of its own.
constexpr std::int64_t kLineBytes = 64;

std::int64_t head_elements(std::int64_t capacity, std::int64_t dim, DType dtype) {
  const std::int64_t per_line = kLineBytes / size_bytes(dtype);
  return product({sum(product({capacity, dim}), per_line - 1) / per_line, per_line});
}

}  // namespace

std::int64_t ContiguousLayer::bytes(const KvCacheConfig& c) {
  const DType dtype = dtype_of(c.format);
  const std::int64_t elements =
      sum(head_elements(c.capacity_tokens, c.head_dim, dtype), head_elements(c.capacity_tokens, c.value_dim, dtype));
  return product({c.batch, c.kv_heads, elements, size_bytes(dtype)});
}

ContiguousLayer::ContiguousLayer(const KvCacheConfig& c)
    : dtype_(dtype_of(c.format)), batch_(c.batch), heads_(c.kv_heads), head_dim_(c.head_dim), value_dim_(c.value_dim),
      key_head_(head_elements(c.capacity_tokens, c.head_dim, dtype_)), value_head_(head_elements(c.capacity_tokens, c.value_dim, dtype_)),
      memory_(std::make_unique<LazyMemory>(bytes(c))) {}

std::byte* ContiguousLayer::values() const noexcept { return keys() + batch_ * heads_ * key_head_ * size_bytes(dtype_); }

void ContiguousLayer::append(std::int64_t first, const TensorView& k, const TensorView& v) {
  const std::int64_t tokens = k.size(1), width = size_bytes(dtype_);
  base::parallel_for(batch_ * heads_, writing_threads(k), [&](std::int64_t head, int) noexcept {
    const std::int64_t b = head / heads_, h = head % heads_;
    write_rows(keys() + (head * key_head_ + first * head_dim_) * width, dtype_, rows_of(k, b, h, 0, tokens));
    write_rows(values() + (head * value_head_ + first * value_dim_) * width, dtype_, rows_of(v, b, h, 0, tokens));
  });
}

KvView ContiguousLayer::view(std::int64_t tokens) const {
  const auto part = [&](const std::byte* block, std::int64_t head, std::int64_t dim) {
    return TensorView(block, dtype_, {batch_, tokens, heads_, dim}, {heads_ * head, dim, head, 1});
  };
  return KvView(part(keys(), key_head_, head_dim_), part(values(), value_head_, value_dim_));
}

}  // namespace heed::kv
