// SPDX-License-Identifier: Apache-2.0
// What the forward kernels take: plain pointers, sizes, strides and scalars. One task = some row blocks of one (batch, KV head).
//
// Letters: G query heads per KV head, D head dim of q and k, Dv head dim of v. A packed row r is token r / G, head r % G of the group,
// so K and V are read once for all heads that share them. Strides are in elements. Kernels never allocate, throw or check.
#pragma once

#include <cstddef>
#include <cstdint>

#include <heed/dtype.hpp>

#include "base/cpu.hpp"
#include "kernels/attention/plan.hpp"

namespace heed::kernels {

struct QueryRows {
  const void* data = nullptr;  ///< element 0 of token 0, first query head of the group
  DType dtype = DType::kFloat32;
  std::int64_t token_stride = 0, head_stride = 0, dim_stride = 1;
  std::int64_t tokens = 0;
  std::int32_t group = 1;  ///< G
};

/// Keys [first, first + rows) of a sequence. A contiguous cache has one segment, a paged one many.
struct KvSegment {
  const void* k = nullptr;
  const void* v = nullptr;
  std::int64_t k_row_stride = 0, v_row_stride = 0;
  std::int64_t rows = 0;
};

struct KvRows {
  const KvSegment* segments = nullptr;
  std::int64_t segment_count = 0;
  DType dtype = DType::kFloat32;
  std::int64_t k_dim_stride = 1, v_dim_stride = 1;
  std::int64_t k_head = 0, v_head = 0;  ///< elements from what a segment points to, to this KV head: heads share one list of segments
};

/// Which weights dropout keeps: (batch, query head, token, key) by its Philox draw; see heed::Dropout. Off while `factor` is 0.
struct DropoutRule {
  std::uint64_t seed = 0;
  std::uint32_t last_dropped = 0;  ///< the largest draw that is dropped: p * 2^32 rounded up, less 1
  std::uint32_t batch = 0;
  std::uint32_t first_head = 0;  ///< query head 0 of the group
  float factor = 0.0F;           ///< 1 / (1 - p), which kept weights are multiplied by
};

/// scale -> softcap -> bias, ALiBi -> mask -> softmax -> dropout. Pointers are for the first query head of the group.
struct Scoring {
  float scale = 1.0F;
  float softcap = 0.0F;  ///< 0: off
  const void* bias = nullptr;
  DType bias_dtype = DType::kFloat32;
  std::int64_t bias_head_stride = 0, bias_token_stride = 0, bias_key_stride = 0;
  const float* alibi_slopes = nullptr;  ///< [G]
  const float* sink_logits = nullptr;   ///< [G]
  std::int64_t query_offset = 0;        ///< position of token 0
  DropoutRule dropout;
};

struct OutputRows {
  void* out = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t token_stride = 0, head_stride = 0, dim_stride = 1;
  float* lse = nullptr;                                            ///< may be null
  float* row_max = nullptr;                                        ///< may be null
  std::int64_t lse_token_stride = 1, lse_head_stride = 0;          ///< of lse
  std::int64_t row_max_token_stride = 1, row_max_head_stride = 0;  ///< of row_max
};

struct ForwardProblem {
  std::int64_t head_dim = 0;   ///< D
  std::int64_t value_dim = 0;  ///< Dv
  QueryRows q;
  KvRows kv;
  Scoring scoring;
  OutputRows output;
  const TilePlan* plan = nullptr;
  /// May be null: the task of the same call that this thread is likely to get next. The wide path asks memory for its first keys and its
  /// queries in time.
  const struct FollowingTask* following = nullptr;
};

struct FollowingTask {
  ForwardProblem problem;
  std::int64_t first_row = 0, rows = 0;  ///< packed rows
};

/// Partial result of some rows over some keys: weights are exp2-scaled against `max`, `out` is not divided by `sum` yet.
/// Empty (no visible key): max = -inf, sum = 0, out = 0.
struct PartialState {
  float* max = nullptr;       ///< [rows] reference maximum, log2 domain
  float* true_max = nullptr;  ///< [rows] true maximum, log2 domain
  float* sum = nullptr;       ///< [rows]
  float* out = nullptr;       ///< [rows][Dv]
};

/// Wide path: many packed rows. Queries sit in SIMD lanes.
struct WideKernel {
  std::int32_t block_rows;         ///< most rows of a block: 48 (AVX-512), 24 (AVX2, NEON); a plan may have fewer
  std::int32_t super_block_count;  ///< row blocks per task, at most: they share one pass over K and V
  std::int64_t (*scratch_bytes)(const ForwardProblem& problem, std::int32_t row_blocks) noexcept;
  /// Row blocks [first, first + count) of the problem, all keys, straight to the output.
  void (*run)(const ForwardProblem& problem, std::int64_t first, std::int32_t count, std::byte* scratch) noexcept;
};

/// Narrow path: few packed rows (decode). Lanes along D. One piece = kPieceKeys keys on a grid of absolute positions.
inline constexpr std::int64_t kPieceKeys = 256;
/// As many as one row block of a plan may have. A single token's rows take this path up to here: pieces run in parallel, row blocks would not.
inline constexpr std::int32_t kMostNarrowRows = kMaxBlockRows;
struct NarrowKernel {
  std::int32_t good_rows;  ///< up to here it is not slower than the wide path on one thread
  std::int64_t (*scratch_bytes)(const ForwardProblem& problem) noexcept;
  /// All rows over keys [piece * kPieceKeys, ...) into `state`. The problem's plan has one row block (block_rows = rows).
  void (*run_piece)(const ForwardProblem& problem, std::int64_t piece, const PartialState& state, std::byte* scratch) noexcept;
  /// Joins the states of pieces 0 .. pieces-1 in that order, adds the sink, divides, rounds, writes the output.
  /// states[i].max is at base.max + i * rows, states[i].out at base.out + i * rows * Dv.
  void (*combine)(const ForwardProblem& problem, const PartialState& base, std::int64_t pieces) noexcept;
};

/// The kernel of an ISA for these element types (q float32/bfloat16/float16; kv as wide or narrower), null when that ISA is not compiled in.
[[nodiscard]] const WideKernel* wide_kernel(base::Isa isa, DType q, DType kv) noexcept;
[[nodiscard]] const NarrowKernel* narrow_kernel(base::Isa isa, DType q, DType kv) noexcept;
/// For keys and values of 8 bits: every segment is a page (int8_page.hpp), at most the last one not full, and KvRows::k_head is in bytes.
[[nodiscard]] const NarrowKernel* narrow_int8_kernel(base::Isa isa) noexcept;

}  // namespace heed::kernels
