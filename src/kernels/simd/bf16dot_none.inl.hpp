// SPDX-License-Identifier: Apache-2.0
// The ISA has no dot product of bfloat16 pairs. The same operations by widening, so that texts compile; kHasBf16Dot tells them not to.

constexpr bool kHasBf16Dot = false;

HEED_INLINE IVec pack_bf16_pairs(Vec low, Vec high) {
  return ior(shift_right<16>(round_bf16(low)), iand(round_bf16(high), iset1(static_cast<std::int32_t>(0xffff0000U))));
}
HEED_INLINE Vec dot_bf16(Vec acc, IVec a, IVec b) {
  return fma(high_of_pairs(a), high_of_pairs(b), fma(low_of_pairs(a), low_of_pairs(b), acc));
}
HEED_INLINE void keep(IVec& x) {
  Vec y = as_float(x);
  keep(y);
  x = as_int(y);
}
