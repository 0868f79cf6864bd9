// SPDX-License-Identifier: Apache-2.0
// How the backward pass is cut into tasks and put in order; for checked arguments.
#pragma once

#include "attention/forward.hpp"
#include "kernels/attention/backward.hpp"

namespace heed::front {

/// What the backward pass reads beside the forward's arguments.
struct BackwardInputs {
  const TensorView& dout;  ///< [B, Lq, Hq, Dv]
  const TensorView& out;   ///< [B, Lq, Hq, Dv]
  const TensorView& lse;   ///< [B, Hq, Lq]
};

/// The backward kernel for this call, null where only the reference will do.
[[nodiscard]] const kernels::BackwardKernel* choose_backward(base::Isa isa, DType q, DType dout) noexcept;

/// Checks types and shapes of what the forward gave; names for error texts.
void check_backward_inputs(const Arguments& arguments, const Sizes& sizes, const BackwardInputs& inputs, const char* out_name,
                           const char* lse_name);

/// Checks type, shape and that nothing written overlaps itself or anything read.
void check_gradients(const Arguments& arguments, const BackwardInputs& inputs, const AttentionGradOutputs& gradients);

/// What a state holds, or a view that is not given.
[[nodiscard]] TensorView view_or_none(const Tensor& tensor);

/// Memory for a gradient: the shape, type and order of its argument.
[[nodiscard]] Tensor like(const TensorView& view);

/// Rounds the reference's gradients to those that are asked for.
void round_gradients(const AttentionGrads& exact, const AttentionGradOutputs& gradients);

/// Writes the gradients of these sequences, of at least one token each, by the kernel; dk and dv of keys past a kv_length become 0.
void run_backward(const kernels::BackwardKernel& kernel, const Arguments& arguments, const Sizes& sizes, const BackwardInputs& inputs,
                  const AttentionGradOutputs& gradients, const Sequences& sequences);

}  // namespace heed::front
