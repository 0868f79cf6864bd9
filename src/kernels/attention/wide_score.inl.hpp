// SPDX-License-Identifier: Apache-2.0
// From raw scores to weights: softcap, bias, ALiBi, masks, the lazily moved reference, exp2. Everything is vertical: a lane is a row, and
// no lane ever meets another one.

constexpr float kLog2E = 1.44269504F;

/// One row block of the super-block. Vectors of the block's rows are [vectors * kLanes].
struct RowBlock {
  float* panel;      ///< [words of D][vectors * kLanes]
  float* out;        ///< [padded Dv][vectors * kLanes]
  float* max;        ///< reference the weights are scaled to, log2 domain; -inf until a row meets a key
  float* true_max;   ///< log2 domain
  float* sum;        ///< of the weights as they meet V: rounded ones, where those are rounded, so that the rounding cancels in the quotient
  float* exact_sum;  ///< of the weights before that; for lse
  float* slopes;     ///< ALiBi, times log2(e)
  float* positions;  ///< of the rows, relative to the key tile at hand
  std::int64_t first_row;
  int rows, vectors;
  bool fresh;                             ///< `out` holds nothing yet
  std::int64_t run, run_end, next_block;  ///< where its list of tiles stands
};

/// A bit for each row of the block.
static_assert(kBlockRows < 64);
HEED_INLINE std::uint64_t all_rows(const RowBlock& b) { return (std::uint64_t{1} << b.rows) - 1U; }

/// How this call makes scores; see make_recipe.
struct Recipe {
  float panel_factor;  ///< multiplied into the panel (float32 words)
  float score_factor;  ///< multiplied to raw scores, to the log2 domain or to the softcap's argument
  float cap;           ///< softcap * log2(e); 0: off
  bool plain;          ///< no softcap, bias, ALiBi, and score_factor > 0 (-inf * 0 is NaN): only masks can need a pass of its own
};

template <class Product>
static Recipe make_recipe(const Scoring& s) noexcept {
  const float factor = s.softcap > 0.0F ? s.scale / s.softcap : s.scale * kLog2E;
  Recipe r;
  r.panel_factor = Product::kElements == 1 ? factor : 1.0F;
  r.score_factor = Product::kElements == 1 ? 1.0F : factor;
  r.cap = s.softcap > 0.0F ? s.softcap * kLog2E : 0.0F;
  r.plain = r.cap == 0.0F && s.bias == nullptr && s.alibi_slopes == nullptr && r.score_factor > 0.0F;
  return r;
}

/// Keys [begin, end) of a tile that some row of the block sees, in whole register tiles but for the sequence's end; and the bits, if any.
struct Visible {
  int begin, end;
  const std::uint64_t* bits;  ///< [kTileKeys], null: all rows see all of these keys
};

/// Times log2(e). Only -inf itself masks: a smaller finite number (frameworks pad with their lowest) must not become -inf on the way.
HEED_INLINE Vec bias_in_log2(Vec x) {
  const Vec finite = mul(set1(kLog2E), max(set1(-2.3e38F), x));  // the operand order lets NaN through
  return select(cmp_eq(x, set1(-__builtin_inff())), x, finite);
}

/// Bias of the tile's slots as [key][vectors * kLanes], times log2(e).
static void load_bias(const ForwardProblem& p, const RowBlock& b, std::int64_t first_key, int count, float* bias) noexcept {
  const Scoring& s = p.scoring;
  const std::int64_t width = bytes_of(s.bias_dtype);
  for (int j = 0; j < b.vectors; ++j) {
    for (int k = 0; k < count; k += kLanes) {
      const int n = count - k < kLanes ? count - k : kLanes;
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int row = j * kLanes + i;
        const std::int64_t r = b.first_row + row;
        const std::int64_t offset =
            r / p.q.group * s.bias_token_stride + r % p.q.group * s.bias_head_stride + (first_key + k) * s.bias_key_stride;
        const auto* data = static_cast<const std::byte*>(s.bias) + offset * width;
        square[i] = row < b.rows ? bias_in_log2(load_any(data, s.bias_dtype, s.bias_key_stride, n)) : zero();
      }
      transpose(square);
      for (int i = 0; i < n; ++i) store(bias + ((k + i) * b.vectors + j) * kLanes, square[i]);
    }
  }
}

