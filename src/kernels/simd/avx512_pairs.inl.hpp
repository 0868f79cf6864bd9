// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit pairs where there is no VNNI.

/// sum + a.low * b.low + a.high * b.high, of signed 16-bit halves.
HEED_INLINE IVec dot_pairs(IVec sum, IVec a, IVec b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
