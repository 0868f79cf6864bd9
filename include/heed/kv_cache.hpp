// SPDX-License-Identifier: Apache-2.0
// Keys and values of the tokens seen so far. One cache serves a whole model: a step appends to every layer, then commits once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <heed/export.hpp>
#include <heed/tensor.hpp>

namespace heed {

namespace kv {
struct StoredRows;  // internal
}

/// How keys and values are stored.
enum class KvFormat : std::uint8_t {
  kFloat32,
  kBFloat16,
  kFloat16,
  /// 8-bit integers with one float32 scale for each token and head, largest |element| / 127: a quarter of float32 and 8 / D of it.
  /// Elements are off by at most 1/254 of their row's largest; docs/accuracy.md says what that does to attention.
  kInt8,
};

/// "float32", ...
[[nodiscard]] HEED_API const char* to_string(KvFormat format) noexcept;

/// What attention reads: the keys and values of some sequences in one layer, appended but uncommitted tokens included, wherever they lie.
/// Sequence b has tokens [0, length(b)); the first first_key(b) of them are gone (a windowed cache dropped them) and no mask shows them.
///
/// A cache's view is valid until the next append, commit or truncate of that cache.
class HEED_API KvView {
 public:
  /// Contiguous: keys [B, length, Hkv, D], values [B, length, Hkv, Dv].
  KvView(const TensorView& keys, const TensorView& values) : keys_(keys), values_(values) {}

  /// Pages that the caller owns (vLLM's and flash-attention's paged cache): token t of sequence b is row t % page_size of page
  /// block_table[b][t / page_size].
  ///
  /// Shapes   k_pages [P, page_size, Hkv, D]   v_pages [P, page_size, Hkv, Dv]   block_table [B, n]   lengths [B]. Any strides.
  /// Types    pages float32, bfloat16 or float16, both alike; block_table and lengths int32 or int64, both are copied.
  ///          Entries of the table behind a sequence's last page are not looked at; a page may serve several sequences.
  /// Throws   InvalidArgument naming the argument. The pages must outlive the view.
  [[nodiscard]] static KvView paged(const TensorView& k_pages, const TensorView& v_pages, const TensorView& block_table,
                                    const TensorView& lengths);

  [[nodiscard]] std::int64_t batch() const noexcept;
  /// Of the longest sequence: Lk.
  [[nodiscard]] std::int64_t length() const noexcept;
  [[nodiscard]] std::int64_t length(std::int64_t sequence) const noexcept;
  [[nodiscard]] std::int64_t first_key(std::int64_t sequence) const noexcept;
  [[nodiscard]] std::int64_t kv_heads() const noexcept;
  [[nodiscard]] std::int64_t head_dim() const noexcept;
  [[nodiscard]] std::int64_t value_dim() const noexcept;
  /// float32 for formats that no tensor has.
  [[nodiscard]] DType dtype() const noexcept;
  [[nodiscard]] KvFormat format() const noexcept;

  /// One block of memory behind all of it.
  [[nodiscard]] bool is_contiguous() const noexcept { return rows_ == nullptr; }
  /// [B, length, Hkv, D] and [B, length, Hkv, Dv] where is_contiguous(), else not given.
  [[nodiscard]] const TensorView& keys() const noexcept { return keys_; }
  [[nodiscard]] const TensorView& values() const noexcept { return values_; }
  /// The same as copies in dtype(), for every view; rows that a sequence does not have, or no longer, are 0.
  [[nodiscard]] Tensor copy_keys() const;
  [[nodiscard]] Tensor copy_values() const;

  explicit KvView(std::shared_ptr<const kv::StoredRows> rows);
  /// Where the rows lie; null where is_contiguous().
  [[nodiscard]] const kv::StoredRows* stored() const noexcept { return rows_.get(); }

 private:
  TensorView keys_, values_;
  std::shared_ptr<const kv::StoredRows> rows_;
};

struct KvCacheConfig {
  std::int64_t layers = 1;
  std::int64_t batch = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;        ///< 0: head_dim
  std::int64_t capacity_tokens = 0;  ///< most tokens per sequence; memory is touched only as tokens arrive
  KvFormat format = KvFormat::kFloat32;
  /// [layers], or empty. A layer with a window w keeps what Mask::sliding_window(w) can show, in pages of 256 tokens, and drops the rest:
  /// its memory is bounded by w and the longest step, whatever the length of the sequence.
  std::vector<std::optional<std::int64_t>> window_tokens = {};
};

/// A cache for sequences of one length. Layers that keep everything are contiguous, [B, Hkv, capacity, D], so that one head's keys are
/// neighbours in memory; integers lie in pages of 256 tokens, as their kernels read them.
///
///   cache.append(0, k0, v0); out = attention(q0, cache.layer(0), {.mask = Mask::causal()});
///   cache.append(1, k1, v1); ...
///   cache.commit(n);
///
/// A cache that was moved from may only be destroyed or assigned to.
class HEED_API KvCache {
 public:
  explicit KvCache(const KvCacheConfig& config);
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;
  ~KvCache();

  [[nodiscard]] const KvCacheConfig& config() const noexcept;
  /// Committed tokens per sequence.
  [[nodiscard]] std::int64_t length() const noexcept;
  /// Shortest length that truncate accepts beside 0: windows have dropped what a shorter one would need.
  [[nodiscard]] std::int64_t earliest_length() const noexcept;
  /// Bytes that one token takes in all layers together, per sequence, while no window has dropped it.
  [[nodiscard]] std::int64_t bytes_per_token() const noexcept;
  /// Bytes of the tokens that are held, all sequences and layers together; windows count in whole pages.
  [[nodiscard]] std::int64_t bytes_in_use() const noexcept;

  /// Appends k [B,n,Hkv,D], v [B,n,Hkv,Dv] (any floating dtype, rounded to the format) behind the committed tokens of `layer`,
  /// behind earlier appends of this step too. Throws InvalidArgument, naming both numbers, when the capacity would be exceeded.
  void append(std::int64_t layer, const TensorView& k, const TensorView& v);
  /// Ends a step: every layer must have received exactly n tokens since the last commit, else InvalidArgument names the layer.
  void commit(std::int64_t n);
  /// Forgets every token at and past `length` <= length(), and whatever was appended without a commit. Going back to before the last step
  /// is always possible; further than earliest_length() only to 0, else InvalidArgument.
  void truncate(std::int64_t length);

  [[nodiscard]] KvView layer(std::int64_t layer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heed
