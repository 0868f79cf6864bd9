// SPDX-License-Identifier: Apache-2.0
// For texts with lanes along a row: the lane sums of many vectors at once, and every second lane apart. AArch64.

/// Lane i: the sum over the lanes of x[i], in the same order for every i.
HEED_INLINE Vec sum_lanes(const Vec (&x)[kLanes]) { return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])); }

/// Of 2 kLanes elements a, b in order: the even ones into a, the odd ones into b. interleave() is the inverse.
HEED_INLINE void deinterleave(Vec& a, Vec& b) {
  const float32x4x2_t pair = vuzpq_f32(a, b);
  a = pair.val[0];
  b = pair.val[1];
}
HEED_INLINE void interleave(Vec& a, Vec& b) {
  const float32x4x2_t pair = vzipq_f32(a, b);
  a = pair.val[0];
  b = pair.val[1];
}
