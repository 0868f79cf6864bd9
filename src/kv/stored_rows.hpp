// SPDX-License-Identifier: Apache-2.0
// Keys and values that do not lie in one block: what stands behind a KvView of pages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <heed/tensor.hpp>

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
  DType dtype = DType::kFloat32;
  std::int64_t kv_heads = 0, head_dim = 0, value_dim = 0;
  std::int64_t k_head_stride = 0, v_head_stride = 0;  ///< elements
  std::int64_t k_dim_stride = 1, v_dim_stride = 1;
  std::vector<kernels::KvSegment> segments;  ///< of KV head 0, all sequences behind each other
  std::vector<StoredSequence> sequences;
  TensorView k_memory = {}, v_memory = {};           ///< all that may be read, where it is the caller's
  std::vector<std::shared_ptr<const void>> owners;  ///< of memory that must outlive the view

  [[nodiscard]] std::int64_t longest() const noexcept;
  /// Ends the sequence at hand, whose segments were added since the last one.
  void end_sequence(std::int64_t first_key, std::int64_t keys);
};

}  // namespace heed::kv
