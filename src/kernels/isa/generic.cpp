// SPDX-License-Identifier: Apache-2.0
// Compiles the text HEED_TEXT for any CPU.
#include "kernels/isa/prelude.hpp"

namespace heed::kernels::generic {
#include "kernels/simd/scalar.inl.hpp"
#include "kernels/simd/generic.inl.hpp"
#include "kernels/simd/generic_fold.inl.hpp"
#include "kernels/simd/math.inl.hpp"
#include "kernels/simd/quantized.inl.hpp"
#include "kernels/simd/bf16dot_none.inl.hpp"
#include HEED_TEXT
}  // namespace heed::kernels::generic
