// SPDX-License-Identifier: Apache-2.0
// The block formats: where the fields lie and what a value is worth (docs/gguf.md has the tables).
//
// A format decodes in two steps. scales() turns the float16 and packed scales of one block into kScales floats; it runs for many blocks
// ahead, so that decode() gets them by broadcast loads. decode() hands kLanes values at a time to take(sink, values, index, slot), index
// being the place of the first one in the block and slot a small number, a constant after unrolling, by which a sink may spread them over
// several sums. Only loops over lanes are unrolled: with 4 lanes a block of 256 values would be too much text.
//
// Products of scale and quant are exact in float32 (11 + 7 + 6 bits at most), so an FMA and a multiplication followed by an addition give
// the same bits: all ISAs decode alike.

template <class T>
HEED_INLINE T read(const std::uint8_t* p) {
  T value;
  __builtin_memcpy(&value, p, sizeof value);
  return value;
}

/// Float types. What does not fill 32 values is left to the caller.
template <class T>
struct Plain {
  using Element = T;
  static constexpr int kValues = 32, kBytes = 32 * static_cast<int>(sizeof(T)), kScales = 0;
  HEED_INLINE void scales(float*, const std::uint8_t*) {}
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float*) {
    HEED_UNROLL
    for (int i = 0; i < 32; i += kLanes) take(sink, loadu(reinterpret_cast<const T*>(block) + i), i, i / kLanes);
  }
};

/// 16 bytes: values i in the low nibbles, values 16 + i in the high ones.
template <class Sink>
HEED_INLINE void decode_nibbles(Sink& sink, const Levels16& levels, const std::uint8_t* q) {
  HEED_UNROLL
  for (int i = 0; i < 16; i += kLanes) {
    const IVec bytes = iload_bytes(q + i);
    take(sink, low_level(levels, bytes), i, 2 * i / kLanes);
    take(sink, high_level(levels, bytes), 16 + i, 2 * i / kLanes + 1);
  }
}

struct Q4_0 {
  static constexpr int kValues = 32, kBytes = 18, kScales = 1;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) { widen_four_halves(to, block); }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    const Vec d = set1(scale[0]);
    decode_nibbles(sink, levels16(d, mul(d, set1(-8.0F))), block + 2);
  }
};

struct Q4_1 {
  static constexpr int kValues = 32, kBytes = 20, kScales = 2;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) { widen_four_halves(to, block); }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    decode_nibbles(sink, levels16(set1(scale[0]), set1(scale[1])), block + 4);
  }
};

/// d * (nibble + 16 - 16) where the fifth bit is set, d * (nibble - 16) where it is clear.
struct Q5_0 {
  static constexpr int kValues = 32, kBytes = 22, kScales = 1;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) { widen_four_halves(to, block); }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    const Vec d = set1(scale[0]);
    const Vec sixteen = mul(d, set1(-16.0F));
    const Levels16 levels = levels16(d, zero());
    const std::uint32_t clear = ~read<std::uint32_t>(block + 2);
    HEED_UNROLL
    for (int i = 0; i < 16; i += kLanes) {
      const IVec bytes = iload_bytes(block + 6 + i);
      take(sink, add_where(mask_from_bits(clear >> i), low_level(levels, bytes), sixteen), i, 2 * i / kLanes);
      take(sink, add_where(mask_from_bits(clear >> (16 + i)), high_level(levels, bytes), sixteen), 16 + i, 2 * i / kLanes + 1);
    }
  }
};

struct Q8_0 {
  static constexpr int kValues = 32, kBytes = 34, kScales = 1;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) { widen_four_halves(to, block); }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    const Vec d = set1(scale[0]);
    HEED_UNROLL
    for (int i = 0; i < 32; i += kLanes) {
      take(sink, mul(d, loadu(reinterpret_cast<const std::int8_t*>(block) + 2 + i)), i, i / kLanes);
    }
  }
};

/// Eight pairs of 6-bit numbers in 12 bytes, out as bytes: scales 0-7, minimums 0-7.
HEED_INLINE void unpack_scales(std::uint8_t* to, const std::uint8_t* s) {
  const auto a = read<std::uint32_t>(s), b = read<std::uint32_t>(s + 4), c = read<std::uint32_t>(s + 8);
  const std::uint32_t words[4] = {a & 0x3f3f3f3fU, (c & 0x0f0f0f0fU) | ((a >> 2) & 0x30303030U), b & 0x3f3f3f3fU,
                                  ((c >> 4) & 0x0f0f0f0fU) | ((b >> 2) & 0x30303030U)};
  __builtin_memcpy(to, words, sizeof words);
}

