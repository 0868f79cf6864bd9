// SPDX-License-Identifier: Apache-2.0
// Gradients: the float64 reference, rounded once to the types of the arguments.
#include <heed/attention.hpp>

#include <string>

#include "attention/elements.hpp"
#include "attention/reference.hpp"
#include "base/message.hpp"

namespace heed {
namespace {

void check_state(const front::Arguments& a, const front::Sizes& s, const AttentionState& state) {
  const Shape out = {s.batch, s.q_tokens, s.q_heads, s.value_dim};
  const Shape lse = {s.batch, s.q_heads, s.q_tokens};
  if (state.out.data() == nullptr || state.out.shape() != out) {
    base::throw_invalid(a.function, "state.out", to_string(out), state.out.data() == nullptr ? "none" : to_string(state.out.shape()));
  }
  if (state.lse.data() == nullptr || state.lse.shape() != lse) {
    base::throw_invalid(a.function, "state.lse", to_string(lse), state.lse.data() == nullptr ? "none" : to_string(state.lse.shape()));
  }
}

}  // namespace

AttentionGrads attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                                  const AttentionState& state, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_backward", q, k, v, options};
  const front::Sizes sizes = front::check_inputs(arguments);
  front::check_dout(arguments, sizes, dout);
  check_state(arguments, sizes, state);
  const AttentionGrads exact = front::reference_backward(dout, arguments, sizes);
  AttentionGrads grads{front::rounded_like(exact.dq, q), front::rounded_like(exact.dk, k), front::rounded_like(exact.dv, v), {}, {}};
  if (options.bias) grads.dbias = front::rounded_like(exact.dbias, options.bias);
  if (options.sink_logits) grads.dsink_logits = front::rounded_like(exact.dsink_logits, options.sink_logits);
  return grads;
}

}  // namespace heed
