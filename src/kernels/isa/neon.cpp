// SPDX-License-Identifier: Apache-2.0
// Compiles the text HEED_TEXT for the AArch64 baseline, which needs no region.
#include "kernels/isa/prelude.hpp"

#include <arm_neon.h>

namespace heed::kernels::neon {
#include "kernels/simd/scalar.inl.hpp"
#include "kernels/simd/neon.inl.hpp"
#include "kernels/simd/neon_fold.inl.hpp"
#include "kernels/simd/math.inl.hpp"
#include "kernels/simd/quantized.inl.hpp"
#include "kernels/simd/bf16dot_none.inl.hpp"
#include HEED_TEXT
}  // namespace heed::kernels::neon
