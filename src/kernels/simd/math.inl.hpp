// SPDX-License-Identifier: Apache-2.0
// Functions built from the layer's operations. Coefficients: Remez fits in float64, relative error in the comments.

HEED_INLINE Vec neg(Vec a) { return sub(set1(-0.0F), a); }

/// 2^f on [0, 1) as 1 + f * q(f): 2.0e-9 (one degree less would give 8.2e-8, which rounds to more than 2 ulp).
HEED_INLINE Vec exp2_of_fraction(Vec f) {
  Vec p = set1(2.16129149e-04F);
  p = fma(p, f, set1(1.24678464e-03F));
  p = fma(p, f, set1(9.67545157e-03F));
  p = fma(p, f, set1(5.54852806e-02F));
  p = fma(p, f, set1(2.40229306e-01F));
  p = fma(p, f, set1(6.93147044e-01F));
  return fma(p, f, set1(1.0F));
}

/// 2^x to 2 ulp; 2^integer exactly; 0 for -inf and below the normal range; NaN passes.
HEED_INLINE Vec exp2(Vec x) {
  Vec f;
  const Exp2Scale scale = split_exp2(x, f);
  return scale_exp2(exp2_of_fraction(f), scale);
}

/// The same for x < 128, which saves AVX2 two operations of fifteen.
HEED_INLINE Vec exp2_below_128(Vec x) {
  Vec f;
  const Exp2Scale scale = split_exp2_below_128(x, f);
  return scale_exp2(exp2_of_fraction(f), scale);
}

/// Below 0.625 an odd polynomial in x (4.4e-9), above it (1 - e) / (1 + e) with e = exp(-2|x|): the quotient would cancel near 0.
HEED_INLINE Vec tanh(Vec x) {
  const Vec a = abs(x);
  const Vec z = mul(x, x);
  Vec p = set1(-0.00570499F);
  p = fma(p, z, set1(0.02063909F));
  p = fma(p, z, set1(-0.05373972F));
  p = fma(p, z, set1(0.13331442F));
  p = fma(p, z, set1(-0.33333282F));
  const Vec small = fma(mul(p, z), x, x);
  const Vec e = exp2(mul(a, set1(-2.885390082F)));  // 2 / ln 2
  const Vec large = div(sub(set1(1.0F), e), add(set1(1.0F), e));
  const Vec signed_large = select(cmp_lt(x, zero()), neg(large), large);
  return select(cmp_lt(a, set1(0.625F)), small, signed_large);
}

/// |x| < inf; false for NaN.
HEED_INLINE Mask is_finite(Vec x) { return cmp_lt(abs(x), set1(__builtin_inff())); }

/// First n lanes set, n from 0 to kLanes.
HEED_INLINE Mask first_lanes(int n) { return mask_from_bits((std::uint64_t{1} << n) - 1U); }

/// Element i of `p` in every lane.
HEED_INLINE Vec broadcast(const float* p) { return set1(*p); }

/// Upper half of each lane: the bfloat16 nearest to x (ties to even, NaN stays a quiet NaN). Lower half: whatever rounding left there.
HEED_INLINE IVec round_bf16(Vec x) {
  const IVec u = as_int(x);
  const IVec rounded = iadd(u, iadd(iset1(0x7fff), iand(shift_right<16>(u), iset1(1))));
  return as_int(select(cmp_eq(x, x), as_float(rounded), as_float(ior(u, iset1(0x400000)))));
}
/// The halves of bfloat16 pairs as float32, exactly.
HEED_INLINE Vec low_of_pairs(IVec a) { return as_float(shift_left<16>(a)); }
HEED_INLINE Vec high_of_pairs(IVec a) { return as_float(iand(a, iset1(static_cast<std::int32_t>(0xffff0000U)))); }
