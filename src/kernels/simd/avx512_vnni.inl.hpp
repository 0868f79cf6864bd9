// SPDX-License-Identifier: Apache-2.0
// Products of 16-bit pairs with VNNI, which every CPU with AVX512-BF16 has.

/// sum + a.low * b.low + a.high * b.high, of signed 16-bit halves.
HEED_INLINE IVec dot_pairs(IVec sum, IVec a, IVec b) { return _mm512_dpwssd_epi32(sum, a, b); }
