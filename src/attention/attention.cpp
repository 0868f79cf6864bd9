// SPDX-License-Identifier: Apache-2.0
// The public forward calls: check, choose a path, run it.
#include <heed/attention.hpp>

#include <heed/kv_cache.hpp>

#include "attention/elements.hpp"
#include "attention/forward.hpp"
#include "attention/reference.hpp"

namespace heed {
namespace front {

Choice choose(const Sizes& sizes, DType q, DType kv, const AttentionOptions& options) {
  Choice choice;
  choice.isa = base::active_isa();
  const bool drops = options.dropout && options.dropout->p > 0.0;
  if (q == DType::kFloat64 || drops) return choice;
  if (sizes.packed_rows() <= kernels::kNarrowRows) {
    choice.narrow = kernels::narrow_kernel(choice.isa, q, kv);
    if (choice.narrow != nullptr) choice.path = Path::kNarrow;
  } else {
    choice.wide = kernels::wide_kernel(choice.isa, q, kv);
    if (choice.wide != nullptr) choice.path = Path::kWide;
  }
  return choice;
}

namespace {

void run_reference(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs) {
  const ReferenceForward result = reference_forward(arguments, sizes);
  round_into(outputs.out, result.out);
  if (outputs.lse) round_into(outputs.lse, result.lse);
  if (outputs.row_max) round_into(outputs.row_max, result.row_max);
}

/// For checked arguments and outputs.
void run(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs) {
  const Choice choice = choose(sizes, arguments.q.dtype(), arguments.k.dtype(), arguments.options);
  if (sizes.batch == 0 || sizes.q_tokens == 0) return;
  if (choice.path == Path::kReference) return run_reference(arguments, sizes, outputs);
  const Sequences sequences(sizes, arguments.options);
  if (choice.path == Path::kNarrow) {
    run_narrow(*choice.narrow, KernelCall(arguments, sizes, outputs, sequences, kernels::kNarrowRows));
  } else {
    run_wide(*choice.wide, KernelCall(arguments, sizes, outputs, sequences, choice.wide->block_rows));
  }
}

Tensor make_out(const Arguments& arguments, const Sizes& s) {
  return Tensor::with_order_of(arguments.q.dtype(), {s.batch, s.q_tokens, s.q_heads, s.value_dim}, arguments.q.strides());
}

Tensor run_out(const Arguments& arguments) {
  const Sizes sizes = check_inputs(arguments);
  Tensor out = make_out(arguments, sizes);
  run(arguments, sizes, {.out = out});
  return out;
}

AttentionState run_state(const Arguments& arguments) {
  const Sizes s = check_inputs(arguments);
  AttentionState state{make_out(arguments, s), Tensor(statistics_dtype(arguments.q.dtype()), {s.batch, s.q_heads, s.q_tokens})};
  run(arguments, s, {.out = state.out, .lse = state.lse});
  return state;
}

void run_into(const AttentionOutputs& outputs, const Arguments& arguments) {
  const Sizes sizes = check_inputs(arguments);
  check_outputs(arguments, sizes, outputs);
  run(arguments, sizes, outputs);
}

}  // namespace
}  // namespace front

Tensor attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  return front::run_out({"attention", q, k, v, options});
}

Tensor attention(const TensorView& q, const KvView& cache, const AttentionOptions& options) {
  return front::run_out({"attention", q, cache.keys(), cache.values(), options});
}

AttentionState attention_state(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  return front::run_state({"attention_state", q, k, v, options});
}

AttentionState attention_state(const TensorView& q, const KvView& cache, const AttentionOptions& options) {
  return front::run_state({"attention_state", q, cache.keys(), cache.values(), options});
}

void attention_into(const AttentionOutputs& outputs, const TensorView& q, const TensorView& k, const TensorView& v,
                    const AttentionOptions& options) {
  front::run_into(outputs, {"attention_into", q, k, v, options});
}

void attention_into(const AttentionOutputs& outputs, const TensorView& q, const KvView& cache, const AttentionOptions& options) {
  front::run_into(outputs, {"attention_into", q, cache.keys(), cache.values(), options});
}

}  // namespace heed
