// SPDX-License-Identifier: Apache-2.0
// The two register-tiled products of the wide path, over 32-bit words: a word is a float32, or a pair of bfloat16 where the ISA has a pair dot.
//
//   scores  S^T[key][row] = sum over words w of D      K[key][w] * Q^T[w][row]
//   output  O^T[d][row]  += sum over words w of keys   V[w][d]   * P^T[w][row]
//
// kTileBroadcasts x kTileVectors accumulators: each word of K or V is broadcast once and meets kTileVectors vectors of rows.

constexpr int kBlockRows = kTileVectors * kLanes;
constexpr int kVectorStep = kTileVectors / 3;  ///< widths that get a tile of their own: a third, two thirds, all
constexpr int kLineFloats = 16;

HEED_INLINE std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

/// One word times one word, added to float32 lanes.
struct FloatProduct {
  static constexpr int kElements = 1;  // per word
  HEED_INLINE_MEMBER Vec multiply_add(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};
struct Bf16Product {
  static constexpr int kElements = 2;
  HEED_INLINE_MEMBER Vec multiply_add(Vec a, Vec b, Vec c) { return dot_bf16(c, as_int(a), as_int(b)); }
};

/// The word at p, which may be misaligned (bfloat16 rows), in every lane.
HEED_INLINE Vec broadcast_word(const std::byte* p) {
  float word;
  __builtin_memcpy(&word, p, sizeof word);
  return set1(word);
}

/// Scores of kTileBroadcasts keys for NV of a row block's kOf vectors, at `scores` [key][kOf * kLanes]; raises `max` to them.
/// panel [words][kOf * kLanes], from the first of the NV vectors on; keys: row pointers.
template <class Product, int NV, int kOf>
[[gnu::noinline]] static void score_tile(const float* panel, const std::byte* const* keys, std::int64_t words, float* scores,
                                         Vec (&max_of)[NV]) noexcept {
  Vec c[kTileBroadcasts][NV];
  const std::byte* key[kTileBroadcasts];
  HEED_UNROLL
  for (int i = 0; i < kTileBroadcasts; ++i) {
    key[i] = keys[i];
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) c[i][j] = zero();
  }
  HEED_UNROLL_4  // 64 rounds of 12 cycles each are long enough a pattern for the end of the loop to be mispredicted: 1 to 2 % at D 64
      for (std::int64_t w = 0; w < words; ++w) {
    Vec q[NV];
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) q[j] = load(panel + (w * kOf + j) * kLanes);
    HEED_UNROLL
    for (int i = 0; i < kTileBroadcasts; ++i) {
      Vec k = broadcast_word(key[i] + 4 * w);
      keep(k);
      HEED_UNROLL
      for (int j = 0; j < NV; ++j) c[i][j] = Product::multiply_add(k, q[j], c[i][j]);
    }
  }
  HEED_UNROLL
  for (int j = 0; j < NV; ++j) {
    Vec top = max_of[j];  // a copy: `scores` might alias max_of
    HEED_UNROLL
    for (int i = 0; i < kTileBroadcasts; ++i) {
      store(scores + (i * kOf + j) * kLanes, c[i][j]);
      top = max(top, c[i][j]);
    }
    max_of[j] = top;
  }
}

/// Adds to NV of kOf vectors of kTileBroadcasts rows of `out` [d][kOf * kLanes] (or starts them, when `fresh`).
/// weights [words][kOf * kLanes], from the first of the NV vectors on, as `out` is; values: row pointers of `words` rows, offset_bytes to the first d.
template <class Product, int NV, int kOf>
[[gnu::noinline]] static void output_tile(const float* weights, const std::byte* const* values, std::int64_t offset_bytes,
                                          std::int64_t words, float* out, bool fresh) noexcept {
  Vec c[kTileBroadcasts][NV];
  HEED_UNROLL
  for (int i = 0; i < kTileBroadcasts; ++i) {
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) c[i][j] = fresh ? zero() : load(out + (i * kOf + j) * kLanes);
  }
  HEED_UNROLL_4
  for (std::int64_t w = 0; w < words; ++w) {
    const std::byte* value = values[w] + offset_bytes;
    Vec p[NV];
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) p[j] = load(weights + (w * kOf + j) * kLanes);
    HEED_UNROLL
    for (int i = 0; i < kTileBroadcasts; ++i) {
      Vec v = broadcast_word(value + 4 * i);
      keep(v);
      HEED_UNROLL
      for (int j = 0; j < NV; ++j) c[i][j] = Product::multiply_add(v, p[j], c[i][j]);
    }
  }
  HEED_UNROLL
  for (int i = 0; i < kTileBroadcasts; ++i) {
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) store(out + (i * kOf + j) * kLanes, c[i][j]);
  }
}

/// Lanes of a broadcast word whose row may not see it become 0, so that 0 * NaN is never formed. visible[0]: bits of the word's first key.
HEED_INLINE Vec hide(FloatProduct, Vec word, const std::uint64_t* visible, int first_lane) {
  return select(mask_from_bits(visible[0] >> first_lane), word, zero());
}
HEED_INLINE Vec hide(Bf16Product, Vec word, const std::uint64_t* visible, int first_lane) {
  const IVec pair = as_int(word);
  const Vec low = select(mask_from_bits(visible[0] >> first_lane), as_float(iand(pair, iset1(0xffff))), zero());
  const Vec high =
      select(mask_from_bits(visible[1] >> first_lane), as_float(iand(pair, iset1(static_cast<std::int32_t>(0xffff0000U)))), zero());
  return as_float(ior(as_int(low), as_int(high)));
}

/// output_tile for a tile with masked slots over values that are not all finite: the same sums in the same order. Rare, so not tiled.
template <class Product, int NV>
[[gnu::noinline]] static void output_hiding(const float* weights, const std::byte* const* values, std::int64_t dims, std::int64_t words,
                                            const std::uint64_t* visible, float* out, bool fresh) noexcept {
  for (std::int64_t d = 0; d < dims; ++d) {
    Vec c[NV];
    for (int j = 0; j < NV; ++j) c[j] = fresh ? zero() : load(out + (d * NV + j) * kLanes);
    for (std::int64_t w = 0; w < words; ++w) {
      const Vec v = broadcast_word(values[w] + 4 * d);
      for (int j = 0; j < NV; ++j) {
        const Vec hidden = hide(Product{}, v, visible + w * Product::kElements, j * kLanes);
        c[j] = Product::multiply_add(hidden, load(weights + (w * NV + j) * kLanes), c[j]);
      }
    }
    for (int j = 0; j < NV; ++j) store(out + (d * NV + j) * kLanes, c[j]);
  }
}
