// SPDX-License-Identifier: Apache-2.0
// Masks that depend on the content: for each block of queries the blocks of keys that matter most, found without computing attention.
#pragma once

#include <cstdint>

#include <heed/export.hpp>
#include <heed/mask.hpp>
#include <heed/tensor.hpp>

namespace heed {

struct BlockSelection {
  std::int64_t block = 64;  ///< tokens of a block, of queries and of keys
  std::int64_t keep = 16;   ///< key blocks for each query block, those that are always kept included
  /// Kept for every query block, whatever their scores: the first `first` key blocks (attention sinks) and the `local` last ones up to its own.
  std::int64_t first = 1, local = 1;
};

/// A causal mask that keeps, for every query head and block of queries, the key blocks whose mean key has the largest product with the mean
/// query of the block (ties: the earlier block).
///
/// Shapes   q [1, Lq, Hq, D], k [1, Lk, Hkv, D], any floating type and strides; query i sits at i + Lk - Lq.
/// Cost     Hq * (Lq / block) * (Lk / block) * D multiply-adds: 1 / block^2 of the products of attention.
/// Mass     How much of a row's attention the mask keeps is exp(lse of the masked call - lse of the causal one), exactly.
/// Throws   InvalidArgument naming the argument.
/// Source   mean pooling of blocks: MInference's block-sparse heads, arXiv 2407.02490, section 3.2 and algorithm 3.
[[nodiscard]] HEED_API Mask select_blocks(const TensorView& q, const TensorView& k, const BlockSelection& selection = {});

}  // namespace heed