/// Adds the bias's own -inf to the mask bits: visible[key] &= bias > -inf. Returns whether any slot is hidden.
static bool bias_bits(const RowBlock& b, const std::uint64_t* plan_bits, const float* bias, int count, std::uint64_t* visible) noexcept {
  const std::uint64_t rows = all_rows(b);
  std::uint64_t hidden = 0;
  for (int k = 0; k < count; ++k) {
    std::uint64_t masked = 0;
    for (int j = 0; j < b.vectors; ++j) {
      const Vec x = load(bias + (k * b.vectors + j) * kLanes);
      masked |= mask_bits(cmp_eq(x, set1(-__builtin_inff()))) << (j * kLanes);
    }
    visible[k] = (plan_bits != nullptr ? plan_bits[k] : ~std::uint64_t{0}) & ~masked;
    hidden |= ~visible[k] & rows;
  }
  return hidden != 0;
}

/// Narrows [0, count) to the register tiles that some row sees.
static Visible visible_range(const RowBlock& b, const std::uint64_t* bits, int count) noexcept {
  if (bits == nullptr) return {0, count, nullptr};
  const std::uint64_t rows = all_rows(b);
  int first = 0, last = count;
  while (first < count && (bits[first] & rows) == 0) ++first;
  while (last > first && (bits[last - 1] & rows) == 0) --last;
  const int end = (last + kTileBroadcasts - 1) / kTileBroadcasts * kTileBroadcasts;
  return {first / kTileBroadcasts * kTileBroadcasts, end < count ? end : count, bits};
}

static void cap_scores(const Recipe& r, float* scores, std::int64_t count) noexcept {
  const Vec factor = set1(r.score_factor), cap = set1(r.cap);
  for (std::int64_t i = 0; i < count; i += kLanes) store(scores + i, mul(cap, tanh(mul(factor, load(scores + i)))));
}

static void multiply_scores(const Recipe& r, float* scores, std::int64_t count) noexcept {
  const Vec factor = set1(r.score_factor);
  for (std::int64_t i = 0; i < count; i += kLanes) store(scores + i, mul(factor, load(scores + i)));
}

static void add_bias(float* scores, const float* bias, std::int64_t count) noexcept {
  for (std::int64_t i = 0; i < count; i += kLanes) store(scores + i, add(load(scores + i), load(bias + i)));
}

/// -slope * |p - j|, positions taken relative to the tile so that float32 holds them exactly.
static void add_alibi(const RowBlock& b, const Visible& v, float* scores) noexcept {
  for (int j = 0; j < b.vectors; ++j) {
    const Vec slope = load(b.slopes + j * kLanes), position = load(b.positions + j * kLanes);
    for (int k = v.begin; k < v.end; ++k) {
      float* s = scores + (k * b.vectors + j) * kLanes;
      store(s, fnma(slope, abs(sub(position, set1(static_cast<float>(k)))), load(s)));
    }
  }
}

/// Hidden slots become -inf whatever they held; `max_of` is made again.
template <int NV>
static void mask_scores(const Visible& v, float* scores, Vec (&max_of)[NV]) noexcept {
  const Vec minus_infinity = set1(-__builtin_inff());
  for (int j = 0; j < NV; ++j) max_of[j] = minus_infinity;
  for (int k = v.begin; k < v.end; ++k) {
    const std::uint64_t bits = v.bits == nullptr ? ~std::uint64_t{0} : v.bits[k];
    for (int j = 0; j < NV; ++j) {
      float* s = scores + (k * NV + j) * kLanes;
      const Vec x = select(mask_from_bits(bits >> (j * kLanes)), load(s), minus_infinity);
      store(s, x);
      max_of[j] = max(max_of[j], x);
    }
  }
}

