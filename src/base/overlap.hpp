// SPDX-License-Identifier: Apache-2.0
// Proof that writing one view disturbs neither itself nor what is read through another.
#pragma once

#include <heed/tensor.hpp>

namespace heed::base {

/// Never false for views that share a byte; true for odd stride patterns that do not is possible.
[[nodiscard]] bool may_overlap(const TensorView& a, const TensorView& b);

/// Whether two elements may share memory: from the smallest to the largest stride, each must step over everything that the ones before it
/// reach.
[[nodiscard]] bool overlaps_itself(const TensorView& view);

}  // namespace heed::base
