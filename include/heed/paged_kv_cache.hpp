// SPDX-License-Identifier: Apache-2.0
// Keys and values of many sequences in one pool of pages: what a server needs. Sequences fork, go back, end, and share what they have in
// common.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <heed/export.hpp>
#include <heed/kv_cache.hpp>
#include <heed/tensor.hpp>

namespace heed {

struct PagedKvCacheConfig {
  std::int64_t layers = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;       ///< 0: head_dim
  std::int64_t capacity_pages = 0;  ///< of kv_page_tokens tokens each, for all sequences together; memory is touched as pages are used
  KvFormat format = KvFormat::kFloat32;
};

/// Tokens of a page. Decode cuts keys into pieces of as many on a grid of absolute positions, so attention over pages computes the bits of
/// attention over a contiguous cache, and a shared prefix is shared page by page.
inline constexpr std::int64_t kKvPageTokens = 256;

/// Pages are counted by their users: a fork shares all pages, and the last one, while it is not full, is copied when one of its users appends
/// (copy on write). Full pages whose tokens are known stay in the pool after their last user has gone, for sequences that begin with the same
/// tokens; the one that nobody has used for the longest time goes first when a page is needed. A page in use never goes.
///
///   auto [s, cached] = pool.create(prompt);                    // shares what the pool has of this prompt
///   pool.reserve(s, n);                                        // room for the n tokens from `cached` on
///   for each layer: pool.append(layer, s, k, v);  attention(q, pool.view(layer, s), {.mask = Mask::causal()});
///   pool.commit(s, tokens);                                    // their ids, so that others can share their pages
///
/// Not safe for use by several threads at once. A pool that was moved from may only be destroyed or assigned to.
class HEED_API PagedKvCache {
 public:
  /// A sequence; never used again after its release.
  using Sequence = std::int64_t;
  using TokenId = std::int32_t;

  /// Throws InvalidArgument naming the field; std::bad_alloc.
  explicit PagedKvCache(const PagedKvCacheConfig& config);
  PagedKvCache(PagedKvCache&&) noexcept;
  PagedKvCache& operator=(PagedKvCache&&) noexcept;
  ~PagedKvCache();
  [[nodiscard]] const PagedKvCacheConfig& config() const noexcept;

  /// An empty sequence.
  [[nodiscard]] Sequence create();
  /// A sequence that begins with the pages that the pool has of `prompt`: tokens [0, length) need not be computed. At least one token of the
  /// prompt is left over, whose output the caller wants.
  struct Start {
    Sequence sequence = 0;
    std::int64_t length = 0;
  };
  [[nodiscard]] Start create(std::span<const TokenId> prompt);
  /// A sequence with the same committed tokens.
  [[nodiscard]] Sequence fork(Sequence sequence);
  /// Ends a sequence.
  void release(Sequence sequence);
  /// Forgets every token at and past `length` <= length(sequence), and what was reserved and not committed.
  void truncate(Sequence sequence, std::int64_t length);
  /// Committed tokens.
  [[nodiscard]] std::int64_t length(Sequence sequence) const;

  /// Room for n tokens behind the committed ones; replaces an earlier reservation. Throws InvalidArgument, and changes nothing, when there are
  /// not enough pages that are free or can be.
  void reserve(Sequence sequence, std::int64_t n);
  /// Writes all reserved tokens of one layer: k [1, n, Hkv, D], v [1, n, Hkv, Dv], any floating dtype and strides.
  void append(std::int64_t layer, Sequence sequence, const TensorView& k, const TensorView& v);
  /// The same for tokens of several sequences, by slot: k [T, Hkv, D], v [T, Hkv, Dv], slots int64 [T]; a slot of -1 skips its token.
  void append(std::int64_t layer, const TensorView& k, const TensorView& v, std::span<const std::int64_t> slots);
  /// Slots of tokens [first, first + count) of a sequence, reserved ones included: page * kKvPageTokens + row.
  [[nodiscard]] std::vector<std::int64_t> slots(Sequence sequence, std::int64_t first, std::int64_t count) const;
  /// The reserved tokens become part of the sequence. With their ids, as many as were reserved, full pages can be found by create(prompt);
  /// without, this sequence's pages from here on cannot.
  void commit(Sequence sequence, std::span<const TokenId> ids = {});

  /// What attention reads: one batch entry for each sequence, reserved tokens included. Valid until one of them changes. In decode,
  /// neighbours in this list that begin with the same pages read these once, together, to the same bits.
  [[nodiscard]] KvView view(std::int64_t layer, std::span<const Sequence> sequences) const;
  [[nodiscard]] KvView view(std::int64_t layer, Sequence sequence) const;
  /// Pages of a sequence in order.
  [[nodiscard]] std::vector<std::int64_t> block_table(Sequence sequence) const;

  /// Pages by what they are: together capacity_pages.
  struct Usage {
    std::int64_t used_pages = 0;    ///< of at least one sequence
    std::int64_t cached_pages = 0;  ///< of no sequence, kept for those to come
    std::int64_t free_pages = 0;
  };
  [[nodiscard]] Usage usage() const noexcept;
  /// Bytes of a page in all layers.
  [[nodiscard]] std::int64_t page_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heed
