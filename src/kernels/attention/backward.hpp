// SPDX-License-Identifier: Apache-2.0
// What the backward kernel takes. The work of one (batch, KV head) pair is cut into ranges of keys; the task of a range holds K, V, dK and dV
// of its keys, meets every block of packed rows that sees one of them, and hands each block its share of dQ.
//
//   P = exp(S - lse)    dV += P^T dO    dP = dO V^T    dS = P * (dP - delta)    dK += dS^T Q    dQ += dS K    delta = rowsum(dO * O)
//
// Sums over the query heads of a group come by themselves: their rows are packed together. Strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/forward.hpp"

namespace heed::kernels {

/// Gradient of the keys or values of one (batch, KV head).
struct KeyGradient {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t row_stride = 0, dim_stride = 1;
};

/// Gradient of the bias, added to in float32; strides are 0 on axes that were broadcast. Pointer for the group's first query head.
struct BiasGradient {
  float* data = nullptr;  ///< null: not asked for
  std::int64_t head_stride = 0, token_stride = 0, key_stride = 0;
};

struct BackwardProblem {
  ForwardProblem forward;  ///< `output` is dq: out, dtype and strides; lse and row_max are not used
  QueryRows dout, out;     ///< [rows][Dv]
  const float* lse = nullptr;
  std::int64_t lse_token_stride = 1, lse_head_stride = 0;
  /// [whole row blocks], made by prepare: lse in the log2 domain (infinity: the row has no weights), and delta.
  float* log2_sums = nullptr;
  float* deltas = nullptr;
  KeyGradient dk, dv;
  std::int64_t key_rows = 0;  ///< of dk and dv; those past the plan's keys become 0
  BiasGradient dbias;
};

/// Keys [first, first + count), a multiple of kBlockKeys but for the last range of a pair.
struct KeyRange {
  std::int64_t first, count;
};

/// What the same thread will probably open afterwards, to be prefetched; problem null: nothing.
struct NextTask {
  const BackwardProblem* problem;
  KeyRange range;
};

/// Where a row block's sum of dQ stands. Key ranges add in rising order, so that its bits do not depend on the threads.
struct QueryStep {
  bool is_first;  ///< no range before this one has a tile in the row block
  bool is_last;   ///< none behind it has
};

/// A task calls open, then visit and add_queries for groups of row blocks, from the last to the first, then close; `scratch` is its memory
/// between the calls.
struct BackwardKernel {
  std::int32_t block_rows;    ///< rows per tile
  std::int32_t group_blocks;  ///< row blocks that are visited together; groups start at multiples of it
  std::int64_t (*scratch_bytes)(const BackwardProblem& problem, std::int64_t range_keys) noexcept;
  /// Row values of one row block; dq = 0 where no key is visible.
  void (*prepare)(const BackwardProblem& problem, std::int64_t row_block) noexcept;
  void (*open)(const BackwardProblem& problem, KeyRange range, const NextTask& next, std::byte* scratch) noexcept;
  /// Row blocks [first, first + count) meet the range: adds to dK, dV and dbias, and keeps their dQ.
  void (*visit)(const BackwardProblem& problem, std::int64_t first, std::int32_t count, std::byte* scratch) noexcept;
  /// Adds the dQ of row block first + index to `sum`, [block_rows][D rounded up to kSumUnit], or writes the caller's dq with it.
  void (*add_queries)(const BackwardProblem& problem, QueryStep step, std::int32_t index, float* sum, std::byte* scratch) noexcept;
  /// Writes the range's dk and dv.
  void (*close)(const BackwardProblem& problem, KeyRange range, std::byte* scratch) noexcept;
};
inline constexpr std::int64_t kSumUnit = 16;
inline constexpr std::int32_t kMostGroupBlocks = 4;

}  // namespace heed::kernels
