// SPDX-License-Identifier: Apache-2.0
// AArch64 baseline: 4 lanes, masks as vectors of all-ones lanes.

using Vec = float32x4_t;
using IVec = int32x4_t;
using Mask = uint32x4_t;
constexpr int kLanes = 4;
/// Register tile of a matrix product: 24 accumulators, 6 vectors and a few broadcasts of 32 registers.
constexpr int kTileBroadcasts = 4, kTileVectors = 6;

HEED_INLINE Vec zero() { return vdupq_n_f32(0.0F); }
HEED_INLINE Vec set1(float x) { return vdupq_n_f32(x); }
HEED_INLINE Vec iota() { return Vec{0.0F, 1.0F, 2.0F, 3.0F}; }
HEED_INLINE void keep(Vec& x) { asm("" : "+w"(x)); }
HEED_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
HEED_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

HEED_INLINE Vec load(const float* p) { return vld1q_f32(p); }
HEED_INLINE Vec loadu(const float* p) { return vld1q_f32(p); }
/// First n elements, the other lanes 0; nothing past them is touched.
HEED_INLINE Vec load_partial(const float* p, int n) {
  float copy[4] = {};
  for (int i = 0; i < n; ++i) copy[i] = p[i];
  return vld1q_f32(copy);
}
HEED_INLINE void store(float* p, Vec x) { vst1q_f32(p, x); }
HEED_INLINE void storeu(float* p, Vec x) { vst1q_f32(p, x); }
HEED_INLINE void store_partial(float* p, Vec x, int n) {
  float copy[4];
  vst1q_f32(copy, x);
  for (int i = 0; i < n; ++i) p[i] = copy[i];
}

HEED_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
HEED_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
HEED_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
HEED_INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
HEED_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
HEED_INLINE Vec fnma(Vec a, Vec b, Vec c) { return vfmsq_f32(c, a, b); }
HEED_INLINE Vec min(Vec a, Vec b) { return vminq_f32(a, b); }
HEED_INLINE Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
HEED_INLINE Vec abs(Vec a) { return vabsq_f32(a); }

HEED_INLINE Mask cmp_lt(Vec a, Vec b) { return vcltq_f32(a, b); }
HEED_INLINE Mask cmp_le(Vec a, Vec b) { return vcleq_f32(a, b); }
HEED_INLINE Mask cmp_gt(Vec a, Vec b) { return vcgtq_f32(a, b); }
HEED_INLINE Mask cmp_ge(Vec a, Vec b) { return vcgeq_f32(a, b); }
HEED_INLINE Mask cmp_eq(Vec a, Vec b) { return vceqq_f32(a, b); }
HEED_INLINE Mask mask_and(Mask a, Mask b) { return vandq_u32(a, b); }
HEED_INLINE Mask mask_or(Mask a, Mask b) { return vorrq_u32(a, b); }
HEED_INLINE Mask mask_not(Mask a) { return vmvnq_u32(a); }
/// Bit i of `bits` for lane i; higher bits are ignored.
HEED_INLINE Mask mask_from_bits(std::uint64_t bits) { return vtstq_u32(vdupq_n_u32(static_cast<std::uint32_t>(bits)), Mask{1, 2, 4, 8}); }
HEED_INLINE std::uint64_t mask_bits(Mask m) { return vaddvq_u32(vandq_u32(m, Mask{1, 2, 4, 8})); }
HEED_INLINE bool any(Mask m) { return vmaxvq_u32(m) != 0; }
HEED_INLINE bool all(Mask m) { return vminvq_u32(m) != 0; }
/// a where set, else b.
HEED_INLINE Vec select(Mask m, Vec a, Vec b) { return vbslq_f32(m, a, b); }

