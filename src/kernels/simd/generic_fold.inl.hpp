// SPDX-License-Identifier: Apache-2.0
// For texts with lanes along a row: the lane sums of many vectors at once, and every second lane apart. Any CPU.

/// Lane i: the sum over the lanes of x[i], in the same order for every i.
HEED_INLINE Vec sum_lanes(const Vec (&x)[kLanes]) {
  Vec rows[kLanes] = {x[0], x[1], x[2], x[3]};
  transpose(rows);
  return (rows[0] + rows[2]) + (rows[1] + rows[3]);
}

/// Of 2 kLanes elements a, b in order: the even ones into a, the odd ones into b. interleave() is the inverse.
HEED_INLINE void deinterleave(Vec& a, Vec& b) {
  const Vec even = {a[0], a[2], b[0], b[2]}, odd = {a[1], a[3], b[1], b[3]};
  a = even;
  b = odd;
}
HEED_INLINE void interleave(Vec& a, Vec& b) {
  const Vec low = {a[0], b[0], a[1], b[1]}, high = {a[2], b[2], a[3], b[3]};
  a = low;
  b = high;
}
