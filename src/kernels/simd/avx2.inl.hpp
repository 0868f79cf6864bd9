// SPDX-License-Identifier: Apache-2.0
// AVX2, FMA and F16C: 8 lanes, masks as vectors of all-ones lanes.

using Vec = __m256;
using IVec = __m256i;
using Mask = __m256i;
constexpr int kLanes = 8;
/// Register tile of a matrix product: 12 accumulators, 3 vectors and a broadcast of 16 registers.
constexpr int kTileBroadcasts = 4, kTileVectors = 3;

HEED_INLINE Vec zero() { return _mm256_setzero_ps(); }
HEED_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
HEED_INLINE Vec iota() { return _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0); }
/// Keeps a broadcast in a register, so that it is loaded once for all FMAs that use it.
HEED_INLINE void keep(Vec& x) { asm("" : "+x"(x)); }
HEED_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
HEED_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

HEED_INLINE IVec iset1(std::int32_t x) { return _mm256_set1_epi32(x); }
HEED_INLINE IVec iadd(IVec a, IVec b) { return _mm256_add_epi32(a, b); }
HEED_INLINE IVec isub(IVec a, IVec b) { return _mm256_sub_epi32(a, b); }
HEED_INLINE IVec iand(IVec a, IVec b) { return _mm256_and_si256(a, b); }
HEED_INLINE IVec ior(IVec a, IVec b) { return _mm256_or_si256(a, b); }
template <int N>
HEED_INLINE IVec shift_left(IVec a) {
  return _mm256_slli_epi32(a, N);
}
template <int N>
HEED_INLINE IVec shift_right(IVec a) {
  return _mm256_srli_epi32(a, N);
}  // zeros come in
HEED_INLINE Vec as_float(IVec a) { return _mm256_castsi256_ps(a); }
HEED_INLINE IVec as_int(Vec a) { return _mm256_castps_si256(a); }
HEED_INLINE Vec to_float(IVec a) { return _mm256_cvtepi32_ps(a); }
HEED_INLINE IVec to_int(Vec a) { return _mm256_cvtps_epi32(a); }  // nearest even
HEED_INLINE IVec iload(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
HEED_INLINE void istore(void* p, IVec a) { _mm256_storeu_si256(static_cast<__m256i*>(p), a); }
HEED_INLINE __m128i load_8_bytes(const void* p) { return _mm_loadl_epi64(static_cast<const __m128i*>(p)); }
HEED_INLINE __m128i load_16_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
/// kLanes bytes, widened.
HEED_INLINE IVec iload_bytes(const std::uint8_t* p) { return _mm256_cvtepu8_epi32(load_8_bytes(p)); }
HEED_INLINE IVec iload_bytes(const std::int8_t* p) { return _mm256_cvtepi8_epi32(load_8_bytes(p)); }
/// 2 kLanes signed bytes as pairs of 16 bits.
HEED_INLINE IVec load_pairs(const std::int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
/// sum + a.low * b.low + a.high * b.high, of signed 16-bit halves.
HEED_INLINE IVec dot_pairs(IVec sum, IVec a, IVec b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
/// Lanes that fit 16 bits.
HEED_INLINE void store_int16(std::int16_t* p, IVec a) {
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, a), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

HEED_INLINE IVec low_mask(int n) { return _mm256_cmpgt_epi32(iset1(n), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)); }
HEED_INLINE Vec load(const float* p) { return _mm256_load_ps(p); }
HEED_INLINE Vec loadu(const float* p) { return _mm256_loadu_ps(p); }
HEED_INLINE Vec loadu(const std::uint8_t* p) { return to_float(iload_bytes(p)); }
HEED_INLINE Vec loadu(const std::int8_t* p) { return to_float(iload_bytes(p)); }
/// First n elements, the other lanes 0; nothing past them is touched.
HEED_INLINE Vec load_partial(const float* p, int n) { return _mm256_maskload_ps(p, low_mask(n)); }
HEED_INLINE void store(float* p, Vec x) { _mm256_store_ps(p, x); }
HEED_INLINE void storeu(float* p, Vec x) { _mm256_storeu_ps(p, x); }
HEED_INLINE void store_partial(float* p, Vec x, int n) { _mm256_maskstore_ps(p, low_mask(n), x); }

HEED_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
HEED_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
HEED_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
HEED_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
HEED_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
HEED_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
HEED_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
HEED_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
HEED_INLINE Vec abs(Vec a) { return as_float(iand(as_int(a), iset1(0x7fffffff))); }

HEED_INLINE Mask cmp_lt(Vec a, Vec b) { return as_int(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
HEED_INLINE Mask cmp_le(Vec a, Vec b) { return as_int(_mm256_cmp_ps(a, b, _CMP_LE_OQ)); }
HEED_INLINE Mask cmp_gt(Vec a, Vec b) { return as_int(_mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
HEED_INLINE Mask cmp_ge(Vec a, Vec b) { return as_int(_mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
HEED_INLINE Mask cmp_eq(Vec a, Vec b) { return as_int(_mm256_cmp_ps(a, b, _CMP_EQ_OQ)); }
HEED_INLINE Mask mask_and(Mask a, Mask b) { return iand(a, b); }
HEED_INLINE Mask mask_or(Mask a, Mask b) { return ior(a, b); }
HEED_INLINE Mask mask_not(Mask a) { return _mm256_xor_si256(a, iset1(-1)); }
/// Bit i of `bits` for lane i; higher bits are ignored.
HEED_INLINE Mask mask_from_bits(std::uint64_t bits) {
  const IVec lane = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
  return _mm256_cmpeq_epi32(iand(iset1(static_cast<std::int32_t>(bits)), lane), lane);
}
HEED_INLINE std::uint64_t mask_bits(Mask m) { return static_cast<std::uint64_t>(_mm256_movemask_ps(as_float(m))); }
HEED_INLINE bool any(Mask m) { return _mm256_movemask_ps(as_float(m)) != 0; }
HEED_INLINE bool all(Mask m) { return _mm256_movemask_ps(as_float(m)) == 0xff; }
HEED_INLINE IVec ixor(IVec a, IVec b) { return _mm256_xor_si256(a, b); }
/// Lanes as unsigned numbers.
HEED_INLINE Mask cmp_gt_unsigned(IVec a, IVec b) {
  const IVec sign = iset1(INT32_MIN);
  return _mm256_cmpgt_epi32(ixor(a, sign), ixor(b, sign));
}
/// 64-bit products of the even lanes, unsigned, each in a pair of lanes.
HEED_INLINE IVec multiply_even(IVec a, IVec b) { return _mm256_mul_epu32(a, b); }
/// Odd lanes, moved to the even places before them.
HEED_INLINE IVec odd_lanes(IVec a) { return _mm256_srli_epi64(a, 32); }
/// Even lanes of `even`, and those of `odd` moved to the odd places behind them.
HEED_INLINE IVec join_lanes(IVec even, IVec odd) { return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa); }
/// a where set, else b.
HEED_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm256_blendv_ps(b, a, as_float(m)); }

HEED_INLINE IVec round_bf16(Vec x);  // in math.inl.hpp
HEED_INLINE Vec widen_bfloat16(__m128i x) { return as_float(shift_left<16>(_mm256_cvtepu16_epi32(x))); }
HEED_INLINE __m128i load_partial_16bit(const void* p, int n) {
  alignas(16) std::uint16_t copy[8] = {};
  for (int i = 0; i < n; ++i) __builtin_memcpy(copy + i, static_cast<const char*>(p) + 2 * i, 2);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(copy));
}
HEED_INLINE void store_partial_16bit(void* p, __m128i x, int n) {
  alignas(16) std::uint16_t copy[8];
  _mm_store_si128(reinterpret_cast<__m128i*>(copy), x);
  for (int i = 0; i < n; ++i) __builtin_memcpy(static_cast<char*>(p) + 2 * i, copy + i, 2);
}
HEED_INLINE Vec loadu(const bfloat16* p) { return widen_bfloat16(load_16_bytes(p)); }
HEED_INLINE Vec loadu(const float16* p) { return _mm256_cvtph_ps(load_16_bytes(p)); }
HEED_INLINE Vec load_partial(const bfloat16* p, int n) { return widen_bfloat16(load_partial_16bit(p, n)); }
HEED_INLINE Vec load_partial(const float16* p, int n) { return _mm256_cvtph_ps(load_partial_16bit(p, n)); }
HEED_INLINE __m128i narrow_bfloat16(Vec x) {
  const IVec high = shift_right<16>(round_bf16(x));
  return _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
}
HEED_INLINE __m128i narrow_float16(Vec x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HEED_INLINE void storeu(bfloat16* p, Vec x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bfloat16(x)); }
HEED_INLINE void storeu(float16* p, Vec x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_float16(x)); }
HEED_INLINE void store_partial(bfloat16* p, Vec x, int n) { store_partial_16bit(p, narrow_bfloat16(x), n); }
HEED_INLINE void store_partial(float16* p, Vec x, int n) { store_partial_16bit(p, narrow_float16(x), n); }

/// 16 floats by a 4-bit index; higher index bits are ignored.
struct Table16 {
  Vec low, high;
};
HEED_INLINE Table16 table16(const float* p) { return {loadu(p), loadu(p + 8)}; }
HEED_INLINE Vec lookup(Table16 table, IVec index) {
  const Vec low = _mm256_permutevar8x32_ps(table.low, index);  // uses index bits 0 to 2
  const Vec high = _mm256_permutevar8x32_ps(table.high, index);
  return _mm256_blendv_ps(low, high, as_float(shift_left<28>(index)));  // bit 3 becomes the sign
}

/// Sums in a fixed order (halves, halves of halves, ...), the same on every call.
HEED_INLINE float reduce_add(Vec x) {
  __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_add_ps(y, _mm_shuffle_ps(y, y, 0x4e));
  y = _mm_add_ps(y, _mm_shuffle_ps(y, y, 0xb1));
  return _mm_cvtss_f32(y);
}
HEED_INLINE float reduce_max(Vec x) {
  __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  y = _mm_max_ps(y, _mm_shuffle_ps(y, y, 0x4e));
  y = _mm_max_ps(y, _mm_shuffle_ps(y, y, 0xb1));
  return _mm_cvtss_f32(y);
}

HEED_INLINE void transpose_4x4_lanes(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec p = _mm256_unpacklo_ps(a, b), q = _mm256_unpackhi_ps(a, b);
  const Vec r = _mm256_unpacklo_ps(c, d), s = _mm256_unpackhi_ps(c, d);
  a = _mm256_shuffle_ps(p, r, 0x44);
  b = _mm256_shuffle_ps(p, r, 0xee);
  c = _mm256_shuffle_ps(q, s, 0x44);
  d = _mm256_shuffle_ps(q, s, 0xee);
}
/// rows[i] lane j <-> rows[j] lane i.
HEED_INLINE void transpose(Vec (&rows)[kLanes]) {
  transpose_4x4_lanes(rows[0], rows[1], rows[2], rows[3]);
  transpose_4x4_lanes(rows[4], rows[5], rows[6], rows[7]);
  for (int i = 0; i < 4; ++i) {
    const Vec low = rows[i], high = rows[i + 4];
    rows[i] = _mm256_permute2f128_ps(low, high, 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(low, high, 0x31);
  }
}
/// columns[i] lane j = rows[j][i]. Fewer shuffles than loading and transposing, whose one port they wait for.
HEED_INLINE void load_columns(const float* const (&rows)[kLanes], Vec (&columns)[kLanes]) {
  for (int q = 0; q < 8; q += 4) {
    for (int i = 0; i < 4; ++i) {
      columns[q + i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows[i] + q)), _mm_loadu_ps(rows[4 + i] + q), 1);
    }
    transpose_4x4_lanes(columns[q], columns[q + 1], columns[q + 2], columns[q + 3]);
  }
}

/// x = floor(x) + f. Clamped so that the scale's exponent field is 0 (the number 0) at the lower end and 255 (infinity) at the upper one;
/// the operand order lets NaN through.
using Exp2Scale = Vec;
HEED_INLINE Exp2Scale split_exp2(Vec x, Vec& f) {
  const Vec clamped = _mm256_max_ps(set1(-127.0F), _mm256_min_ps(set1(128.0F), x));
  const Vec floor = _mm256_floor_ps(clamped);
  f = sub(clamped, floor);
  return as_float(shift_left<23>(iadd(to_int(floor), iset1(127))));
}
HEED_INLINE Vec scale_exp2(Vec p, Exp2Scale scale) { return mul(p, scale); }
/// Added to 1.5 * 2^23, floor + 127 lands in the lowest bits, ready to become the exponent.
HEED_INLINE Exp2Scale split_exp2_below_128(Vec x, Vec& f) {
  const Vec clamped = _mm256_max_ps(set1(-127.0F), x);
  const Vec floor = _mm256_floor_ps(clamped);
  f = sub(clamped, floor);
  return as_float(shift_left<23>(as_int(add(floor, set1(12582912.0F + 127.0F)))));
}

// --- quantised blocks

/// Four float16 in 8 bytes.
HEED_INLINE void widen_four_halves(float* to, const void* halves) {
  _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64(static_cast<const __m128i*>(halves))));
}
/// a + b where set, else a.
HEED_INLINE Vec add_where(Mask m, Vec a, Vec b) { return add(a, _mm256_and_ps(as_float(m), b)); }
/// scale * q + offset for the 16 values of q.
struct Levels16 {
  Vec scale, offset;
};
HEED_INLINE Levels16 levels16(Vec scale, Vec offset) { return {scale, offset}; }
HEED_INLINE Vec low_level(const Levels16& levels, IVec bytes) { return fma(to_float(iand(bytes, iset1(15))), levels.scale, levels.offset); }
HEED_INLINE Vec high_level(const Levels16& levels, IVec bytes) { return fma(to_float(shift_right<4>(bytes)), levels.scale, levels.offset); }
