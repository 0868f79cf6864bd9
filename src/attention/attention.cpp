// SPDX-License-Identifier: Apache-2.0
// The public forward calls over batches.
#include <heed/attention.hpp>

#include <heed/kv_cache.hpp>

#include "attention/forward.hpp"

namespace heed {
namespace front {

namespace {

/// For checked arguments and outputs.
void run(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs) {
  if (sizes.q_tokens == 0) return;
  run_forward(arguments, sizes, outputs, Sequences(sizes, arguments.options));
}

Tensor run_out(const Arguments& arguments) {
  const Sizes sizes = check_inputs(arguments);
  Tensor out = make_out(arguments, sizes);
  run(arguments, sizes, {.out = out});
  return out;
}

AttentionState run_state(const Arguments& arguments) {
  const Sizes s = check_inputs(arguments);
  AttentionState state{make_out(arguments, s), Tensor(statistics_dtype(arguments.q.dtype()), statistics_shape(arguments, s))};
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
