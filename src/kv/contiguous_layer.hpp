// SPDX-License-Identifier: Apache-2.0
// One layer of a cache that keeps everything: keys [B, Hkv, capacity, D], then values [B, Hkv, capacity, Dv], touched as tokens arrive.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <heed/kv_cache.hpp>

#include "kv/lazy_memory.hpp"

namespace heed::kv {

class ContiguousLayer {
 public:
  /// Throws std::bad_alloc.
  explicit ContiguousLayer(const KvCacheConfig& config);

  /// What the constructor would reserve; throws std::bad_alloc where that has no 63 bits.
  [[nodiscard]] static std::int64_t bytes(const KvCacheConfig& config);

  /// Writes tokens [first, first + n).
  void append(std::int64_t first, const TensorView& k, const TensorView& v);
  [[nodiscard]] KvView view(std::int64_t tokens) const;

 private:
  [[nodiscard]] std::byte* keys() const noexcept { return memory_->data(); }
  [[nodiscard]] std::byte* values() const noexcept;

  DType dtype_;
  std::int64_t batch_, heads_, head_dim_, value_dim_;
  std::int64_t key_head_, value_head_;  ///< elements from one head to the next
  std::unique_ptr<LazyMemory> memory_;
};

}  // namespace heed::kv
