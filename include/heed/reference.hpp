// SPDX-License-Identifier: Apache-2.0
// The truth: attention as the formula reads, in float64, one score at a time. Slow, short, and what every kernel is tested against.
#pragma once

#include <heed/attention.hpp>

namespace heed::reference {

/// Same arguments and meaning as heed::attention_state, any floating dtype; inputs are widened exactly, results are float64.
[[nodiscard]] HEED_API AttentionState attention_state(const TensorView& q, const TensorView& k, const TensorView& v,
                                                      const AttentionOptions& options = {});

/// Same as heed::attention_backward with float64 results. Recomputes the forward itself, so it needs no state.
[[nodiscard]] HEED_API AttentionGrads attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                                                         const TensorView& v, const AttentionOptions& options = {});

}  // namespace heed::reference
