// SPDX-License-Identifier: Apache-2.0
// The public backward calls: check, choose a path, run it.
#include "attention/backward.hpp"

#include <string>
#include <utility>

#include "attention/elements.hpp"
#include "attention/reference.hpp"
#include "base/floating_point.hpp"
#include "base/message.hpp"
#include "kernels/registry.hpp"

namespace heed {
namespace front {

const kernels::BackwardKernel* choose_backward(base::Isa isa, DType q, DType dout) noexcept {
  // Sums of products with a float64 dout would not fit float32.
  if (q == DType::kFloat64 || dout == DType::kFloat64) return nullptr;
  return kernels::backward_kernels_of(isa);
}

namespace {

void check_state(const Arguments& a, const char* name, const TensorView& view, DType dtype, const Shape& shape) {
  if (!view) base::throw_invalid(a.function, name, to_string(shape), "none");
  if (view.shape() != shape) base::throw_invalid(a.function, name, to_string(shape), to_string(view.shape()));
  if (view.dtype() != dtype) base::throw_invalid(a.function, name, to_string(dtype), to_string(view.dtype()));
  base::require_memory(a.function, name, view);
}

}  // namespace

void check_backward_inputs(const Arguments& a, const Sizes& s, const BackwardInputs& inputs, const char* out_name, const char* lse_name) {
  check_dout(a, s, inputs.dout);
  check_state(a, out_name, inputs.out, a.q.dtype(), out_shape(a, s));
  check_state(a, lse_name, inputs.lse, statistics_dtype(a.q.dtype()), statistics_shape(a, s));
}

TensorView view_or_none(const Tensor& tensor) { return tensor.data() != nullptr ? tensor.view() : TensorView(); }

Tensor like(const TensorView& view) { return Tensor::with_order_of(view.dtype(), view.shape(), view.strides()); }

void round_gradients(const AttentionGrads& exact, const AttentionGradOutputs& gradients) {
  round_into(gradients.dq, exact.dq);
  round_into(gradients.dk, exact.dk);
  round_into(gradients.dv, exact.dv);
  if (gradients.dbias) round_into(gradients.dbias, exact.dbias);
  if (gradients.dsink_logits) round_into(gradients.dsink_logits, exact.dsink_logits);
}

namespace {

/// For checked arguments.
void run(const Arguments& a, const Sizes& s, const BackwardInputs& inputs, const AttentionGradOutputs& gradients) {
  const kernels::BackwardKernel* kernel = choose_backward(base::active_isa(), a.q.dtype(), inputs.dout.dtype());
  if (kernel == nullptr) return round_gradients(reference_backward(inputs.dout, a, s), gradients);
  if (s.batch == 0 || s.q_tokens == 0) {
    for (const MutableTensorView& gradient : {gradients.dk, gradients.dv, gradients.dbias, gradients.dsink_logits}) fill_zero(gradient);
    return;
  }
  const base::DefaultFloatingPoint environment;
  run_backward(*kernel, a, s, inputs, gradients, Sequences(a, s));
}

MutableTensorView view_if(Tensor& tensor, const TensorView& option) { return option ? tensor.view() : MutableTensorView(); }

}  // namespace
}  // namespace front

AttentionGrads attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                                  const AttentionState& state, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_backward", q, k, v, options};
  const front::Sizes sizes = front::check_inputs(arguments);
  const TensorView out = front::view_or_none(state.out), lse = front::view_or_none(state.lse);
  const front::BackwardInputs inputs{dout, out, lse};
  front::check_backward_inputs(arguments, sizes, inputs, "state.out", "state.lse");
  AttentionGrads grads{front::like(q), front::like(k), front::like(v), {}, {}};
  if (options.bias) grads.dbias = front::like(options.bias);
  if (options.sink_logits) grads.dsink_logits = front::like(options.sink_logits);
  front::run(arguments, sizes, inputs,
             {.dq = grads.dq,
              .dk = grads.dk,
              .dv = grads.dv,
              .dbias = front::view_if(grads.dbias, options.bias),
              .dsink_logits = front::view_if(grads.dsink_logits, options.sink_logits)});
  return grads;
}

void attention_backward_into(const AttentionGradOutputs& gradients, const TensorView& dout, const TensorView& q, const TensorView& k,
                             const TensorView& v, const TensorView& out, const TensorView& lse, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_backward_into", q, k, v, options};
  const front::Sizes sizes = front::check_inputs(arguments);
  const front::BackwardInputs inputs{dout, out, lse};
  front::check_backward_inputs(arguments, sizes, inputs, "out", "lse");
  front::check_gradients(arguments, inputs, gradients);
  front::run(arguments, sizes, inputs, gradients);
}

}  // namespace heed
