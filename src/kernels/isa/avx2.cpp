// SPDX-License-Identifier: Apache-2.0
// Compiles the text HEED_TEXT for AVX2, FMA and F16C.
#include "kernels/isa/prelude.hpp"

#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace heed::kernels::avx2 {
#include "kernels/simd/scalar.inl.hpp"
#include "kernels/simd/avx2.inl.hpp"
#include "kernels/simd/avx2_fold.inl.hpp"
#include "kernels/simd/math.inl.hpp"
#include "kernels/simd/quantized.inl.hpp"
#include "kernels/simd/bf16dot_none.inl.hpp"
#include HEED_TEXT
}  // namespace heed::kernels::avx2

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
