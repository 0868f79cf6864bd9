// SPDX-License-Identifier: Apache-2.0
// Between the float64 of the reference and the types and strides of callers.
#pragma once

#include <heed/tensor.hpp>

namespace heed::front {

/// Rounds `source` to the type of `target`, same shape, any strides.
void round_into(const MutableTensorView& target, const TensorView& source);

/// Zeros, any strides; nothing where there is no target.
void fill_zero(const MutableTensorView& target);

/// `source` in the type of `like`, its axes in memory in the order of `like`'s.
[[nodiscard]] Tensor rounded_like(const TensorView& source, const TensorView& like);

}  // namespace heed::front
