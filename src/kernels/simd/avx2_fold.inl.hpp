// SPDX-License-Identifier: Apache-2.0
// For texts with lanes along a row: the lane sums of many vectors at once, and every second lane apart. AVX2.

HEED_INLINE Vec fold_halves(Vec a, Vec b) { return add(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31)); }
HEED_INLINE Vec fold_lanes(Vec a, Vec b) { return add(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)); }
/// Lane i: the sum over the lanes of x[i], in the same order for every i.
HEED_INLINE Vec sum_lanes(const Vec (&x)[kLanes]) {
  const Vec low = fold_lanes(fold_halves(x[0], x[4]), fold_halves(x[1], x[5]));
  const Vec high = fold_lanes(fold_halves(x[2], x[6]), fold_halves(x[3], x[7]));
  return add(_mm256_shuffle_ps(low, high, 0x44), _mm256_shuffle_ps(low, high, 0xee));
}

/// Of 2 kLanes elements a, b in order: the even ones into a, the odd ones into b. interleave() is the inverse.
HEED_INLINE Vec middle_swapped(Vec x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); }
HEED_INLINE void deinterleave(Vec& a, Vec& b) {
  const Vec even = middle_swapped(_mm256_shuffle_ps(a, b, 0x88));
  b = middle_swapped(_mm256_shuffle_ps(a, b, 0xdd));
  a = even;
}
HEED_INLINE void interleave(Vec& a, Vec& b) {
  const Vec low = _mm256_unpacklo_ps(a, b), high = _mm256_unpackhi_ps(a, b);
  a = _mm256_permute2f128_ps(low, high, 0x20);
  b = _mm256_permute2f128_ps(low, high, 0x31);
}
