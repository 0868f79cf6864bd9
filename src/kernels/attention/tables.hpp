// SPDX-License-Identifier: Apache-2.0
// What each ISA offers for attention, by element types.
#pragma once

#include "kernels/attention/forward.hpp"

namespace heed::kernels {

/// Indexed by static_cast<int>(DType) of q, then of kv: float32, bfloat16, float16. Null: this pair has no kernel.
struct WideKernels {
  const WideKernel* by_type[3][3];
};
struct NarrowKernels {
  const NarrowKernel* by_type[3][3];
};

}  // namespace heed::kernels
