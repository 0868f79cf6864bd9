// SPDX-License-Identifier: Apache-2.0
// The pool's memory, and sequences as lists of pages.
#include <heed/paged_kv_cache.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/message.hpp"
#include "base/parallel.hpp"
#include "kv/checked_math.hpp"
#include "kv/lazy_memory.hpp"
#include "kv/page_layout.hpp"
#include "kv/page_pool.hpp"

namespace heed {

static_assert(kKvPageTokens == kv::kPageTokens);

namespace {

using base::throw_invalid;
using kv::PagePool;

std::string text(std::int64_t value) { return std::to_string(value); }

void require(const char* field, std::int64_t least, std::int64_t value) {
  if (value < least) throw_invalid("PagedKvCache", field, "at least " + text(least), text(value));
}

PagedKvCacheConfig checked(PagedKvCacheConfig config) {
  if (config.value_dim == 0) config.value_dim = config.head_dim;
  require("layers", 1, config.layers);
  require("kv_heads", 1, config.kv_heads);
  require("head_dim", 1, config.head_dim);
  require("value_dim", 1, config.value_dim);
  require("capacity_pages", 1, config.capacity_pages);
  return config;
}

std::int64_t pages_of(std::int64_t tokens) { return tokens / kKvPageTokens + (tokens % kKvPageTokens != 0 ? 1 : 0); }

/// One sequence.
struct Tokens {
  std::vector<PagePool::Page> pages;
  std::int64_t length = 0, reserved = 0;
  /// Serials of its leading full pages whose tokens are known, and the ids of those behind them.
  std::vector<PagePool::Serial> serials;
  std::vector<PagedKvCache::TokenId> ids;
  bool is_known = true;  ///< the ids of all tokens are: serials.size() pages and then `ids`

  [[nodiscard]] std::int64_t stored() const noexcept { return length + reserved; }
  /// Of tokens at and past `length`.
  void forget_ids() {
    const auto full = static_cast<std::size_t>(length / kKvPageTokens);
    const bool cuts_a_page = serials.size() > full && length % kKvPageTokens != 0;  // whose ids are in the pool only
    if (serials.size() > full) serials.resize(full);
    const std::int64_t behind = length - static_cast<std::int64_t>(serials.size()) * kKvPageTokens;
    is_known = behind == 0 || (is_known && !cuts_a_page);
    ids.resize(is_known ? static_cast<std::size_t>(behind) : 0);
  }
  [[nodiscard]] PagePool::Serial parent() const noexcept { return serials.empty() ? PagePool::kNoParent : serials.back(); }
};

}  // namespace

struct PagedKvCache::State {
  explicit State(const PagedKvCacheConfig& wanted)
      : config(checked(wanted)), layout(config.format, config.kv_heads, config.head_dim, config.value_dim),
        page_bytes(kv::product({config.layers, layout.bytes()})),
        memory(std::make_shared<kv::LazyMemory>(kv::product({config.capacity_pages, page_bytes}))), pool(config.capacity_pages) {}

  [[nodiscard]] Tokens& at(const char* function, Sequence sequence) {
    const auto found = sequences.find(sequence);
    if (found == sequences.end()) throw_invalid(function, "sequence", "one that was created and not released", text(sequence));
    return found->second;
  }
  [[nodiscard]] std::byte* page(PagePool::Page page, std::int64_t layer) const {
    return memory->data() + page * page_bytes + layer * layout.bytes();
  }
  void check_layer(const char* function, std::int64_t layer) const {
    if (layer >= 0 && layer < config.layers) return;
    throw_invalid(function, "layer", "a layer in [0, " + text(config.layers) + ")", text(layer));
  }
  void check_source(const char* name, const TensorView& source, const Shape& shape, const char* axes) const {
    constexpr const char* kFunction = "PagedKvCache::append";
    if (!source || source.shape() != shape) {
      throw_invalid(kFunction, name, to_string(shape) + axes, source ? to_string(source.shape()) : "nothing");
    }
    if (!is_floating(source.dtype())) throw_invalid(kFunction, name, "a floating dtype", to_string(source.dtype()));
    base::require_memory(kFunction, name, source);
  }

