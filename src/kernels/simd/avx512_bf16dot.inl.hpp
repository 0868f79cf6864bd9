// SPDX-License-Identifier: Apache-2.0
// AVX512-BF16: products of bfloat16 pairs summed into float32 lanes (VDPBF16PS). It flushes subnormals whatever MXCSR says.

constexpr bool kHasBf16Dot = true;

/// acc[i] + a[2i] * b[2i] + a[2i + 1] * b[2i + 1]; a and b hold bfloat16 pairs in 32-bit lanes.
HEED_INLINE Vec dot_bf16(Vec acc, IVec a, IVec b) { return _mm512_dpbf16_ps(acc, (__m512bh)a, (__m512bh)b); }
HEED_INLINE void keep([[maybe_unused]] IVec& x) {
#if !defined(HEED_EMULATE_AVX512)
  asm("" : "+v"(x));
#endif
}
/// Lane i: the pair (low[i], high[i]) rounded to bfloat16, as narrow_bfloat16 rounds.
HEED_INLINE IVec pack_bf16_pairs(Vec low, Vec high) {
  return _mm512_mask_blend_epi16(0xaaaaaaaaU, shift_right<16>(round_bf16(low)), round_bf16(high));
}