/// Moves a lane's reference only when its own maximum exceeds it by more than 8 (a factor 256 of headroom costs float32 nothing), so most
/// tiles rescale nothing, and a lane's bits depend on its own row alone. Source: FlashAttention-4's threshold.
template <int NV>
static void move_reference(RowBlock& b, std::int64_t padded_dims, const Vec (&max_of)[NV]) noexcept {
  for (int j = 0; j < NV; ++j) {
    const Vec old = load(b.max + j * kLanes);
    store(b.true_max + j * kLanes, max(load(b.true_max + j * kLanes), max_of[j]));
    const Mask moves = cmp_gt(max_of[j], add(old, set1(8.0F)));
    if (!any(moves)) continue;
    store(b.max + j * kLanes, select(moves, max_of[j], old));
    if (b.fresh) continue;
    const Vec factor = select(moves, exp2(sub(old, max_of[j])), set1(1.0F));
    store(b.sum + j * kLanes, mul(factor, load(b.sum + j * kLanes)));
    store(b.exact_sum + j * kLanes, mul(factor, load(b.exact_sum + j * kLanes)));
    for (std::int64_t d = 0; d < padded_dims; ++d) {
      float* o = b.out + (d * NV + j) * kLanes;
      store(o, mul(factor, load(o)));
    }
  }
}

/// Weights of the key at `scores`: exp2(score * factor + shift).
template <int NV>
HEED_INLINE void weigh_key(const float* scores, Vec factor, const Vec (&shift)[NV], Vec (&weight)[NV]) {
  HEED_UNROLL
  for (int j = 0; j < NV; ++j) weight[j] = exp2_below_128(fma(load(scores + j * kLanes), factor, shift[j]));
}

/// Vectors of rows whose weights are made together: with 16 registers more than one would keep its sums in memory.
template <int NV>
constexpr int kWeighed = kLanes == 16 ? NV : 1;

template <int NV>
struct WeightSums {
  Vec rounded[NV], exact[NV];
};

/// Vectors [0, NV) of a row block with `stride` floats per key.
template <int NV>
HEED_INLINE void weigh_vectors(FloatProduct, const Visible& v, std::int64_t stride, Vec factor, const Vec (&shift)[NV], float* scores,
                               WeightSums<NV>& sums) {
  for (int k = v.begin; k < v.end; ++k) {
    Vec weight[NV];
    weigh_key<NV>(scores + k * stride, factor, shift, weight);
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) {
      sums.exact[j] = add(sums.exact[j], weight[j]);
      store(scores + k * stride + j * kLanes, weight[j]);
    }
  }
  HEED_UNROLL
  for (int j = 0; j < NV; ++j) sums.rounded[j] = sums.exact[j];
}

/// v.begin is even; words land where their even key's scores were, or before.
template <int NV>
HEED_INLINE void weigh_vectors(Bf16Product, const Visible& v, std::int64_t stride, Vec factor, const Vec (&shift)[NV], float* scores,
                               WeightSums<NV>& sums) {
  for (int k = v.begin; k < v.end; k += 2) {
    Vec even[NV], odd[NV];
    weigh_key<NV>(scores + k * stride, factor, shift, even);
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) odd[j] = zero();
    if (k + 1 < v.end) weigh_key<NV>(scores + (k + 1) * stride, factor, shift, odd);
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) {
      const IVec pair = pack_bf16_pairs(even[j], odd[j]);
      sums.rounded[j] = add(sums.rounded[j], add(low_of_pairs(pair), high_of_pairs(pair)));
      sums.exact[j] = add(sums.exact[j], add(even[j], odd[j]));
      store(scores + k / 2 * stride + j * kLanes, as_float(pair));
    }
  }
}

/// Scores to weights, in place; adds them up. `factor` 1 where the scores are in the log2 domain already.
template <class Product, int NV>
[[gnu::noinline]] static void weigh(RowBlock& b, const Visible& v, float factor, float* scores) noexcept {
  constexpr int kStep = kWeighed<NV>;
  for (int first = 0; first < NV * kLanes; first += kStep * kLanes) {
    Vec shift[kStep];
    WeightSums<kStep> sums;
    HEED_UNROLL
    for (int j = 0; j < kStep; ++j) {
      const Vec m = load(b.max + first + j * kLanes);
      shift[j] = select(cmp_eq(m, set1(-__builtin_inff())), zero(), neg(m));  // a row without keys yet: -inf - 0, never -inf - -inf
      sums.rounded[j] = sums.exact[j] = zero();
    }
    weigh_vectors<kStep>(Product{}, v, NV * kLanes, set1(factor), shift, scores + first, sums);
    HEED_UNROLL
    for (int j = 0; j < kStep; ++j) {
      float* rounded = b.sum + first + j * kLanes;
      float* exact = b.exact_sum + first + j * kLanes;
      store(rounded, add(load(rounded), sums.rounded[j]));
      store(exact, add(load(exact), sums.exact[j]));
    }
  }
}
