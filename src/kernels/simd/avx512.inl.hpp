// SPDX-License-Identifier: Apache-2.0
// AVX-512 F, BW, DQ, VL: 16 lanes, masks in their own registers.

using Vec = __m512;
using IVec = __m512i;
using Mask = __mmask16;
constexpr int kLanes = 16;
/// Register tile of a matrix product: 24 accumulators, 3 vectors and a few broadcasts of 32 registers.
constexpr int kTileBroadcasts = 8, kTileVectors = 3;

HEED_INLINE Vec zero() { return _mm512_setzero_ps(); }
HEED_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
HEED_INLINE Vec iota() { return _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0); }
/// Keeps a broadcast in a register: GCC would fold it into every FMA that uses it, at one load each.
HEED_INLINE void keep([[maybe_unused]] Vec& x) {
#if !defined(HEED_EMULATE_AVX512)
  asm("" : "+v"(x));
#endif
}
HEED_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
HEED_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

HEED_INLINE __mmask16 low_mask(int n) { return static_cast<__mmask16>((1U << n) - 1U); }
HEED_INLINE Vec load(const float* p) { return _mm512_load_ps(p); }
HEED_INLINE Vec loadu(const float* p) { return _mm512_loadu_ps(p); }
/// First n elements, the other lanes 0; nothing past them is touched.
HEED_INLINE Vec load_partial(const float* p, int n) { return _mm512_maskz_loadu_ps(low_mask(n), p); }
HEED_INLINE void store(float* p, Vec x) { _mm512_store_ps(p, x); }
HEED_INLINE void storeu(float* p, Vec x) { _mm512_storeu_ps(p, x); }
HEED_INLINE void store_partial(float* p, Vec x, int n) { _mm512_mask_storeu_ps(p, low_mask(n), x); }

HEED_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
HEED_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
HEED_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
HEED_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
HEED_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
HEED_INLINE Vec fnma(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
HEED_INLINE Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
HEED_INLINE Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
HEED_INLINE Vec abs(Vec a) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff))); }

