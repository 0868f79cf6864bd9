// SPDX-License-Identifier: Apache-2.0
#include "attention/forward.hpp"
#include "base/philox.hpp"

namespace heed::front {
namespace {

float* copy_floats(const TensorView& view, std::int64_t batch, std::int64_t heads, float* to) {
  const std::int64_t batch_stride = view.rank() == 2 ? view.stride(0) : 0;
  const std::int64_t head_stride = view.stride(view.rank() - 1);
  const auto* from = static_cast<const float*>(view.data());
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) *to++ = from[b * batch_stride + h * head_stride];
  }
  return to;
}

std::int64_t floats_needed(const Sizes& sizes, const AttentionOptions& options) {
  return (options.alibi_slopes ? sizes.batch * sizes.q_heads : 0) + (options.sink_logits ? sizes.q_heads : 0);
}

}  // namespace

KernelCall::KernelCall(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs, const Sequences& sequences,
                       std::int32_t block_rows)
    : arguments_(arguments), sizes_(sizes), outputs_(outputs), sequences_(sequences),
      plans_(arguments.options.mask, sequences.geometry(), sizes.kv_heads, static_cast<std::int32_t>(sizes.group), block_rows),
      floats_(floats_needed(sizes, arguments.options) * static_cast<std::int64_t>(sizeof(float))) {
  const AttentionOptions& o = arguments.options;
  if (o.bias) bias_ = broadcast4(o.bias, {sizes.batch, sizes.q_heads, sizes.q_tokens, sizes.kv_tokens});
  auto* next = reinterpret_cast<float*>(floats_.data());
  if (o.alibi_slopes) {
    slopes_ = next;
    next = copy_floats(o.alibi_slopes, sizes.batch, sizes.q_heads, next);
  }
  if (o.sink_logits) {
    sinks_ = next;
    copy_floats(o.sink_logits, 1, sizes.q_heads, next);
  }
}

kernels::Scoring KernelCall::scoring(std::int64_t batch, std::int64_t head) const {
  const AttentionOptions& options = arguments_.options;
  kernels::Scoring scoring;
  scoring.scale = static_cast<float>(scale_of(options, sizes_.head_dim));
  scoring.softcap = static_cast<float>(options.softcap.value_or(0.0));
  if (bias_) {
    scoring.bias = address(bias_, batch, head);
    scoring.bias_dtype = bias_.dtype();
    scoring.bias_head_stride = bias_.stride(1);
    scoring.bias_token_stride = bias_.stride(2);
    scoring.bias_key_stride = bias_.stride(3);
  }
  if (slopes_ != nullptr) scoring.alibi_slopes = slopes_ + batch * sizes_.q_heads + head;
  if (sinks_ != nullptr) scoring.sink_logits = sinks_ + head;
  if (options.dropout && options.dropout->p > 0.0) {
    scoring.dropout = {.seed = options.dropout->seed,
                       .last_dropped = static_cast<std::uint32_t>(base::dropout_threshold(options.dropout->p) - 1),
                       .batch = static_cast<std::uint32_t>(batch),
                       .first_head = static_cast<std::uint32_t>(head),
                       .factor = static_cast<float>(1.0 / (1.0 - options.dropout->p))};
  }
  return scoring;
}

kernels::OutputRows KernelCall::output(const Place& place, std::int64_t head) const {
  const auto& [out, lse, row_max] = outputs_;
  kernels::OutputRows output = {.out = address(out, place.slice, place.first_query, head),
                                .dtype = out.dtype(),
                                .token_stride = out.stride(1),
                                .head_stride = out.stride(2),
                                .dim_stride = out.stride(3)};
  if (lse) {
    output.lse = static_cast<float*>(address(lse, place.slice, head, place.first_query));
    output.lse_head_stride = lse.stride(1);
    output.lse_token_stride = lse.stride(2);
  }
  if (row_max) {
    output.row_max = static_cast<float*>(address(row_max, place.slice, head, place.first_query));
    output.row_max_head_stride = row_max.stride(1);
    output.row_max_token_stride = row_max.stride(2);
  }
  return output;
}

kernels::KvRows KernelCall::block_rows(const mask::Geometry& geometry, const Place& place, std::int64_t kv_head,
                                       kernels::KvSegment& segment) const {
  const TensorView &k = arguments_.k, &v = arguments_.v;
  segment = {.k = address(k, place.slice, place.first_key, kv_head),
             .v = address(v, place.slice, place.first_key, kv_head),
             .k_row_stride = k.stride(1),
             .v_row_stride = v.stride(1),
             .rows = geometry.keys};
  return {.segments = &segment, .segment_count = 1, .dtype = k.dtype(), .k_dim_stride = k.stride(3), .v_dim_stride = v.stride(3)};
}

kernels::KvRows KernelCall::stored_rows(const Place& place, std::int64_t kv_head) const {
  const kv::StoredRows& rows = *arguments_.rows;
  const kv::StoredSequence& sequence = rows.sequences[static_cast<std::size_t>(place.slice)];
  return {.segments = rows.segments.data() + sequence.first_segment,
          .segment_count = sequence.segment_count,
          .dtype = arguments_.k.dtype(),
          .k_dim_stride = rows.k_dim_stride,
          .v_dim_stride = rows.v_dim_stride,
          .k_head = kv_head * rows.k_head_stride,
          .v_head = kv_head * rows.v_head_stride};
}

kernels::ForwardProblem KernelCall::problem(std::int64_t pair, kernels::KvSegment& segment) const {
  const auto sequence = static_cast<std::size_t>(pair / sizes_.kv_heads);
  const mask::Geometry& geometry = sequences_.geometry()[sequence];
  const Place& place = sequences_.places()[sequence];
  const std::int64_t kv_head = pair % sizes_.kv_heads;
  const std::int64_t head = kv_head * sizes_.group;
  const TensorView& q = arguments_.q;
  kernels::ForwardProblem problem;
  problem.head_dim = sizes_.head_dim;
  problem.value_dim = sizes_.value_dim;
  problem.q = {.data = address(q, place.slice, place.first_query, head),
               .dtype = q.dtype(),
               .token_stride = q.stride(1),
               .head_stride = q.stride(2),
               .dim_stride = q.stride(3),
               .tokens = geometry.tokens,
               .group = static_cast<std::int32_t>(sizes_.group)};
  problem.kv = arguments_.rows != nullptr ? stored_rows(place, kv_head) : block_rows(geometry, place, kv_head, segment);
  problem.scoring = scoring(geometry.batch, head);
  problem.scoring.query_offset = geometry.query_offset;
  problem.output = output(place, head);
  problem.plan = &plan(pair);
  return problem;
}

int KernelCall::threads() const { return worthwhile_threads(sizes_, sequences_); }

}  // namespace heed::front