HEED_INLINE IVec iset1(std::int32_t x) { return vdupq_n_s32(x); }
HEED_INLINE IVec iadd(IVec a, IVec b) { return vaddq_s32(a, b); }
HEED_INLINE IVec isub(IVec a, IVec b) { return vsubq_s32(a, b); }
HEED_INLINE IVec iand(IVec a, IVec b) { return vandq_s32(a, b); }
HEED_INLINE IVec ior(IVec a, IVec b) { return vorrq_s32(a, b); }
template <int N>
HEED_INLINE IVec shift_left(IVec a) {
  return vshlq_n_s32(a, N);
}
template <int N>
HEED_INLINE IVec shift_right(IVec a) {  // zeros come in
  return vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a), N));
}
HEED_INLINE IVec ixor(IVec a, IVec b) { return veorq_s32(a, b); }
/// Lanes as unsigned numbers.
HEED_INLINE Mask cmp_gt_unsigned(IVec a, IVec b) { return vcgtq_u32(vreinterpretq_u32_s32(a), vreinterpretq_u32_s32(b)); }
HEED_INLINE uint32x2_t even_lanes(IVec a) { return vmovn_u64(vreinterpretq_u64_s32(a)); }
/// 64-bit products of the even lanes, unsigned, each in a pair of lanes.
HEED_INLINE IVec multiply_even(IVec a, IVec b) { return vreinterpretq_s32_u64(vmull_u32(even_lanes(a), even_lanes(b))); }
/// Odd lanes, moved to the even places before them.
HEED_INLINE IVec odd_lanes(IVec a) { return vreinterpretq_s32_u64(vshrq_n_u64(vreinterpretq_u64_s32(a), 32)); }
/// Even lanes of `even`, and those of `odd` moved to the odd places behind them.
HEED_INLINE IVec join_lanes(IVec even, IVec odd) { return vtrn1q_s32(even, odd); }
HEED_INLINE Vec as_float(IVec a) { return vreinterpretq_f32_s32(a); }
/// 2 kLanes signed bytes as pairs of 16 bits.
HEED_INLINE IVec load_pairs(const std::int8_t* p) { return vreinterpretq_s32_s16(vmovl_s8(vld1_s8(p))); }
/// sum + a.low * b.low + a.high * b.high, of signed 16-bit halves.
HEED_INLINE IVec dot_pairs(IVec sum, IVec a, IVec b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  return vaddq_s32(sum, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
}
/// Lanes that fit 16 bits.
HEED_INLINE void store_int16(std::int16_t* p, IVec a) { vst1_s16(p, vmovn_s32(a)); }
HEED_INLINE IVec as_int(Vec a) { return vreinterpretq_s32_f32(a); }
HEED_INLINE Vec to_float(IVec a) { return vcvtq_f32_s32(a); }
HEED_INLINE IVec to_int(Vec a) { return vcvtnq_s32_f32(a); }  // nearest even
HEED_INLINE IVec iload(const void* p) {
  IVec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
HEED_INLINE void istore(void* p, IVec a) { __builtin_memcpy(p, &a, sizeof a); }
/// kLanes bytes, widened.
HEED_INLINE IVec iload_bytes(const std::uint8_t* p) {
  std::uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(four)))));
}
HEED_INLINE IVec iload_bytes(const std::int8_t* p) {
  std::uint32_t four;
  __builtin_memcpy(&four, p, 4);
  return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(four))));
}
HEED_INLINE Vec loadu(const std::uint8_t* p) { return to_float(iload_bytes(p)); }
HEED_INLINE Vec loadu(const std::int8_t* p) { return to_float(iload_bytes(p)); }