HEED_INLINE Mask cmp_lt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
HEED_INLINE Mask cmp_le(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
HEED_INLINE Mask cmp_gt(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
HEED_INLINE Mask cmp_ge(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
HEED_INLINE Mask cmp_eq(Vec a, Vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
HEED_INLINE Mask mask_and(Mask a, Mask b) { return static_cast<Mask>(a & b); }
HEED_INLINE Mask mask_or(Mask a, Mask b) { return static_cast<Mask>(a | b); }
HEED_INLINE Mask mask_not(Mask a) { return static_cast<Mask>(~a); }
/// Bit i of `bits` for lane i; higher bits are ignored.
HEED_INLINE Mask mask_from_bits(std::uint64_t bits) { return static_cast<Mask>(bits); }
HEED_INLINE std::uint64_t mask_bits(Mask m) { return m; }
HEED_INLINE bool any(Mask m) { return m != 0; }
HEED_INLINE bool all(Mask m) { return m == 0xffffU; }
/// a where set, else b.
HEED_INLINE Vec select(Mask m, Vec a, Vec b) { return _mm512_mask_blend_ps(m, b, a); }

HEED_INLINE IVec iset1(std::int32_t x) { return _mm512_set1_epi32(x); }
HEED_INLINE IVec iadd(IVec a, IVec b) { return _mm512_add_epi32(a, b); }
HEED_INLINE IVec isub(IVec a, IVec b) { return _mm512_sub_epi32(a, b); }
HEED_INLINE IVec iand(IVec a, IVec b) { return _mm512_and_si512(a, b); }
HEED_INLINE IVec ior(IVec a, IVec b) { return _mm512_or_si512(a, b); }
template <int N>
HEED_INLINE IVec shift_left(IVec a) {
  return _mm512_slli_epi32(a, N);
}
template <int N>
HEED_INLINE IVec shift_right(IVec a) {
  return _mm512_srli_epi32(a, N);
}  // zeros come in
HEED_INLINE IVec ixor(IVec a, IVec b) { return _mm512_xor_si512(a, b); }
/// Lanes as unsigned numbers.
HEED_INLINE Mask cmp_gt_unsigned(IVec a, IVec b) { return _mm512_cmp_epu32_mask(a, b, 6); }
/// 64-bit products of the even lanes, unsigned, each in a pair of lanes.
HEED_INLINE IVec multiply_even(IVec a, IVec b) { return _mm512_mul_epu32(a, b); }
/// Odd lanes, moved to the even places before them.
HEED_INLINE IVec odd_lanes(IVec a) { return _mm512_srli_epi64(a, 32); }
/// Even lanes of `even`, and those of `odd` moved to the odd places behind them.
HEED_INLINE IVec join_lanes(IVec even, IVec odd) { return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32)); }
HEED_INLINE Vec as_float(IVec a) { return _mm512_castsi512_ps(a); }
HEED_INLINE IVec as_int(Vec a) { return _mm512_castps_si512(a); }
HEED_INLINE Vec to_float(IVec a) { return _mm512_cvtepi32_ps(a); }
HEED_INLINE IVec to_int(Vec a) { return _mm512_cvtps_epi32(a); }  // nearest even
HEED_INLINE IVec iload(const void* p) { return _mm512_loadu_si512(p); }
HEED_INLINE void istore(void* p, IVec a) { _mm512_storeu_si512(p, a); }
HEED_INLINE __m128i load_16_bytes(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
HEED_INLINE __m256i load_32_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
/// kLanes bytes, widened.
HEED_INLINE IVec iload_bytes(const std::uint8_t* p) { return _mm512_cvtepu8_epi32(load_16_bytes(p)); }
HEED_INLINE IVec iload_bytes(const std::int8_t* p) { return _mm512_cvtepi8_epi32(load_16_bytes(p)); }
/// 2 kLanes signed bytes as pairs of 16 bits.
HEED_INLINE IVec load_pairs(const std::int8_t* p) { return _mm512_cvtepi8_epi16(load_32_bytes(p)); }
/// Lanes that fit 16 bits.
HEED_INLINE void store_int16(std::int16_t* p, IVec a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a)); }
HEED_INLINE Vec loadu(const std::uint8_t* p) { return to_float(iload_bytes(p)); }
HEED_INLINE Vec loadu(const std::int8_t* p) { return to_float(iload_bytes(p)); }

HEED_INLINE IVec round_bf16(Vec x);  // in math.inl.hpp
HEED_INLINE Vec widen_bfloat16(__m256i x) { return as_float(shift_left<16>(_mm512_cvtepu16_epi32(x))); }
HEED_INLINE Vec loadu(const bfloat16* p) { return widen_bfloat16(load_32_bytes(p)); }
HEED_INLINE Vec loadu(const float16* p) { return _mm512_cvtph_ps(load_32_bytes(p)); }
HEED_INLINE Vec load_partial(const bfloat16* p, int n) { return widen_bfloat16(_mm256_maskz_loadu_epi16(low_mask(n), p)); }
HEED_INLINE Vec load_partial(const float16* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(low_mask(n), p)); }
HEED_INLINE __m256i narrow_bfloat16(Vec x) { return _mm512_cvtepi32_epi16(shift_right<16>(round_bf16(x))); }
HEED_INLINE __m256i narrow_float16(Vec x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
HEED_INLINE void storeu(bfloat16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bfloat16(x)); }
HEED_INLINE void storeu(float16* p, Vec x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_float16(x)); }
HEED_INLINE void store_partial(bfloat16* p, Vec x, int n) { _mm256_mask_storeu_epi16(p, low_mask(n), narrow_bfloat16(x)); }
HEED_INLINE void store_partial(float16* p, Vec x, int n) { _mm256_mask_storeu_epi16(p, low_mask(n), narrow_float16(x)); }

/// 16 floats by a 4-bit index; higher index bits are ignored, so a byte's low nibble needs no masking.
using Table16 = Vec;
HEED_INLINE Table16 table16(const float* p) { return loadu(p); }
HEED_INLINE Vec lookup(Table16 table, IVec index) { return _mm512_permutexvar_ps(index, table); }

