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
  run_forward(arguments, sizes, outputs, Sequences(arguments, sizes));
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

/// A cache as k and v. Lives as long as the call, which reads views of views.
struct CacheArguments {
  explicit CacheArguments(const KvView& cache) : keys(cache.keys()), values(cache.values()) {
    if (cache.is_contiguous()) return;
    const Shape k = {cache.batch(), cache.length(), cache.kv_heads(), cache.head_dim()};
    const Shape v = {cache.batch(), cache.length(), cache.kv_heads(), cache.value_dim()};
    const DType dtype = cache.stored()->is_quantized() ? DType::kBFloat16 : cache.dtype();  // quantized: as narrow as q may be
    keys = TensorView(static_cast<const void*>(nullptr), dtype, k);
    values = TensorView(static_cast<const void*>(nullptr), dtype, v);
  }
  TensorView keys, values;
};

}  // namespace
}  // namespace front

Tensor attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  return front::run_out({"attention", q, k, v, options});
}

Tensor attention(const TensorView& q, const KvView& cache, const AttentionOptions& options) {
  const front::CacheArguments kv(cache);
  return front::run_out({.function = "attention", .q = q, .k = kv.keys, .v = kv.values, .options = options, .rows = cache.stored()});
}

AttentionState attention_state(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  return front::run_state({"attention_state", q, k, v, options});
}

AttentionState attention_state(const TensorView& q, const KvView& cache, const AttentionOptions& options) {
  const front::CacheArguments kv(cache);
  return front::run_state(
      {.function = "attention_state", .q = q, .k = kv.keys, .v = kv.values, .options = options, .rows = cache.stored()});
}

void attention_into(const AttentionOutputs& outputs, const TensorView& q, const TensorView& k, const TensorView& v,
                    const AttentionOptions& options) {
  front::run_into(outputs, {"attention_into", q, k, v, options});
}

void attention_into(const AttentionOutputs& outputs, const TensorView& q, const KvView& cache, const AttentionOptions& options) {
  const front::CacheArguments kv(cache);
  front::run_into(outputs,
                  {.function = "attention_into", .q = q, .k = kv.keys, .v = kv.values, .options = options, .rows = cache.stored()});
}

}  // namespace heed