  Sequence add(Tokens tokens) {
    sequences.emplace(next, std::move(tokens));
    return next++;
  }

  /// Pages at and past `count` have one user less; the last one is the first to become idle, as it is of no use without those before it.
  void drop_pages(Tokens& tokens, std::int64_t count) {
    while (static_cast<std::int64_t>(tokens.pages.size()) > count) {
      pool.drop(tokens.pages.back());
      tokens.pages.pop_back();
    }
  }

  /// Whether token `length`, the next to be written, lies in a page that others read, too.
  [[nodiscard]] bool must_copy(const Tokens& tokens) const {
    return tokens.length % kKvPageTokens != 0 && pool.is_shared(tokens.pages[static_cast<std::size_t>(tokens.length / kKvPageTokens)]);
  }

  void copy_last_page(Tokens& tokens) {
    PagePool::Page& last = tokens.pages[static_cast<std::size_t>(tokens.length / kKvPageTokens)];
    const PagePool::Page copy = pool.take();
    std::memcpy(page(copy, 0), page(last, 0), static_cast<std::size_t>(page_bytes));
    pool.drop(last);
    last = copy;
  }

  void write(std::int64_t layer, std::int64_t slot, std::int64_t head, const kv::SourceRows& k, const kv::SourceRows& v) const noexcept {
    layout.write(page(slot / kKvPageTokens, layer), head, slot % kKvPageTokens, k, v);
  }