/// Sums in a fixed order (halves, halves of halves, ...), the same on every call.
HEED_INLINE float reduce_add(Vec x) {
  x = add(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = add(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = add(x, _mm512_shuffle_ps(x, x, 0x4e));
  x = add(x, _mm512_shuffle_ps(x, x, 0xb1));
  return _mm_cvtss_f32(_mm512_castps512_ps128(x));
}
HEED_INLINE float reduce_max(Vec x) {
  x = max(x, _mm512_shuffle_f32x4(x, x, 0x4e));
  x = max(x, _mm512_shuffle_f32x4(x, x, 0xb1));
  x = max(x, _mm512_shuffle_ps(x, x, 0x4e));
  x = max(x, _mm512_shuffle_ps(x, x, 0xb1));
  return _mm_cvtss_f32(_mm512_castps512_ps128(x));
}

HEED_INLINE void transpose_4x4_lanes(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec p = _mm512_unpacklo_ps(a, b), q = _mm512_unpackhi_ps(a, b);
  const Vec r = _mm512_unpacklo_ps(c, d), s = _mm512_unpackhi_ps(c, d);
  a = _mm512_shuffle_ps(p, r, 0x44);
  b = _mm512_shuffle_ps(p, r, 0xee);
  c = _mm512_shuffle_ps(q, s, 0x44);
  d = _mm512_shuffle_ps(q, s, 0xee);
}
/// 4x4 blocks of 4 lanes.
HEED_INLINE void transpose_blocks(Vec& a, Vec& b, Vec& c, Vec& d) {
  const Vec p = _mm512_shuffle_f32x4(a, b, 0x88), q = _mm512_shuffle_f32x4(a, b, 0xdd);
  const Vec r = _mm512_shuffle_f32x4(c, d, 0x88), s = _mm512_shuffle_f32x4(c, d, 0xdd);
  a = _mm512_shuffle_f32x4(p, r, 0x88);
  b = _mm512_shuffle_f32x4(q, s, 0x88);
  c = _mm512_shuffle_f32x4(p, r, 0xdd);
  d = _mm512_shuffle_f32x4(q, s, 0xdd);
}
/// rows[i] lane j <-> rows[j] lane i.
HEED_INLINE void transpose(Vec (&rows)[kLanes]) {
  for (int i = 0; i < 16; i += 4) transpose_4x4_lanes(rows[i], rows[i + 1], rows[i + 2], rows[i + 3]);
  for (int i = 0; i < 4; ++i) transpose_blocks(rows[i], rows[i + 4], rows[i + 8], rows[i + 12]);
}
HEED_INLINE Vec load_4x4(const float* a, const float* b, const float* c, const float* d) {
  Vec x = _mm512_castps128_ps512(_mm_loadu_ps(a));
  x = _mm512_mask_broadcast_f32x4(x, 0x00f0, _mm_loadu_ps(b));
  x = _mm512_mask_broadcast_f32x4(x, 0x0f00, _mm_loadu_ps(c));
  return _mm512_mask_broadcast_f32x4(x, 0xf000, _mm_loadu_ps(d));
}
/// columns[i] lane j = rows[j][i]. Half as many shuffles as loading and transposing, whose one port they wait for.
HEED_INLINE void load_columns(const float* const (&rows)[kLanes], Vec (&columns)[kLanes]) {
  HEED_UNROLL
  for (int i = 0; i < 4; ++i) {  // four row pointers at a time: sixteen do not fit into the registers
    HEED_UNROLL
    for (int q = 0; q < 16; q += 4) columns[q + i] = load_4x4(rows[i] + q, rows[4 + i] + q, rows[8 + i] + q, rows[12 + i] + q);
  }
  for (int q = 0; q < 16; q += 4) transpose_4x4_lanes(columns[q], columns[q + 1], columns[q + 2], columns[q + 3]);
}

/// x = floor(x) + f; VREDUCEPS gives f = 0 for infinities, VSCALEFPS underflows to 0 and passes NaN.
using Exp2Scale = Vec;
HEED_INLINE Exp2Scale split_exp2(Vec x, Vec& f) {
  f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  return x;
}
HEED_INLINE Vec scale_exp2(Vec p, Exp2Scale x) { return _mm512_scalef_ps(p, x); }
HEED_INLINE Exp2Scale split_exp2_below_128(Vec x, Vec& f) { return split_exp2(x, f); }

// --- quantised blocks

/// Four float16 in 8 bytes.
HEED_INLINE void widen_four_halves(float* to, const void* halves) {
  _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64(static_cast<const __m128i*>(halves))));
}
/// a + b where set, else a.
HEED_INLINE Vec add_where(Mask m, Vec a, Vec b) { return _mm512_mask_add_ps(a, m, a, b); }
/// scale * q + offset for the 16 values of q, as a table: a nibble then costs one permutation, which ignores the upper index bits.
struct Levels16 {
  Vec table;
};
HEED_INLINE Levels16 levels16(Vec scale, Vec offset) { return {fma(iota(), scale, offset)}; }
HEED_INLINE Vec low_level(const Levels16& levels, IVec bytes) { return _mm512_permutexvar_ps(bytes, levels.table); }
HEED_INLINE Vec high_level(const Levels16& levels, IVec bytes) { return _mm512_permutexvar_ps(shift_right<4>(bytes), levels.table); }
