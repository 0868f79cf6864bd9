// SPDX-License-Identifier: Apache-2.0
// One element at a time: half-type conversions by bits, for tails and for the ISAs that lack instructions. First text of every
// region; written again here because the inline members of heed::bfloat16 would be shared between ISAs by the linker.

HEED_INLINE std::uint32_t float_bits(float x) { return __builtin_bit_cast(std::uint32_t, x); }
HEED_INLINE float float_from_bits(std::uint32_t bits) { return __builtin_bit_cast(float, bits); }

HEED_INLINE float widen(float x) { return x; }
HEED_INLINE float widen(bfloat16 x) { return float_from_bits(std::uint32_t{x.bits} << 16); }
/// binary16 without a branch: the exponent is rebased by a multiplication, which also normalises subnormals.
HEED_INLINE float widen(float16 x) {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16;
  const std::uint32_t magnitude = (x.bits & 0x7fffU) << 13;
  const bool special = magnitude >= (0x7c00U << 13);
  const float finite = float_from_bits(magnitude) * 0x1p112F;
  const std::uint32_t infinite_or_nan = magnitude | 0x7f800000U | ((magnitude & 0x007fffffU) != 0 ? 0x00400000U : 0U);
  return float_from_bits(sign | (special ? infinite_or_nan : float_bits(finite)));
}

/// Nearest, ties to even; a NaN stays a quiet NaN.
HEED_INLINE std::uint16_t bfloat16_bits(float x) {
  const std::uint32_t u = float_bits(x);
  const std::uint32_t rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
  return static_cast<std::uint16_t>(is_nan ? ((u >> 16) | 0x40U) : rounded);
}

/// Subnormal results come from adding a power of two whose last place is 2^-24, so the FPU does the rounding.
HEED_INLINE std::uint16_t float16_bits(float x) {
  const std::uint32_t u = float_bits(x);
  const std::uint32_t sign = (u >> 16) & 0x8000U;
  const std::uint32_t magnitude = u & 0x7fffffffU;
  std::uint32_t result = 0;
  if (magnitude > 0x7f800000U) {
    result = 0x7e00U | ((magnitude >> 13) & 0x3ffU);
  } else if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    result = 0x7c00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14
    result = float_bits(float_from_bits(magnitude) + 0.5F) - float_bits(0.5F);
  } else {
    result = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  }
  return static_cast<std::uint16_t>(sign | result);
}

HEED_INLINE void narrow(float* to, float x) { *to = x; }
HEED_INLINE void narrow(bfloat16* to, float x) { to->bits = bfloat16_bits(x); }
HEED_INLINE void narrow(float16* to, float x) { to->bits = float16_bits(x); }
