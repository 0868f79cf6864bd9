// SPDX-License-Identifier: Apache-2.0
// Gradients as a careful user would write them by hand in float32, from what a forward pass by hand leaves: out in its own type, lse in
// float32. The yardstick of the accuracy rule. One row at a time, nothing shared with the library but Mask::visible and dropout's draws.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/philox.hpp"
#include "support/attention.hpp"

namespace heed::test {

/// Row-major float32 sums of one gradient, broadcast axes included, and the sums of the magnitudes of what was added.
class Accumulator {
 public:
  explicit Accumulator(const TensorView& like)
      : sums_(Tensor::zeros(DType::kFloat32, like ? like.shape() : Shape{0})), magnitudes_(sums_.clone()) {}
  /// `index` is right-aligned with the axes.
  void add(const Extents& index, float term, float magnitude) {
    const int missing = index.rank() - sums_.shape().rank();
    std::int64_t n = 0;
    for (int axis = 0; axis < sums_.shape().rank(); ++axis) {
      n = n * sums_.shape()[axis] + (sums_.shape()[axis] == 1 ? 0 : index[missing + axis]);
    }
    sums_.data_as<float>()[n] += term;
    magnitudes_.data_as<float>()[n] += std::abs(magnitude);
  }
  [[nodiscard]] const Tensor& sums() const { return sums_; }
  [[nodiscard]] double largest_magnitude() const { return largest_finite(magnitudes_); }

 private:
  Tensor sums_, magnitudes_;
};

/// One row's weights and dS.
struct PlainRow {
  std::vector<float> weights, factors, grads, derivatives;
  std::vector<float> sizes;  ///< magnitudes of all terms of dS added up
  float sink = 0.0F, mean = 0.0F, mean_size = 0.0F;
};

struct PlainGradients {
  const TensorView& dout;
  const TensorView& q;
  const TensorView& k;
  const TensorView& v;
  const AttentionOptions& o;
  Tensor qf = convert(q, DType::kFloat32), kf = convert(k, DType::kFloat32), vf = convert(v, DType::kFloat32),
         gf = convert(dout, DType::kFloat32);
  std::int64_t batch = q.size(0), q_tokens = q.size(1), heads = q.size(2), dim = q.size(3), kv_tokens = k.size(1), kv_heads = k.size(2),
               value_dim = v.size(3);
  float scale = static_cast<float>(o.scale.value_or(1.0 / std::sqrt(static_cast<double>(dim))));

  [[nodiscard]] const float* query(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return qf.data_as<float>() + ((b * q_tokens + i) * heads + h) * dim;
  }
  [[nodiscard]] const float* grad(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return gf.data_as<float>() + ((b * q_tokens + i) * heads + h) * value_dim;
  }
  [[nodiscard]] const float* key(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return kf.data_as<float>() + ((b * kv_tokens + j) * kv_heads + h / (heads / kv_heads)) * dim;
  }
  [[nodiscard]] const float* value(std::int64_t b, std::int64_t j, std::int64_t h) const {
    return vf.data_as<float>() + ((b * kv_tokens + j) * kv_heads + h / (heads / kv_heads)) * value_dim;
  }

  static float dot(const float* a, const float* b, std::int64_t count) {
    float sum = 0.0F;
    for (std::int64_t d = 0; d < count; ++d) sum += a[d] * b[d];
    return sum;
  }

  static float dot_size(const float* a, const float* b, std::int64_t count) {
    float sum = 0.0F;
    for (std::int64_t d = 0; d < count; ++d) sum += std::abs(a[d] * b[d]);
    return sum;
  }

  /// -inf where masked; the softcap's derivative beside it.
  float score(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, float& derivative) const {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::int64_t position = first_position(o, b, q_tokens, kv_tokens) + i;
    const float bias = o.bias ? static_cast<float>(broadcast_at(o.bias, {b, h, i, j})) : 0.0F;
    derivative = 1.0F;
    if (j >= keys_of(o, b, kv_tokens) || !o.mask.visible(b, h, i, position, j) || bias == -infinity) return -infinity;
    float s = scale * dot(query(b, i, h), key(b, j, h), dim);
    if (o.softcap) {
      const float t = std::tanh(s / static_cast<float>(*o.softcap));
      derivative = 1.0F - t * t;
      s = static_cast<float>(*o.softcap) * t;
    }
    s += bias;
    if (!o.alibi_slopes) return s;
    const double slope = o.alibi_slopes.rank() == 1 ? element(o.alibi_slopes, {h}) : element(o.alibi_slopes, {b, h});
    return s - static_cast<float>(slope) * static_cast<float>(std::abs(position - j));
  }

  static float rounded(float x, DType dtype) {
    return dtype == DType::kBFloat16 ? static_cast<float>(bfloat16(x)) : dtype == DType::kFloat16 ? static_cast<float>(float16(x)) : x;
  }

  [[nodiscard]] float dropout_factor(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    if (!o.dropout) return 1.0F;
    const bool kept = base::dropout_draw(o.dropout->seed, b, h, i, j) >= base::dropout_threshold(o.dropout->p);
    return kept ? static_cast<float>(1.0 / (1.0 - o.dropout->p)) : 0.0F;
  }

