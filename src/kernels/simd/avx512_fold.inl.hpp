// SPDX-License-Identifier: Apache-2.0
// For texts with lanes along a row: the lane sums of many vectors at once, and every second lane apart. AVX-512.

HEED_INLINE Vec fold_blocks(Vec a, Vec b) { return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd)); }
/// Halves added crosswise: one shuffle and one blend, where two shuffles would compete for the only port that has them.
HEED_INLINE Vec fold_halves(Vec a, Vec b) { return add(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e)); }
HEED_INLINE Vec fold_lanes(Vec a, Vec b) { return add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)); }
/// Lane i: the sum over the lanes of x[i], in the same order for every i. 22 shuffles; transposing first would take 64.
HEED_INLINE Vec sum_lanes(const Vec (&x)[kLanes]) {
  Vec four[4];  // block b of four[l]: four partial sums of x[l + 4 b]
  for (int l = 0; l < 4; ++l) four[l] = fold_blocks(fold_halves(x[l], x[l + 4]), fold_halves(x[l + 8], x[l + 12]));
  const Vec low = fold_lanes(four[0], four[1]), high = fold_lanes(four[2], four[3]);
  return add(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xee));
}

/// Of 2 kLanes elements a, b in order: the even ones into a, the odd ones into b. interleave() is the inverse.
HEED_INLINE void deinterleave(Vec& a, Vec& b) {
  const IVec even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
  const Vec low = _mm512_permutex2var_ps(a, even, b);
  b = _mm512_permutex2var_ps(a, iadd(even, iset1(1)), b);
  a = low;
}
HEED_INLINE void interleave(Vec& a, Vec& b) {
  const IVec first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const Vec low = _mm512_permutex2var_ps(a, first, b);
  b = _mm512_permutex2var_ps(a, iadd(first, iset1(8)), b);
  a = low;
}
