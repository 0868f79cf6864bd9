// SPDX-License-Identifier: Apache-2.0
// Compiles the text HEED_TEXT for AVX-512 F, BW, DQ and VL with VNNI: a variant of the ISA avx512, for a text of integers, whose bits it keeps.
#include "kernels/isa/prelude.hpp"

#if defined(HEED_EMULATE_AVX512)
#include "kernels/isa/emulate_avx512.hpp"
#else
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif
#endif

namespace heed::kernels::avx512vnni {
#include "kernels/simd/scalar.inl.hpp"
#include "kernels/simd/avx512.inl.hpp"
#include "kernels/simd/avx512_fold.inl.hpp"
#include "kernels/simd/avx512_vnni.inl.hpp"
#include "kernels/simd/math.inl.hpp"
#include "kernels/simd/quantized.inl.hpp"
#include "kernels/simd/bf16dot_none.inl.hpp"
#include HEED_TEXT
}  // namespace heed::kernels::avx512vnni

#if !defined(HEED_EMULATE_AVX512)
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