/// to[0..8) = d * scale, to[8..16) = -dmin * minimum.
HEED_INLINE void widen_k_scales(float* to, const std::uint8_t* block) {
  std::uint8_t bytes[16];
  unpack_scales(bytes, block + 4);
  float d[4];
  widen_four_halves(d, block);
  const Vec scale = set1(d[0]), minimum = set1(-d[1]);
  if constexpr (kLanes == 16) {
    storeu(to, mul(loadu(bytes), select(mask_from_bits(0xff), scale, minimum)));
  } else {
    HEED_UNROLL
    for (int i = 0; i < 16; i += kLanes) storeu(to + i, mul(loadu(bytes + i), i < 8 ? scale : minimum));
  }
}

/// Runs of 32 values: low nibbles of 32 bytes, then high nibbles of the same.
struct Q4_K {
  static constexpr int kValues = 256, kBytes = 144, kScales = 16;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) { widen_k_scales(to, block); }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    for (int j = 0; j < 8; j += 2) {
      const Levels16 low = levels16(set1(scale[j]), set1(scale[8 + j]));
      const Levels16 high = levels16(set1(scale[j + 1]), set1(scale[9 + j]));
      HEED_UNROLL
      for (int i = 0; i < 32; i += kLanes) {
        const IVec bytes = iload_bytes(block + 16 + 16 * j + i);
        take(sink, low_level(low, bytes), 32 * j + i, 2 * i / kLanes);
        take(sink, high_level(high, bytes), 32 * j + 32 + i, 2 * i / kLanes + 1);
      }
    }
  }
};

/// As Q4_K; bit j of byte i of qh[32] is the fifth bit of value i of run j.
struct Q5_K {
  static constexpr int kValues = 256, kBytes = 176, kScales = 16;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) { widen_k_scales(to, block); }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    float weight = 16.0F;  // of the bit where it stands: 16 / 2^j
    for (int j = 0; j < 8; j += 2) {
      const IVec low_bit = iset1(1 << j), high_bit = iset1(2 << j);
      const Vec low_weight = set1(weight), high_weight = set1(weight * 0.5F);
      HEED_UNROLL
      for (int i = 0; i < 32; i += kLanes) {
        const IVec bytes = iload_bytes(block + 48 + 16 * j + i), bits = iload_bytes(block + 16 + i);
        const Vec low = fma(to_float(iand(bits, low_bit)), low_weight, to_float(iand(bytes, iset1(15))));
        const Vec high = fma(to_float(iand(bits, high_bit)), high_weight, to_float(shift_right<4>(bytes)));
        take(sink, fma(set1(scale[j]), low, set1(scale[8 + j])), 32 * j + i, 2 * i / kLanes);
        take(sink, fma(set1(scale[j + 1]), high, set1(scale[9 + j])), 32 * j + 32 + i, 2 * i / kLanes + 1);
      }
      weight *= 0.25F;
    }
  }
};

/// Halves of 128 values in four runs of 32: four bits from ql, two from qh, one scale per 16.
struct Q6_K {
  static constexpr int kValues = 256, kBytes = 210, kScales = 16;
  HEED_INLINE void scales(float* to, const std::uint8_t* block) {
    float halves[4];
    widen_four_halves(halves, block + 202);  // d is the last one
    const Vec d = set1(halves[3]);
    HEED_UNROLL
    for (int i = 0; i < 16; i += kLanes) storeu(to + i, mul(d, loadu(reinterpret_cast<const std::int8_t*>(block) + 192 + i)));
  }
  /// Values `index` + 32 k + (0 .. kLanes) of all four runs k.
  template <class Sink>
  HEED_INLINE void decode_runs(Sink& sink, const std::uint8_t* ql, const std::uint8_t* qh, const float* scale, int index) {
    const IVec a = iload_bytes(ql), b = iload_bytes(ql + 32), high = iload_bytes(qh);
    const IVec low_bits = iset1(15), high_bits = iset1(48), middle = iset1(32);
    const IVec q[4] = {ior(iand(a, low_bits), iand(shift_left<4>(high), high_bits)),
                       ior(iand(b, low_bits), iand(shift_left<2>(high), high_bits)), ior(shift_right<4>(a), iand(high, high_bits)),
                       ior(shift_right<4>(b), iand(shift_right<2>(high), high_bits))};
    HEED_UNROLL
    for (int k = 0; k < 4; ++k) take(sink, mul(to_float(isub(q[k], middle)), set1(scale[2 * k])), index + 32 * k, k);
  }
  template <class Sink>
  HEED_INLINE void decode(Sink& sink, const std::uint8_t* block, const float* scale) {
    for (int half = 0; half < 2; ++half) {
      HEED_UNROLL
      for (int i = 0; i < 32; i += kLanes) {
        decode_runs(sink, block + 64 * half + i, block + 128 + 32 * half + i, scale + 8 * half + i / 16, 128 * half + i);
      }
    }
  }
};
