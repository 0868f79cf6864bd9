// SPDX-License-Identifier: Apache-2.0
// From raw scores S and raw dP to the weights P and to dS, in place. Everything is vertical: a lane is a row.
// A weight never exceeds 1: the exponent is cut at 0, so that a float32 lse of huge logits cannot make it infinite.

/// Buffers of one row block's tile.
struct WeightTile {
  float* scores;  ///< [key][row_floats]; becomes P, kept ones divided by 1 - p
  float* grads;   ///< [key][row_floats]; dP becomes dS
  std::int64_t row_floats;
  float* bias;  ///< [key][vectors * kLanes]; bias becomes dS before the softcap, for dbias
  const float* log2_sums;
  const float* deltas;
};

/// exp2(s - log2_sum), at most 1; the operand order lets NaN through.
HEED_INLINE Vec weight_of(Vec score, Vec log2_sum) { return exp2(min(zero(), sub(score, log2_sum))); }

/// No softcap, bias, ALiBi or dropout.
template <int NV>
[[gnu::noinline]] static void weigh_plain(const WeightTile& t, const Visible& v) noexcept {
  const std::int64_t row = t.row_floats;
  for (int j = 0; j < NV; ++j) {
    const Vec log2_sum = load(t.log2_sums + j * kLanes), delta = load(t.deltas + j * kLanes);
    float* scores = t.scores + v.begin * row + j * kLanes;
    float* grads = t.grads + v.begin * row + j * kLanes;
    if (v.bits == nullptr) {
      for (int k = v.begin; k < v.end; ++k, scores += row, grads += row) {
        const Vec weight = weight_of(load(scores), log2_sum);
        store(scores, weight);
        store(grads, mul(weight, sub(load(grads), delta)));
      }
    } else {
      for (int k = v.begin; k < v.end; ++k, scores += row, grads += row) {
        const Mask visible = mask_from_bits(v.bits[k] >> (j * kLanes));
        const Vec weight = weight_of(load(scores), log2_sum);
        const Vec grad = mul(weight, sub(load(grads), delta));
        store(scores, select(visible, weight, zero()));
        store(grads, select(visible, grad, zero()));
      }
    }
  }
}

/// What the options need of the call and the row block.
struct WeightOptions {
  float cap;  ///< softcap * log2(e); 0: off
  bool has_bias;
  const float* slopes;        ///< ALiBi, times log2(e); null: off
  const float* positions;     ///< of the rows, relative to the tile's first key
  const std::uint64_t* kept;  ///< [key] rows whose weight dropout keeps; null: off
  float kept_factor;          ///< 1 / (1 - p)
};

template <int NV>
[[gnu::noinline]] static void weigh_any(const WeightTile& t, const WeightOptions& o, const Visible& v) noexcept {
  for (int j = 0; j < NV; ++j) {
    const Vec log2_sum = load(t.log2_sums + j * kLanes), delta = load(t.deltas + j * kLanes);
    for (int k = v.begin; k < v.end; ++k) {
      const int at = (k * NV + j) * kLanes;
      float* const scores = t.scores + k * t.row_floats + j * kLanes;
      float* const grads = t.grads + k * t.row_floats + j * kLanes;
      const Mask visible = mask_from_bits((v.bits == nullptr ? ~std::uint64_t{0} : v.bits[k]) >> (j * kLanes));
      Vec score = load(scores), derivative = set1(1.0F);
      if (o.cap != 0.0F) {
        const Vec capped = tanh(score);
        derivative = fnma(capped, capped, derivative);
        score = mul(set1(o.cap), capped);
      }
      if (o.has_bias) score = add(score, load(t.bias + at));
      if (o.slopes != nullptr) {
        const Vec distance = abs(sub(load(o.positions + j * kLanes), set1(static_cast<float>(k))));
        score = fnma(load(o.slopes + j * kLanes), distance, score);
      }
      const Vec weight = weight_of(score, log2_sum);
      Vec kept = weight, grad = load(grads);
      if (o.kept != nullptr) {
        const Mask keeps = mask_from_bits(o.kept[k] >> (j * kLanes));
        kept = select(keeps, mul(weight, set1(o.kept_factor)), zero());
        grad = select(keeps, mul(grad, set1(o.kept_factor)), zero());
      }
      grad = select(visible, mul(weight, sub(grad, delta)), zero());
      store(scores, select(visible, kept, zero()));
      store(t.bias + at, grad);
      store(grads, select(visible, mul(grad, derivative), zero()));
    }
  }
}
