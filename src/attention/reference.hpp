// SPDX-License-Identifier: Apache-2.0
// The float64 reference behind checked arguments; also what float64 inputs run through.
#pragma once

#include "attention/arguments.hpp"

namespace heed::front {

/// float64, compact and row-major.
struct ReferenceForward {
  Tensor out, lse, row_max;
};
/// q, k and v have 4 axes; rows of the results that no sequence owns are 0.
[[nodiscard]] ReferenceForward reference_forward(const Arguments& arguments, const Sizes& sizes, const Sequences& sequences);

/// Gradients in float64, compact and row-major. dout is checked by the caller. Rows that no sequence owns are 0.
[[nodiscard]] AttentionGrads reference_backward(const TensorView& dout, const Arguments& arguments, const Sizes& sizes,
                                                const Sequences& sequences);
[[nodiscard]] AttentionGrads reference_backward(const TensorView& dout, const Arguments& arguments, const Sizes& sizes);

/// dout must have the shape of out and a floating type.
void check_dout(const Arguments& arguments, const Sizes& sizes, const TensorView& dout);

}  // namespace heed::front