  PagedKvCacheConfig config;
  kv::PageLayout layout;
  std::int64_t page_bytes;                 // of all layers
  std::shared_ptr<kv::LazyMemory> memory;  // [capacity_pages][layers]; views share it
  PagePool pool;
  std::unordered_map<Sequence, Tokens> sequences;
  Sequence next = 0;
};

PagedKvCache::PagedKvCache(const PagedKvCacheConfig& config) : state_(std::make_unique<State>(config)) {}
PagedKvCache::PagedKvCache(PagedKvCache&&) noexcept = default;
PagedKvCache& PagedKvCache::operator=(PagedKvCache&&) noexcept = default;
PagedKvCache::~PagedKvCache() = default;

const PagedKvCacheConfig& PagedKvCache::config() const noexcept { return state_->config; }

PagedKvCache::Sequence PagedKvCache::create() { return state_->add({}); }

PagedKvCache::Start PagedKvCache::create(std::span<const TokenId> prompt) {
  State& s = *state_;
  Tokens tokens;
  constexpr auto kPage = static_cast<std::size_t>(kKvPageTokens);
  for (std::size_t first = 0; first + kPage < prompt.size(); first += kPage) {
    const auto found = s.pool.find(tokens.parent(), prompt.subspan(first, kPage));
    if (!found) break;
    tokens.pages.push_back(found->page);
    tokens.serials.push_back(found->serial);
    tokens.length += kKvPageTokens;
  }
  const std::vector<PagePool::Page> pages = tokens.pages;
  const std::int64_t length = tokens.length;
  const Sequence sequence = s.add(std::move(tokens));
  for (const PagePool::Page page : pages) s.pool.share(page);
  return {sequence, length};
}

PagedKvCache::Sequence PagedKvCache::fork(Sequence sequence) {
  State& s = *state_;
  Tokens copy = s.at("PagedKvCache::fork", sequence);
  copy.reserved = 0;
  copy.pages.resize(static_cast<std::size_t>(pages_of(copy.length)));
  const std::vector<PagePool::Page> pages = copy.pages;
  const Sequence forked = s.add(std::move(copy));
  for (const PagePool::Page page : pages) s.pool.share(page);
  return forked;
}

void PagedKvCache::release(Sequence sequence) {
  State& s = *state_;
  s.drop_pages(s.at("PagedKvCache::release", sequence), 0);
  s.sequences.erase(sequence);
}

void PagedKvCache::truncate(Sequence sequence, std::int64_t length) {
  State& s = *state_;
  Tokens& tokens = s.at("PagedKvCache::truncate", sequence);
  if (length < 0 || length > tokens.length) {
    throw_invalid("PagedKvCache::truncate", "length", "a length in [0, " + text(tokens.length) + "]", text(length));
  }
  tokens.length = length;
  tokens.reserved = 0;
  s.drop_pages(tokens, pages_of(length));
  tokens.forget_ids();
}

std::int64_t PagedKvCache::length(Sequence sequence) const { return state_->at("PagedKvCache::length", sequence).length; }

void PagedKvCache::reserve(Sequence sequence, std::int64_t n) {
  State& s = *state_;
  Tokens& tokens = s.at("PagedKvCache::reserve", sequence);
  if (n < 0) throw_invalid("PagedKvCache::reserve", "n", "at least 0", text(n));
  const std::int64_t held = pages_of(tokens.length);
  const std::int64_t freed = static_cast<std::int64_t>(tokens.pages.size()) - held;  // of the reservation that this one replaces
  const bool copies = n > 0 && s.must_copy(tokens);
  const std::int64_t room = s.pool.available() + freed - (copies ? 1 : 0);
  const std::int64_t slack = held * kKvPageTokens - tokens.length;
  if (room < 0 || (n > slack && pages_of(n - slack) > room)) {
    throw_invalid("PagedKvCache::reserve", "n",
                  "at most " + text(room < 0 ? 0 : slack + room * kKvPageTokens) + " tokens (" + text(s.pool.available() + freed) + " of " +
                      text(s.config.capacity_pages) + " pages are free or can be)",
                  text(n));
  }
  tokens.pages.reserve(static_cast<std::size_t>(held + pages_of(std::max<std::int64_t>(0, n - slack))));
  s.drop_pages(tokens, held);
  tokens.reserved = 0;
  if (n == 0) return;
  if (copies) {
    s.copy_last_page(tokens);
  } else if (slack > 0) {
    s.pool.withdraw(tokens.pages.back());  // a full page that was cut: what others could find in it is about to change
  }
  while (static_cast<std::int64_t>(tokens.pages.size()) < pages_of(tokens.length + n)) tokens.pages.push_back(s.pool.take());
  tokens.reserved = n;
}

void PagedKvCache::append(std::int64_t layer, Sequence sequence, const TensorView& k, const TensorView& v) {
  State& s = *state_;
  s.check_layer("PagedKvCache::append", layer);
  const Tokens& tokens = s.at("PagedKvCache::append", sequence);
  const auto& c = s.config;
  s.check_source("k", k, {1, tokens.reserved, c.kv_heads, c.head_dim}, " ([1, reserved tokens, Hkv, D])");
  s.check_source("v", v, {1, tokens.reserved, c.kv_heads, c.value_dim}, " ([1, reserved tokens, Hkv, Dv])");
  const auto rows = [](const TensorView& x) {
    return TensorView(x.data(), x.dtype(), {x.size(1), x.size(2), x.size(3)}, {x.stride(1), x.stride(2), x.stride(3)});
  };
  append(layer, rows(k), rows(v), slots(sequence, tokens.length, tokens.reserved));
}

void PagedKvCache::append(std::int64_t layer, const TensorView& k, const TensorView& v, std::span<const std::int64_t> slots) {
  State& s = *state_;
  s.check_layer("PagedKvCache::append", layer);
  const auto& c = s.config;
  const auto count = static_cast<std::int64_t>(slots.size());
  s.check_source("k", k, {count, c.kv_heads, c.head_dim}, " ([T, Hkv, D] for T slots)");
  s.check_source("v", v, {count, c.kv_heads, c.value_dim}, " ([T, Hkv, Dv] for T slots)");
  for (const std::int64_t slot : slots) {
    if (slot >= -1 && slot < c.capacity_pages * kKvPageTokens) continue;
    throw_invalid("PagedKvCache::append", "slots", "-1 or slots in [0, " + text(c.capacity_pages * kKvPageTokens) + ")", text(slot));
  }
  const DType dtype = kv::dtype_of(c.format);
  if (k.dtype() == DType::kFloat64) return append(layer, convert(k, dtype), v, slots);  // rounded once, not by way of float32
  if (v.dtype() == DType::kFloat64) return append(layer, k, convert(v, dtype), slots);
  const auto as_batch = [](const TensorView& x) {
    return TensorView(x.data(), x.dtype(), {1, x.size(0), x.size(1), x.size(2)}, {0, x.stride(0), x.stride(1), x.stride(2)});
  };
  const TensorView keys = as_batch(k), values = as_batch(v);
  base::parallel_for(c.kv_heads, kv::writing_threads(k), [&](std::int64_t head, int) noexcept {
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t slot = slots[static_cast<std::size_t>(t)];
      if (slot >= 0) s.write(layer, slot, head, kv::rows_of(keys, 0, head, t, 1), kv::rows_of(values, 0, head, t, 1));
    }
  });
}

