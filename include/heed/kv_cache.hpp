// SPDX-License-Identifier: Apache-2.0
// Keys and values of the tokens seen so far. One cache serves a whole model: a step appends to every layer, then commits once.
#pragma once

#include <cstdint>
#include <memory>

#include <heed/export.hpp>
#include <heed/tensor.hpp>

namespace heed {

/// How keys and values are stored.
enum class KvFormat : std::uint8_t { kFloat32, kBFloat16, kFloat16 };

/// "float32", ...
[[nodiscard]] HEED_API const char* to_string(KvFormat format) noexcept;

/// What attention reads: the keys and values of one layer, appended but uncommitted tokens included.
/// Valid until the next append, truncate or destruction of its cache.
class HEED_API KvView {
 public:
  KvView(const TensorView& keys, const TensorView& values) : keys_(keys), values_(values) {}
  /// [B, length, Hkv, D] and [B, length, Hkv, Dv], in the cache's storage type.
  [[nodiscard]] const TensorView& keys() const noexcept { return keys_; }
  [[nodiscard]] const TensorView& values() const noexcept { return values_; }

 private:
  TensorView keys_, values_;
};

struct KvCacheConfig {
  std::int64_t layers = 1;
  std::int64_t batch = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 0;
  std::int64_t value_dim = 0;        ///< 0: head_dim
  std::int64_t capacity_tokens = 0;  ///< most tokens per sequence; memory is touched only as tokens arrive
  KvFormat format = KvFormat::kFloat32;
};

/// Contiguous cache: per layer [B, Hkv, capacity, D], so that one head's keys are neighbours in memory.
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
  /// Bytes that one token takes in all layers together, per sequence.
  [[nodiscard]] std::int64_t bytes_per_token() const noexcept;

  /// Appends k [B,n,Hkv,D], v [B,n,Hkv,Dv] (any floating dtype, rounded to the format) behind the committed tokens of `layer`,
  /// behind earlier appends of this step too. Throws InvalidArgument, naming both numbers, when the capacity would be exceeded.
  void append(std::int64_t layer, const TensorView& k, const TensorView& v);
  /// Ends a step: every layer must have received exactly n tokens since the last commit, else InvalidArgument names the layer.
  void commit(std::int64_t n);
  /// Forgets every token at and past `length` <= length(), and whatever was appended without a commit.
  void truncate(std::int64_t length);

  [[nodiscard]] KvView layer(std::int64_t layer) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heed
