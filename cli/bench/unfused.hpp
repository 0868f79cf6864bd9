// SPDX-License-Identifier: Apache-2.0
// Attention as most programs write it: GEMM, softmax, GEMM, with the L x L scores in memory. What a fused kernel must not be slower than.
#pragma once

#include <cstdint>
#include <vector>

namespace heed::cli::bench {

/// float32, no mask, as many KV heads as query heads, [B * H, L, D] compact; one (batch, head) a task, as many threads as heed would use.
/// Products by oneDNN's sgemm, held to the instruction set that heed uses; a vectorised softmax.
class UnfusedAttention {
 public:
  UnfusedAttention(std::int64_t heads, std::int64_t length, std::int64_t head_dim);
  /// q, k, v, out: [heads, L, D]
  void run(const float* q, const float* k, const float* v, float* out);

 private:
  std::int64_t heads_, length_, head_dim_;
  std::vector<float> scores_;  // [threads][L, L]
};

}  // namespace heed::cli::bench
