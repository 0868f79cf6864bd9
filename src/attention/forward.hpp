// SPDX-License-Identifier: Apache-2.0
// How a checked call is cut into tasks. Sums are cut by shape alone: pieces of keys, ranges, row blocks. Which thread gets how many of them
// may depend on the threads and on L2; results do not.
#pragma once

#include "attention/arguments.hpp"
#include "kernels/attention/forward.hpp"

namespace heed::front {

enum class Path : std::uint8_t { kReference, kWide, kNarrow };

/// Which code a call runs. Both kernels are set unless it is the reference: packed sequences may take either path.
struct Choice {
  Path path = Path::kReference;  ///< of sequences of Lq tokens
  base::Isa isa = base::Isa::kGeneric;
  const kernels::WideKernel* wide = nullptr;
  const kernels::NarrowKernel* narrow = nullptr;
};
/// By the sequence's own shape, so that its bits do not depend on its neighbours.
[[nodiscard]] bool is_narrow(const kernels::NarrowKernel& kernel, std::int64_t tokens, std::int64_t group, std::int64_t keys);
/// Elements as tensors have them, or integers with scales, which no DType stands for.
enum class Storage : std::uint8_t { kTensor, kInt8 };
[[nodiscard]] Choice choose(const Sizes& sizes, DType q, DType kv, Storage storage = Storage::kTensor);
/// Of a wide call whose longest sequence has so many packed rows: a sliver of a second block would keep a third of the registers busy.
[[nodiscard]] std::int32_t rows_per_block(const kernels::WideKernel& kernel, std::int64_t longest_rows);

/// Row blocks of a plan.
[[nodiscard]] inline std::int64_t blocks_of(const kernels::TilePlan& plan) { return (plan.rows + plan.block_rows - 1) / plan.block_rows; }

/// A call as kernels see it: one ForwardProblem per (sequence, KV head). Sequences may differ in length.
class KernelCall {
 public:
  /// `sizes.batch` is what mask, bias and slopes were checked for; `sequences` may be some of its entries, each with at least one token.
  KernelCall(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs, const Sequences& sequences,
             std::int32_t block_rows);

  /// Heads and head dimensions hold for every pair; lengths do not: those are in plan(pair) and problem(pair).
  [[nodiscard]] const Sizes& sizes() const noexcept { return sizes_; }
  /// (sequence, KV head) pairs, numbered sequence * Hkv + kv_head.
  [[nodiscard]] std::int64_t pairs() const noexcept { return sequences_.count() * sizes_.kv_heads; }
  [[nodiscard]] const kernels::TilePlan& plan(std::int64_t pair) const {
    return plans_.plan(pair / sizes_.kv_heads, pair % sizes_.kv_heads);
  }
  /// `segment` holds the keys and values that the problem points to, so it must outlive the problem.
  [[nodiscard]] kernels::ForwardProblem problem(std::int64_t pair, kernels::KvSegment& segment) const;
  [[nodiscard]] const Sequences& sequences() const noexcept { return sequences_; }
  [[nodiscard]] const Arguments& arguments() const noexcept { return arguments_; }
  /// Rows of k and v that its sequences share, whether they exist or not.
  [[nodiscard]] std::int64_t key_rows() const { return arguments_.k.size(0) * arguments_.k.size(1); }
  /// Threads that are worth waking.
  [[nodiscard]] int threads() const;

 private:
  [[nodiscard]] kernels::Scoring scoring(std::int64_t batch, std::int64_t head) const;
  /// The sequence's rows of k and v, one segment.
  [[nodiscard]] kernels::KvRows block_rows(const mask::Geometry& geometry, const Place& place, std::int64_t kv_head,
                                           kernels::KvSegment& segment) const;
  /// The sequence's rows of a cache that has them in pages.
  [[nodiscard]] kernels::KvRows stored_rows(const Place& place, std::int64_t kv_head) const;
  [[nodiscard]] kernels::OutputRows output(const Place& place, std::int64_t head) const;

  const Arguments& arguments_;
  const Sizes& sizes_;
  const AttentionOutputs& outputs_;
  const Sequences& sequences_;
  mask::PlanSet plans_;
  TensorView bias_;       ///< [B, Hq, Lq, Lk] or not given
  base::Scratch floats_;  ///< slopes [B][Hq], then sinks [Hq]
  const float* slopes_ = nullptr;
  const float* sinks_ = nullptr;
};

/// Memory for out, in q's type and order.
[[nodiscard]] Tensor make_out(const Arguments& arguments, const Sizes& sizes);

/// Every sequence on the path that its own rows take, so that its bits do not depend on the others. q, k, v and outputs have 4 axes.
void run_forward(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs, const Sequences& sequences);

void run_wide(const kernels::WideKernel& kernel, const KernelCall& call);
void run_narrow(const kernels::NarrowKernel& kernel, const KernelCall& call);

}  // namespace heed::front
