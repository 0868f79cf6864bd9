// SPDX-License-Identifier: Apache-2.0
#include "kv/paged_layer.hpp"

#include <algorithm>
#include <new>

#include "base/parallel.hpp"
#include "kv/checked_math.hpp"

namespace heed::kv {
namespace {

constexpr std::align_val_t kLine{64};

std::shared_ptr<std::byte[]> new_page(std::int64_t bytes) {
  auto* memory = static_cast<std::byte*>(::operator new[](static_cast<std::size_t>(bytes), kLine));
  return {memory, [](std::byte* p) { ::operator delete[](p, kLine); }};
}

std::int64_t page_count(std::int64_t tokens) { return tokens / kPageTokens + (tokens % kPageTokens != 0 ? 1 : 0); }

}  // namespace

PagedLayer::PagedLayer(const KvCacheConfig& c, std::optional<std::int64_t> window_tokens)
    : layout_(c.format, product({c.batch, c.kv_heads}), c.head_dim, c.value_dim), batch_(c.batch), heads_(c.kv_heads),
      window_(window_tokens) {}

void PagedLayer::append(std::int64_t step, std::int64_t first, const TensorView& k, const TensorView& v) {
  const std::int64_t tokens = k.size(1);
  const std::int64_t end_page = page_count(first + tokens);
  while (first_page_ + static_cast<std::int64_t>(pages_.size()) < end_page) pages_.push_back(new_page(layout_.bytes()));
  base::parallel_for(batch_ * heads_, writing_threads(k), [&](std::int64_t index, int) noexcept {
    for (std::int64_t done = 0; done < tokens;) {
      const std::int64_t at = first + done;
      const std::int64_t row = at % kPageTokens;
      const std::int64_t count = std::min(tokens - done, kPageTokens - row);
      layout_.write(pages_[static_cast<std::size_t>(at / kPageTokens - first_page_)].get(), index, row,
                    rows_of(k, index / heads_, index % heads_, done, count), rows_of(v, index / heads_, index % heads_, done, count));
      done += count;
    }
  });
  if (!window_) return;
  // A query at `step` sees keys from step - window + 1 on.
  const std::int64_t needed = std::max<std::int64_t>(0, step - *window_ + 1) / kPageTokens;
  for (; first_page_ < needed && pages_.size() > 1; ++first_page_) pages_.pop_front();
}

void PagedLayer::truncate(std::int64_t length) {
  if (length == 0) {
    pages_.clear();
    first_page_ = 0;
  }
  while (first_page_ + static_cast<std::int64_t>(pages_.size()) > std::max(first_page_, page_count(length))) pages_.pop_back();
}

std::shared_ptr<const StoredRows> PagedLayer::view(std::int64_t tokens) const {
  auto rows = std::make_shared<StoredRows>(layout_.describe(heads_));
  for (std::int64_t b = 0; b < batch_; ++b) {
    const std::int64_t head = b * heads_;
    if (first_page_ > 0) rows->segments.push_back(layout_.stand_in(pages_.front().get(), head, first_key()));
    for (std::int64_t at = first_key(); at < tokens; at += kPageTokens) {
      const std::byte* page = pages_[static_cast<std::size_t>(at / kPageTokens - first_page_)].get();
      rows->segments.push_back(layout_.segment(page, head, std::min(kPageTokens, tokens - at)));
    }
    rows->end_sequence(first_key(), tokens);
  }
  rows->owners.assign(pages_.begin(), pages_.end());
  return rows;
}

}  // namespace heed::kv