std::vector<std::int64_t> PagedKvCache::slots(Sequence sequence, std::int64_t first, std::int64_t count) const {
  const Tokens& tokens = state_->at("PagedKvCache::slots", sequence);
  if (first < 0 || count < 0 || count > tokens.stored() || first > tokens.stored() - count) {
    throw_invalid("PagedKvCache::slots", "first, count", "tokens among the " + text(tokens.stored()) + " stored and reserved ones",
                  text(first) + ", " + text(count));
  }
  std::vector<std::int64_t> result;
  result.reserve(static_cast<std::size_t>(count));
  for (std::int64_t t = first; t < first + count; ++t) {
    result.push_back(tokens.pages[static_cast<std::size_t>(t / kKvPageTokens)] * kKvPageTokens + t % kKvPageTokens);
  }
  return result;
}

void PagedKvCache::commit(Sequence sequence, std::span<const TokenId> ids) {
  State& s = *state_;
  Tokens& tokens = s.at("PagedKvCache::commit", sequence);
  if (!ids.empty() && static_cast<std::int64_t>(ids.size()) != tokens.reserved) {
    throw_invalid("PagedKvCache::commit", "ids", "none or " + text(tokens.reserved) + ", as many as were reserved",
                  text(static_cast<std::int64_t>(ids.size())));
  }
  if (ids.empty() && tokens.reserved > 0) tokens.is_known = false;
  if (tokens.is_known) tokens.ids.insert(tokens.ids.end(), ids.begin(), ids.end());
  tokens.length += std::exchange(tokens.reserved, 0);
  constexpr auto kPage = static_cast<std::size_t>(kKvPageTokens);
  while (tokens.is_known && tokens.ids.size() >= kPage) {
    const PagePool::Page page = tokens.pages[tokens.serials.size()];
    tokens.serials.push_back(s.pool.publish(page, tokens.parent(), std::span(tokens.ids).first(kPage)));
    tokens.ids.erase(tokens.ids.begin(), tokens.ids.begin() + static_cast<std::ptrdiff_t>(kPage));
  }
}

KvView PagedKvCache::view(std::int64_t layer, std::span<const Sequence> sequences) const {
  State& s = *state_;
  s.check_layer("PagedKvCache::view", layer);
  auto rows = std::make_shared<kv::StoredRows>(s.layout.describe(s.config.kv_heads));
  for (const Sequence sequence : sequences) {
    const Tokens& tokens = s.at("PagedKvCache::view", sequence);
    for (std::int64_t at = 0; at < tokens.stored(); at += kKvPageTokens) {
      const std::byte* page = s.page(tokens.pages[static_cast<std::size_t>(at / kKvPageTokens)], layer);
      rows->segments.push_back(s.layout.segment(page, 0, std::min(kKvPageTokens, tokens.stored() - at)));
    }
    rows->end_sequence(0, tokens.stored());
  }
  rows->owners.push_back(s.memory);
  return KvView(std::move(rows));
}

KvView PagedKvCache::view(std::int64_t layer, Sequence sequence) const { return view(layer, {&sequence, 1}); }

std::vector<std::int64_t> PagedKvCache::block_table(Sequence sequence) const {
  return state_->at("PagedKvCache::block_table", sequence).pages;
}

PagedKvCache::Usage PagedKvCache::usage() const noexcept {
  const PagePool& pool = state_->pool;
  return {pool.used(), pool.cached(), pool.free_count()};
}

std::int64_t PagedKvCache::page_bytes() const noexcept { return state_->page_bytes; }

}  // namespace heed