HEED_INLINE uint16x4_t load_4_halves(const void* p) {
  std::uint64_t bits;
  __builtin_memcpy(&bits, p, 8);
  return vcreate_u16(bits);
}
HEED_INLINE void store_4_halves(void* p, uint16x4_t x) { __builtin_memcpy(p, &x, 8); }
HEED_INLINE uint16x4_t load_partial_16bit(const void* p, int n) {
  std::uint16_t copy[4] = {};
  for (int i = 0; i < n; ++i) __builtin_memcpy(copy + i, static_cast<const char*>(p) + 2 * i, 2);
  return load_4_halves(copy);
}
HEED_INLINE void store_partial_16bit(void* p, uint16x4_t x, int n) {
  std::uint16_t copy[4];
  store_4_halves(copy, x);
  for (int i = 0; i < n; ++i) __builtin_memcpy(static_cast<char*>(p) + 2 * i, copy + i, 2);
}
HEED_INLINE IVec round_bf16(Vec x);  // in math.inl.hpp
HEED_INLINE Vec widen_bfloat16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
HEED_INLINE Vec widen_float16(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
HEED_INLINE Vec loadu(const bfloat16* p) { return widen_bfloat16(load_4_halves(p)); }
HEED_INLINE Vec loadu(const float16* p) { return widen_float16(load_4_halves(p)); }
HEED_INLINE Vec load_partial(const bfloat16* p, int n) { return widen_bfloat16(load_partial_16bit(p, n)); }
HEED_INLINE Vec load_partial(const float16* p, int n) { return widen_float16(load_partial_16bit(p, n)); }
HEED_INLINE uint16x4_t narrow_bfloat16(Vec x) { return vmovn_u32(vreinterpretq_u32_s32(shift_right<16>(round_bf16(x)))); }
HEED_INLINE uint16x4_t narrow_float16(Vec x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
HEED_INLINE void storeu(bfloat16* p, Vec x) { store_4_halves(p, narrow_bfloat16(x)); }
HEED_INLINE void storeu(float16* p, Vec x) { store_4_halves(p, narrow_float16(x)); }
HEED_INLINE void store_partial(bfloat16* p, Vec x, int n) { store_partial_16bit(p, narrow_bfloat16(x), n); }
HEED_INLINE void store_partial(float16* p, Vec x, int n) { store_partial_16bit(p, narrow_float16(x), n); }

/// 16 floats by a 4-bit index; higher index bits are ignored.
struct Table16 {
  const float* entries;
};
HEED_INLINE Table16 table16(const float* p) { return {p}; }
HEED_INLINE Vec lookup(Table16 table, IVec index) {
  const float* t = table.entries;
  return Vec{t[index[0] & 15], t[index[1] & 15], t[index[2] & 15], t[index[3] & 15]};
}

/// Sums in a fixed order, the same on every call.
HEED_INLINE float reduce_add(Vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
HEED_INLINE float reduce_max(Vec x) { return vmaxvq_f32(x); }

/// rows[i] lane j <-> rows[j] lane i.
HEED_INLINE void transpose(Vec (&rows)[kLanes]) {
  const float32x4x2_t a = vzipq_f32(rows[0], rows[2]);
  const float32x4x2_t b = vzipq_f32(rows[1], rows[3]);
  const float32x4x2_t c = vzipq_f32(a.val[0], b.val[0]);
  const float32x4x2_t d = vzipq_f32(a.val[1], b.val[1]);
  rows[0] = c.val[0];
  rows[1] = c.val[1];
  rows[2] = d.val[0];
  rows[3] = d.val[1];
}
/// columns[i] lane j = rows[j][i].
HEED_INLINE void load_columns(const float* const (&rows)[kLanes], Vec (&columns)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) columns[i] = loadu(rows[i]);
  transpose(columns);
}

/// x = floor(x) + f. Clamped so that the scale's exponent field is 0 (the number 0) at the lower end and 255 (infinity) at the upper one;
/// FMIN and FMAX pass NaN.
using Exp2Scale = Vec;
HEED_INLINE Exp2Scale split_exp2(Vec x, Vec& f) {
  const Vec clamped = max(set1(-127.0F), min(set1(128.0F), x));
  const Vec floor = vrndmq_f32(clamped);
  f = sub(clamped, floor);
  return as_float(shift_left<23>(iadd(to_int(floor), iset1(127))));
}
HEED_INLINE Vec scale_exp2(Vec p, Exp2Scale scale) { return mul(p, scale); }
HEED_INLINE Exp2Scale split_exp2_below_128(Vec x, Vec& f) { return split_exp2(x, f); }

// --- quantised blocks

/// Four float16 in 8 bytes.
HEED_INLINE void widen_four_halves(float* to, const void* halves) { storeu(to, widen_float16(load_4_halves(halves))); }
/// a + b where set, else a.
HEED_INLINE Vec add_where(Mask m, Vec a, Vec b) { return add(a, select(m, b, zero())); }
/// scale * q + offset for the 16 values of q.
struct Levels16 {
  Vec scale, offset;
};
HEED_INLINE Levels16 levels16(Vec scale, Vec offset) { return {scale, offset}; }
HEED_INLINE Vec low_level(const Levels16& levels, IVec bytes) { return fma(to_float(iand(bytes, iset1(15))), levels.scale, levels.offset); }
HEED_INLINE Vec high_level(const Levels16& levels, IVec bytes) { return fma(to_float(shift_right<4>(bytes)), levels.scale, levels.offset); }
