// SPDX-License-Identifier: Apache-2.0
// Gradients of packed sequences, and the rows that no sequence owns.
#include <heed/attention.hpp>

#include "attention/backward.hpp"
#include "attention/elements.hpp"
#include "attention/packed.hpp"
#include "attention/reference.hpp"
#include "base/floating_point.hpp"

namespace heed {
namespace front {
namespace {

/// Queries and keys outside of all sequences, and keys of sequences without queries.
void clear_unowned(const Arguments& packed, const Sizes& sizes, const AttentionGradOutputs& gradients) {
  const auto clear_keys = [&](std::int64_t begin, std::int64_t end) {
    clear_rows(gradients.dk, begin, end);
    clear_rows(gradients.dv, begin, end);
  };
  clear_rows(gradients.dq, 0, integer(packed.q_offsets, 0));
  clear_rows(gradients.dq, integer(packed.q_offsets, sizes.batch), sizes.q_tokens);
  clear_keys(0, integer(packed.k_offsets, 0));
  clear_keys(integer(packed.k_offsets, sizes.batch), sizes.kv_tokens);
  for (std::int64_t s = 0; s < sizes.batch; ++s) {
    if (integer(packed.q_offsets, s) == integer(packed.q_offsets, s + 1)) {
      clear_keys(integer(packed.k_offsets, s), integer(packed.k_offsets, s + 1));
    }
  }
}

/// Without sequences everything is unowned.
void clear_all(const Sizes& sizes, const AttentionGradOutputs& gradients) {
  clear_rows(gradients.dq, 0, sizes.q_tokens);
  clear_rows(gradients.dk, 0, sizes.kv_tokens);
  clear_rows(gradients.dv, 0, sizes.kv_tokens);
  fill_zero(gradients.dsink_logits);
}

/// For checked arguments.
void run_packed_backward(const Arguments& packed, const Sizes& sizes, const BackwardInputs& packed_inputs,
                         const AttentionGradOutputs& packed_gradients) {
  const TensorView q = rows_as_batch(packed.q), k = rows_as_batch(packed.k), v = rows_as_batch(packed.v);
  const TensorView dout = rows_as_batch(packed_inputs.dout), out = rows_as_batch(packed_inputs.out);
  const TensorView lse = statistics_as_batch(packed_inputs.lse);
  const Arguments arguments{packed.function, q, k, v, packed.options};
  const AttentionGradOutputs gradients = {.dq = rows_as_batch(packed_gradients.dq),
                                          .dk = rows_as_batch(packed_gradients.dk),
                                          .dv = rows_as_batch(packed_gradients.dv),
                                          .dsink_logits = packed_gradients.dsink_logits};
  Sequences sequences(sizes.batch);
  add_sequences(packed, sizes, sequences);
  if (sequences.count() == 0) return clear_all(sizes, gradients);
  const kernels::BackwardKernel* kernel = choose_backward(base::active_isa(), q.dtype(), dout.dtype());
  if (kernel == nullptr) return round_gradients(reference_backward(dout, arguments, sizes, sequences), gradients);
  const base::DefaultFloatingPoint environment;
  run_backward(*kernel, arguments, sizes, {dout, out, lse}, gradients, sequences);
  clear_unowned(packed, sizes, gradients);
}

}  // namespace
}  // namespace front

AttentionGrads attention_varlen_backward(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                                         const AttentionState& state, const TensorView& q_offsets, const TensorView& k_offsets,
                                         const AttentionOptions& options) {
  const front::Arguments arguments{"attention_varlen_backward", q, k, v, options, q_offsets, k_offsets};
  const front::Sizes sizes = front::check_packed_inputs(arguments);
  const TensorView out = front::view_or_none(state.out), lse = front::view_or_none(state.lse);
  const front::BackwardInputs inputs{dout, out, lse};
  front::check_backward_inputs(arguments, sizes, inputs, "state.out", "state.lse");
  AttentionGrads grads{front::like(q), front::like(k), front::like(v), {}, {}};
  if (options.sink_logits) grads.dsink_logits = front::like(options.sink_logits);
  AttentionGradOutputs outputs = {.dq = grads.dq, .dk = grads.dk, .dv = grads.dv};
  if (options.sink_logits) outputs.dsink_logits = grads.dsink_logits;
  front::run_packed_backward(arguments, sizes, inputs, outputs);
  return grads;
}

void attention_varlen_backward_into(const AttentionGradOutputs& gradients, const TensorView& dout, const TensorView& q, const TensorView& k,
                                    const TensorView& v, const TensorView& out, const TensorView& lse, const TensorView& q_offsets,
                                    const TensorView& k_offsets, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_varlen_backward_into", q, k, v, options, q_offsets, k_offsets};
  const front::Sizes sizes = front::check_packed_inputs(arguments);
  const front::BackwardInputs inputs{dout, out, lse};
  front::check_backward_inputs(arguments, sizes, inputs, "out", "lse");
  front::check_gradients(arguments, inputs, gradients);
  front::run_packed_backward(arguments, sizes, inputs, gradients);
}

}  // namespace heed