  /// The forward pass: leaves scores in r.weights and returns lse; `mean` becomes dot(dout, out).
  float forward(std::int64_t b, std::int64_t h, std::int64_t i, PlainRow& r) const {
    const float infinity = std::numeric_limits<float>::infinity();
    const float sink = o.sink_logits ? static_cast<float>(element(o.sink_logits, {h})) : -infinity;
    float largest = sink;
    for (std::size_t j = 0; j < r.weights.size(); ++j) {
      r.weights[j] = score(b, h, i, static_cast<std::int64_t>(j), r.derivatives[j]);
      r.factors[j] = dropout_factor(b, h, i, static_cast<std::int64_t>(j));
      largest = std::max(largest, r.weights[j]);
    }
    if (largest == -infinity) return -infinity;
    float sum = std::exp(sink - largest);
    std::vector<float> out(static_cast<std::size_t>(value_dim));
    for (std::size_t j = 0; j < r.weights.size(); ++j) {
      const float weight = std::exp(r.weights[j] - largest);
      sum += weight;
      if (weight == 0.0F) continue;
      const float* values = value(b, static_cast<std::int64_t>(j), h);
      for (std::size_t d = 0; d < out.size(); ++d) out[d] += weight * r.factors[j] * values[d];
    }
    for (float& x : out) x = rounded(x / sum, q.dtype());
    r.mean = dot(grad(b, i, h), out.data(), value_dim);
    r.mean_size = dot_size(grad(b, i, h), out.data(), value_dim);
    return largest + std::log(sum);
  }

  [[nodiscard]] PlainRow row(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const std::vector<float> zeros(static_cast<std::size_t>(kv_tokens));
    PlainRow r{zeros, zeros, zeros, zeros, zeros};
    const float lse = forward(b, h, i, r);
    if (lse == -std::numeric_limits<float>::infinity()) return {zeros, zeros, zeros, zeros, zeros};
    if (o.sink_logits) r.sink = std::exp(static_cast<float>(element(o.sink_logits, {h})) - lse);
    for (std::size_t j = 0; j < zeros.size(); ++j) {
      r.weights[j] = std::exp(r.weights[j] - lse);
      if (r.weights[j] == 0.0F) continue;
      const float* values = value(b, static_cast<std::int64_t>(j), h);
      const float grad_of_weight = r.factors[j] * dot(grad(b, i, h), values, value_dim);
      r.sizes[j] = r.weights[j] * (r.factors[j] * dot_size(grad(b, i, h), values, value_dim) + r.mean_size);
      r.grads[j] = r.weights[j] * (grad_of_weight - r.mean);
    }
    return r;
  }

  Accumulator dq{q}, dk{k}, dv{v}, dbias{o.bias}, dsinks{o.sink_logits};

  /// Weights and dS are rounded to q's type before they meet a 16-bit tensor.
  void run() {
    for_each_index({batch, heads, q_tokens}, [&](const Extents& n) {
      const std::int64_t b = n[0], h = n[1], i = n[2], kv_head = h / (heads / kv_heads);
      const PlainRow r = row(b, h, i);
      if (o.sink_logits) dsinks.add({h}, -r.sink * r.mean, r.sink * r.mean_size);
      for (std::int64_t j = 0; j < kv_tokens; ++j) {
        const auto at = static_cast<std::size_t>(j);
        if (r.weights[at] == 0.0F) continue;
        const float weight = rounded(r.weights[at] * r.factors[at], q.dtype()),
                    ds = rounded(r.grads[at] * r.derivatives[at], q.dtype()) * scale, size = r.sizes[at] * r.derivatives[at] * scale;
        if (o.bias) dbias.add({b, h, i, j}, r.grads[at], r.sizes[at]);
        for (std::int64_t d = 0; d < value_dim; ++d) {
          dv.add({b, j, kv_head, d}, weight * grad(b, i, h)[d], weight * grad(b, i, h)[d]);
        }
        for (std::int64_t d = 0; d < dim; ++d) {
          dq.add({b, i, h, d}, ds * key(b, j, h)[d], size * key(b, j, h)[d]);
          dk.add({b, j, kv_head, d}, ds * query(b, i, h)[d], size * query(b, i, h)[d]);
        }
      }
    });
  }
};

/// Three times the plain implementation's error, plus 1e-6 of the largest magnitude. Where terms cancel, nothing of that may be left, so
/// at least four roundings of the sum of their magnitudes are allowed.
inline void expect_gradient_within_rule(const char* what, const TensorView& got, const TensorView& exact, const Accumulator& plain) {
  const double plain_error = max_abs_difference(convert(plain.sums(), got.dtype()), exact), largest = largest_finite(exact);
  EXPECT_LE(max_abs_difference(got, exact), 3.0 * plain_error + std::max(1e-6 * largest, 0x1p-22 * plain.largest_magnitude()))
      << what << ": plain implementation's error " << plain_error << ", largest magnitude " << largest << ", of the terms "
      << plain.largest_magnitude();
}

/// Whole check of one call, on every ISA.
inline void check_gradients_against_exact(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                                          const AttentionOptions& options) {
  const AttentionGrads exact = reference::attention_backward(dout, q, k, v, options);
  PlainGradients plain{dout, q, k, v, options};
  plain.run();
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    const AttentionGrads got = attention_backward(dout, q, k, v, attention_state(q, k, v, options), options);
    expect_gradient_within_rule("dq", got.dq, exact.dq, plain.dq);
    expect_gradient_within_rule("dk", got.dk, exact.dk, plain.dk);
    expect_gradient_within_rule("dv", got.dv, exact.dv, plain.dv);
    if (options.bias) expect_gradient_within_rule("dbias", got.dbias, exact.dbias, plain.dbias);
    if (options.sink_logits) expect_gradient_within_rule("dsink_logits", got.dsink_logits, exact.dsink_logits, plain.dsinks);
  }
}

}  // namespace heed::test
