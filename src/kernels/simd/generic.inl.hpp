// SPDX-License-Identifier: Apache-2.0
// No intrinsics: 4 lanes of the compilers' vector extension, which fits the baseline of every 64-bit CPU. fma rounds twice here, because
// without an FMA instruction a fused one is a library call of a hundred cycles.

using Vec [[gnu::vector_size(16)]] = float;
using IVec [[gnu::vector_size(16)]] = std::int32_t;
using UVec [[gnu::vector_size(16)]] = std::uint32_t;
using Mask = IVec;  // all-ones lanes
constexpr int kLanes = 4;
/// Register tile of a matrix product: 12 accumulators of the 16 registers that the poorest baseline has.
constexpr int kTileBroadcasts = 2, kTileVectors = 6;

HEED_INLINE Vec zero() { return Vec{}; }
HEED_INLINE Vec set1(float x) { return Vec{x, x, x, x}; }
HEED_INLINE Vec iota() { return Vec{0.0F, 1.0F, 2.0F, 3.0F}; }
HEED_INLINE void keep(Vec&) {}
HEED_INLINE void prefetch(const void* p) { __builtin_prefetch(p); }
HEED_INLINE void prefetch_to_l2(const void* p) { __builtin_prefetch(p, 0, 2); }

HEED_INLINE Vec loadu(const float* p) {
  Vec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
HEED_INLINE Vec load(const float* p) { return loadu(p); }
/// First n elements, the other lanes 0; nothing past them is touched.
HEED_INLINE Vec load_partial(const float* p, int n) {
  Vec x{};
  for (int i = 0; i < n; ++i) x[i] = p[i];
  return x;
}
HEED_INLINE void storeu(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }
HEED_INLINE void store(float* p, Vec x) { storeu(p, x); }
HEED_INLINE void store_partial(float* p, Vec x, int n) {
  for (int i = 0; i < n; ++i) p[i] = x[i];
}

HEED_INLINE Vec add(Vec a, Vec b) { return a + b; }
HEED_INLINE Vec sub(Vec a, Vec b) { return a - b; }
HEED_INLINE Vec mul(Vec a, Vec b) { return a * b; }
HEED_INLINE Vec div(Vec a, Vec b) { return a / b; }
HEED_INLINE Vec fma(Vec a, Vec b, Vec c) { return a * b + c; }
HEED_INLINE Vec fnma(Vec a, Vec b, Vec c) { return c - a * b; }

HEED_INLINE IVec iset1(std::int32_t x) { return IVec{x, x, x, x}; }
HEED_INLINE IVec iadd(IVec a, IVec b) { return (IVec)((UVec)a + (UVec)b); }
HEED_INLINE IVec isub(IVec a, IVec b) { return (IVec)((UVec)a - (UVec)b); }
HEED_INLINE IVec iand(IVec a, IVec b) { return a & b; }
HEED_INLINE IVec ior(IVec a, IVec b) { return a | b; }
template <int N>
HEED_INLINE IVec shift_left(IVec a) {
  return (IVec)((UVec)a << N);
}
template <int N>
HEED_INLINE IVec shift_right(IVec a) {
  return (IVec)((UVec)a >> N);
}  // zeros come in
HEED_INLINE Vec as_float(IVec a) { return (Vec)a; }
HEED_INLINE IVec as_int(Vec a) { return (IVec)a; }
HEED_INLINE Vec to_float(IVec a) { return __builtin_convertvector(a, Vec); }
/// Nearest even for |a| < 2^22: adding 1.5 * 2^23 leaves the integer in the low mantissa bits.
HEED_INLINE IVec to_int(Vec a) {
  const Vec magic = set1(12582912.0F);
  return isub(as_int(a + magic), as_int(magic));
}
HEED_INLINE IVec iload(const void* p) {
  IVec x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
HEED_INLINE void istore(void* p, IVec a) { __builtin_memcpy(p, &a, sizeof a); }
/// kLanes bytes, widened.
HEED_INLINE IVec iload_bytes(const std::uint8_t* p) { return IVec{p[0], p[1], p[2], p[3]}; }
HEED_INLINE IVec iload_bytes(const std::int8_t* p) { return IVec{p[0], p[1], p[2], p[3]}; }
HEED_INLINE std::int32_t join_pair(std::int16_t low, std::int16_t high) {
  return (std::int32_t)((std::uint32_t)(std::uint16_t)high << 16 | (std::uint16_t)low);
}
/// 2 kLanes signed bytes as pairs of 16 bits.
HEED_INLINE IVec load_pairs(const std::int8_t* p) {
  return IVec{join_pair(p[0], p[1]), join_pair(p[2], p[3]), join_pair(p[4], p[5]), join_pair(p[6], p[7])};
}
/// sum + a.low * b.low + a.high * b.high, of signed 16-bit halves.
HEED_INLINE IVec dot_pairs(IVec sum, IVec a, IVec b) {
  const UVec low = (UVec)((IVec)((UVec)a << 16) >> 16) * (UVec)((IVec)((UVec)b << 16) >> 16);
  const UVec high = (UVec)(a >> 16) * (UVec)(b >> 16);
  return (IVec)((UVec)sum + low + high);
}
/// Lanes that fit 16 bits.
HEED_INLINE void store_int16(std::int16_t* p, IVec a) {
  for (int i = 0; i < 4; ++i) p[i] = (std::int16_t)a[i];
}
HEED_INLINE Vec loadu(const std::uint8_t* p) { return to_float(iload_bytes(p)); }
HEED_INLINE Vec loadu(const std::int8_t* p) { return to_float(iload_bytes(p)); }

HEED_INLINE Mask cmp_lt(Vec a, Vec b) { return (Mask)(a < b); }
HEED_INLINE Mask cmp_le(Vec a, Vec b) { return (Mask)(a <= b); }
HEED_INLINE Mask cmp_gt(Vec a, Vec b) { return (Mask)(a > b); }
HEED_INLINE Mask cmp_ge(Vec a, Vec b) { return (Mask)(a >= b); }
HEED_INLINE Mask cmp_eq(Vec a, Vec b) { return (Mask)(a == b); }
HEED_INLINE Mask mask_and(Mask a, Mask b) { return a & b; }
HEED_INLINE Mask mask_or(Mask a, Mask b) { return a | b; }
HEED_INLINE Mask mask_not(Mask a) { return ~a; }
/// Bit i of `bits` for lane i; higher bits are ignored.
HEED_INLINE Mask mask_from_bits(std::uint64_t bits) {
  const IVec lane = {1, 2, 4, 8};
  return (Mask)((iset1(static_cast<std::int32_t>(bits)) & lane) == lane);
}
HEED_INLINE std::uint64_t mask_bits(Mask m) {
  return (m[0] != 0 ? 1U : 0U) | (m[1] != 0 ? 2U : 0U) | (m[2] != 0 ? 4U : 0U) | (m[3] != 0 ? 8U : 0U);
}
HEED_INLINE bool any(Mask m) { return (m[0] | m[1] | m[2] | m[3]) != 0; }
HEED_INLINE bool all(Mask m) { return (m[0] & m[1] & m[2] & m[3]) != 0; }
HEED_INLINE IVec ixor(IVec a, IVec b) { return a ^ b; }
/// Lanes as unsigned numbers.
HEED_INLINE Mask cmp_gt_unsigned(IVec a, IVec b) { return (Mask)((UVec)a > (UVec)b); }
HEED_INLINE std::int32_t low_half(std::uint64_t x) { return static_cast<std::int32_t>(x); }
HEED_INLINE std::int32_t high_half(std::uint64_t x) { return static_cast<std::int32_t>(x >> 32); }
/// 64-bit products of the even lanes, unsigned, each in a pair of lanes.
HEED_INLINE IVec multiply_even(IVec a, IVec b) {
  const UVec x = (UVec)a, y = (UVec)b;
  const std::uint64_t first = std::uint64_t{x[0]} * y[0], second = std::uint64_t{x[2]} * y[2];
  return IVec{low_half(first), high_half(first), low_half(second), high_half(second)};
}
/// Odd lanes, moved to the even places before them.
HEED_INLINE IVec odd_lanes(IVec a) { return IVec{a[1], 0, a[3], 0}; }
/// Even lanes of `even`, and those of `odd` moved to the odd places behind them.
HEED_INLINE IVec join_lanes(IVec even, IVec odd) { return IVec{even[0], odd[0], even[2], odd[2]}; }
/// a where set, else b.
HEED_INLINE Vec select(Mask m, Vec a, Vec b) { return as_float((m & as_int(a)) | (~m & as_int(b))); }
HEED_INLINE Vec min(Vec a, Vec b) { return select(cmp_lt(a, b), a, b); }
HEED_INLINE Vec max(Vec a, Vec b) { return select(cmp_gt(a, b), a, b); }
HEED_INLINE Vec abs(Vec a) { return as_float(as_int(a) & iset1(0x7fffffff)); }

HEED_INLINE Vec loadu(const bfloat16* p) { return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
HEED_INLINE Vec loadu(const float16* p) { return Vec{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
HEED_INLINE Vec load_partial(const bfloat16* p, int n) {
  Vec x{};
  for (int i = 0; i < n; ++i) x[i] = widen(p[i]);
  return x;
}
HEED_INLINE Vec load_partial(const float16* p, int n) {
  Vec x{};
  for (int i = 0; i < n; ++i) x[i] = widen(p[i]);
  return x;
}
HEED_INLINE void store_partial(bfloat16* p, Vec x, int n) {
  for (int i = 0; i < n; ++i) narrow(p + i, x[i]);
}
HEED_INLINE void store_partial(float16* p, Vec x, int n) {
  for (int i = 0; i < n; ++i) narrow(p + i, x[i]);
}
HEED_INLINE void storeu(bfloat16* p, Vec x) { store_partial(p, x, kLanes); }
HEED_INLINE void storeu(float16* p, Vec x) { store_partial(p, x, kLanes); }

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
HEED_INLINE float reduce_max(Vec x) {
  const float a = x[0] > x[2] ? x[0] : x[2];
  const float b = x[1] > x[3] ? x[1] : x[3];
  return a > b ? a : b;
}

/// rows[i] lane j <-> rows[j] lane i.
HEED_INLINE void transpose(Vec (&rows)[kLanes]) {
  const Vec a = rows[0], b = rows[1], c = rows[2], d = rows[3];
  for (int i = 0; i < 4; ++i) rows[i] = Vec{a[i], b[i], c[i], d[i]};
}
/// columns[i] lane j = rows[j][i].
HEED_INLINE void load_columns(const float* const (&rows)[kLanes], Vec (&columns)[kLanes]) {
  for (int i = 0; i < kLanes; ++i) columns[i] = loadu(rows[i]);
  transpose(columns);
}

/// x = floor(x) + f. Clamped so that the scale's exponent field is 0 (the number 0) at the lower end and 255 (infinity) at the upper one;
/// the comparisons let NaN through.
using Exp2Scale = Vec;
HEED_INLINE Exp2Scale split_exp2(Vec x, Vec& f) {
  const Vec below = select(cmp_gt(x, set1(128.0F)), set1(128.0F), x);
  const Vec clamped = select(cmp_lt(below, set1(-127.0F)), set1(-127.0F), below);
  const Vec magic = set1(12582912.0F);
  const Vec nearest = (clamped + magic) - magic;
  const Vec floor = nearest - select(cmp_gt(nearest, clamped), set1(1.0F), zero());
  f = clamped - floor;
  return as_float(shift_left<23>(iadd(to_int(floor), iset1(127))));
}
HEED_INLINE Vec scale_exp2(Vec p, Exp2Scale scale) { return p * scale; }
HEED_INLINE Exp2Scale split_exp2_below_128(Vec x, Vec& f) { return split_exp2(x, f); }

// --- quantised blocks

/// Four float16 in 8 bytes.
HEED_INLINE void widen_four_halves(float* to, const void* halves) {
  for (int i = 0; i < 4; ++i) {
    float16 half;
    __builtin_memcpy(&half, static_cast<const char*>(halves) + 2 * i, 2);
    to[i] = widen(half);
  }
}
/// a + b where set, else a.
HEED_INLINE Vec add_where(Mask m, Vec a, Vec b) { return add(a, as_float(iand(m, as_int(b)))); }
/// scale * q + offset for the 16 values of q.
struct Levels16 {
  Vec scale, offset;
};
HEED_INLINE Levels16 levels16(Vec scale, Vec offset) { return {scale, offset}; }
HEED_INLINE Vec low_level(const Levels16& levels, IVec bytes) { return fma(to_float(iand(bytes, iset1(15))), levels.scale, levels.offset); }
HEED_INLINE Vec high_level(const Levels16& levels, IVec bytes) { return fma(to_float(shift_right<4>(bytes)), levels.scale, levels.offset); }
