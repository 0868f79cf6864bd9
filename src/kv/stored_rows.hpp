// SPDX-License-Identifier: Apache-2.0
// Keys and values that do not lie in one block: what stands behind a KvView of pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <heed/kv_cache.hpp>

#include "kernels/attention/forward.hpp"

namespace heed::kv {

/// One sequence: its tokens [0, keys) in `segments` runs of rows. Tokens before first_key are gone; one segment whose rows all lie in the
/// same place stands for them, so that a kernel that reads past what a mask shows reads memory that exists.
struct StoredSequence {
  std::int64_t first_key = 0;
  std::int64_t keys = 0;
  std::int64_t first_segment = 0, segment_count = 0;
};

struct StoredRows {
  KvFormat format = KvFormat::kFloat32;
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t k_head_stride = 0, v_head_stride = 0;  ///< elements; of int8 pages bytes, of keys and values together
  std::int64_t k_dim_stride = 1, v_dim_stride = 1;
  /// Of KV head 0, all sequences behind each other. Where the format is int8, each is a page, `k` says where, and the rest but `rows` is unused.
  std::vector<kernels::KvSegment> segments;
  std::vector<StoredSequence> sequences;
  TensorView k_memory = {}, v_memory = {};          ///< all that may be read, where it is the caller's
  std::vector<std::shared_ptr<const void>> owners;  ///< of memory that must outlive the view

  [[nodiscard]] bool is_quantized() const noexcept { return format == KvFormat::kInt8; }
  [[nodiscard]] std::int64_t longest() const noexcept;
  /// Ends the sequence at hand, whose segments were added since the last one.
  void end_sequence(std::int64_t first_key, std::int64_t keys);
};

/// Copies of all rows as tensors, [B, longest, Hkv, dim]; rows that a sequence does not have, or no longer, are 0.
[[nodiscard]] Tensor copy_keys(const StoredRows& rows);
[[nodiscard]] Tensor copy_values(const StoredRows& rows);

}  // namespace heed::kv
