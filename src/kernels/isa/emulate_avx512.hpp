// SPDX-License-Identifier: Apache-2.0
// AVX-512 by portable C through SIMDe, to test the texts on machines without it; and the few intrinsics that SIMDe 0.8.2 lacks.
#pragma once

#include "kernels/isa/prelude.hpp"

#include <cmath>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/avx512/dpbf16.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

namespace heed::kernels::emulated {

template <class To, class From>
HEED_INLINE To bits_of(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}
struct Floats16 {
  float x[16];
};
struct Ints16 {
  std::int32_t x[16];
};
struct Shorts16 {
  std::uint16_t x[16];
};
struct Bytes16 {
  std::uint8_t x[16];
};

/// Only the rounding that the layer asks for: towards minus infinity, 0 for infinities.
HEED_INLINE __m512 reduce_ps(__m512 a) {
  auto f = bits_of<Floats16>(a);
  for (float& x : f.x) x = std::isinf(x) ? 0.0F : x - std::floor(x);
  return bits_of<__m512>(f);
}
HEED_INLINE __m512i widen_unsigned_bytes(__m128i a) {
  const auto b = bits_of<Bytes16>(a);
  Ints16 r;
  for (int i = 0; i < 16; ++i) r.x[i] = b.x[i];
  return bits_of<__m512i>(r);
}
HEED_INLINE __m512i widen_signed_bytes(__m128i a) {
  const auto b = bits_of<Bytes16>(a);
  Ints16 r;
  for (int i = 0; i < 16; ++i) r.x[i] = static_cast<std::int8_t>(b.x[i]);
  return bits_of<__m512i>(r);
}
HEED_INLINE __m256i low_words(__m512i a) {
  const auto b = bits_of<Ints16>(a);
  Shorts16 r;
  for (int i = 0; i < 16; ++i) r.x[i] = static_cast<std::uint16_t>(b.x[i]);
  return bits_of<__m256i>(r);
}
/// Two 256-bit halves, which SIMDe has.
HEED_INLINE __m256i narrow_to_half(__m512 a) {
  struct Halves256 {
    __m256 x[2];
  };
  struct Halves128 {
    __m128i x[2];
  };
  const auto halves = bits_of<Halves256>(a);
  const Halves128 r = {{simde_mm256_cvtps_ph(halves.x[0], 0), simde_mm256_cvtps_ph(halves.x[1], 0)}};
  return bits_of<__m256i>(r);
}

/// SIMDe's masked accesses go through whole vectors, so they touch memory that the mask hides.
HEED_INLINE void copy_lanes(void* to, const void* from, unsigned mask, int lanes, std::size_t size) {
  for (int i = 0; i < lanes; ++i) {
    const std::size_t at = static_cast<std::size_t>(i) * size;
    if (((mask >> i) & 1U) != 0) __builtin_memcpy(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, size);
  }
}
HEED_INLINE __m512 load_floats(unsigned mask, const void* p) {
  Floats16 r = {};
  copy_lanes(&r, p, mask, 16, 4);
  return bits_of<__m512>(r);
}
HEED_INLINE __m256i load_shorts(unsigned mask, const void* p) {
  Shorts16 r = {};
  copy_lanes(&r, p, mask, 16, 2);
  return bits_of<__m256i>(r);
}
HEED_INLINE void store_floats(void* p, unsigned mask, __m512 a) { copy_lanes(p, &a, mask, 16, 4); }
HEED_INLINE void store_shorts(void* p, unsigned mask, __m256i a) { copy_lanes(p, &a, mask, 16, 2); }

}  // namespace heed::kernels::emulated

#undef _mm512_maskz_loadu_ps
#undef _mm512_mask_storeu_ps
#undef _mm256_maskz_loadu_epi16
#undef _mm256_mask_storeu_epi16
#define _mm512_maskz_loadu_ps(mask, p) heed::kernels::emulated::load_floats(mask, p)
#define _mm512_mask_storeu_ps(p, mask, a) heed::kernels::emulated::store_floats(p, mask, a)
#define _mm256_maskz_loadu_epi16(mask, p) heed::kernels::emulated::load_shorts(mask, p)
#define _mm256_mask_storeu_epi16(p, mask, a) heed::kernels::emulated::store_shorts(p, mask, a)

#define _mm512_reduce_ps(a, rounding) heed::kernels::emulated::reduce_ps(a)
#if !defined(_mm512_cvtepu8_epi32)
#define _mm512_cvtepu8_epi32(a) heed::kernels::emulated::widen_unsigned_bytes(a)
#endif
#if !defined(_mm512_cvtepi8_epi32)
#define _mm512_cvtepi8_epi32(a) heed::kernels::emulated::widen_signed_bytes(a)
#endif
#if !defined(_mm512_cvtepi32_epi16)
#define _mm512_cvtepi32_epi16(a) heed::kernels::emulated::low_words(a)
#endif
#if !defined(_mm512_cvtps_ph)
#define _mm512_cvtps_ph(a, rounding) heed::kernels::emulated::narrow_to_half(a)
#endif
