// SPDX-License-Identifier: Apache-2.0
// For tests of attention: the ISAs of this machine, a plain implementation in the inputs' own precision, and the accuracy rule.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/reference.hpp>

#include "base/cpu.hpp"
#include "base/philox.hpp"
#include "support/tensors.hpp"

namespace heed::test {

inline std::vector<base::Isa> isas_here() {
  std::vector<base::Isa> isas;
  for (const base::Isa isa : base::kAllIsas) {
    if (base::runs_here(isa)) isas.push_back(isa);
  }
  return isas;
}

inline const std::vector<DType>& fast_dtypes() {
  static const std::vector<DType> dtypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
  return dtypes;
}

/// Unit roundoff: the largest relative error of one rounding.
inline double roundoff(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return 0x1p-24;
    case DType::kBFloat16: return 0x1p-8;
    case DType::kFloat16: return 0x1p-11;
    default: return 0x1p-53;
  }
}

/// Keys of batch entry b that exist, and the position of its query 0, by the words of the options' documentation.
inline std::int64_t keys_of(const AttentionOptions& options, std::int64_t b, std::int64_t kv_tokens) {
  return options.kv_lengths ? static_cast<std::int64_t>(element(options.kv_lengths, {b})) : kv_tokens;
}
inline std::int64_t first_position(const AttentionOptions& options, std::int64_t b, std::int64_t q_tokens, std::int64_t kv_tokens) {
  if (options.query_offset) return static_cast<std::int64_t>(element(options.query_offset, {options.query_offset.size(0) == 1 ? 0 : b}));
  return options.align == Align::kTopLeft ? 0 : keys_of(options, b, kv_tokens) - q_tokens;
}

/// Element of a tensor that broadcasts, right-aligned, over the four axes of `index`.
inline double broadcast_at(const TensorView& view, const Extents& index) {
  Extents own = view.shape();
  for (int axis = 0; axis < view.rank(); ++axis) own[axis] = view.size(axis) == 1 ? 0 : index[4 - view.rank() + axis];
  return at(view, own);
}

struct Forward {
  Tensor out, lse, row_max;
};

/// All three outputs, through the library.
inline Forward run_forward(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  const DType statistics = q.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  Forward result{Tensor(q.dtype(), {q.size(0), q.size(1), q.size(2), v.size(3)}), Tensor(statistics, {q.size(0), q.size(2), q.size(1)}),
                 Tensor(statistics, {q.size(0), q.size(2), q.size(1)})};
  attention_into({.out = result.out, .lse = result.lse, .row_max = result.row_max}, q, k, v, options);
  return result;
}

/// The same inputs, widened, through the float64 reference.
inline Forward run_exact(const TensorView& q, const TensorView& k, const TensorView& v, AttentionOptions options) {
  const Tensor bias = options.bias ? convert(options.bias, DType::kFloat64) : Tensor();
  options.bias = bias;
  return run_forward(convert(q, DType::kFloat64), convert(k, DType::kFloat64), convert(v, DType::kFloat64), options);
}

/// What a careful user would write by hand in `Real`, with the weights rounded to `weights` before they meet V: no tiles, no
/// tricks, nothing shared with the library but Mask::visible and the draws of dropout.
template <class Real>
Forward plain_attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& o, DType weights) {
  const std::int64_t batch = q.size(0), q_tokens = q.size(1), heads = q.size(2), dim = q.size(3);
  const std::int64_t kv_tokens = k.size(1), kv_heads = k.size(2), value_dim = v.size(3);
  const Tensor qr = convert(q, dtype_of<Real>), kr = convert(k, dtype_of<Real>), vr = convert(v, dtype_of<Real>);
  Forward result{Tensor::zeros(dtype_of<Real>, {batch, q_tokens, heads, value_dim}), Tensor(dtype_of<Real>, {batch, heads, q_tokens}),
                 Tensor(dtype_of<Real>, {batch, heads, q_tokens})};
  const Real scale = static_cast<Real>(o.scale.value_or(1.0 / std::sqrt(static_cast<double>(dim))));
  const Real infinity = std::numeric_limits<Real>::infinity();
  const Real* const q_data = qr.template data_as<Real>();
  const Real* const k_data = kr.template data_as<Real>();
  const Real* const v_data = vr.template data_as<Real>();
  Real* const out_data = result.out.template data_as<Real>();
  for_each_index({batch, heads, q_tokens}, [&](const Extents& row) {
    const std::int64_t b = row[0], h = row[1], i = row[2], kv_head = h / (heads / kv_heads);
    const std::int64_t position = first_position(o, b, q_tokens, kv_tokens) + i;
    Tensor scores = Tensor::zeros(dtype_of<Real>, {kv_tokens});
    Real* s = scores.template data_as<Real>();
    const Real sink = o.sink_logits ? static_cast<Real>(element(o.sink_logits, {h})) : -infinity;
    Real max = -infinity;
    for (std::int64_t j = 0; j < kv_tokens; ++j) {
      const Real bias = o.bias ? static_cast<Real>(broadcast_at(o.bias, {b, h, i, j})) : Real{0};
      if (j >= keys_of(o, b, kv_tokens) || !o.mask.visible(b, h, i, position, j) || bias == -infinity) {
        s[j] = -infinity;
        continue;
      }
      for (std::int64_t d = 0; d < dim; ++d) {
        s[j] += q_data[((b * q_tokens + i) * heads + h) * dim + d] * k_data[((b * kv_tokens + j) * kv_heads + kv_head) * dim + d];
      }
      s[j] *= scale;
      if (o.softcap) s[j] = static_cast<Real>(*o.softcap) * std::tanh(s[j] / static_cast<Real>(*o.softcap));
      s[j] += bias;
      if (o.alibi_slopes) {
        const double slope = o.alibi_slopes.rank() == 1 ? element(o.alibi_slopes, {h}) : element(o.alibi_slopes, {b, h});
        s[j] -= static_cast<Real>(slope) * static_cast<Real>(std::abs(position - j));
      }
      max = std::max(max, s[j]);
    }
    const Real shift = std::max(max, sink);
    Real sum = shift == -infinity ? Real{0} : std::exp(sink - shift);
    for (std::int64_t j = 0; j < kv_tokens; ++j) sum += s[j] = s[j] == -infinity ? Real{0} : std::exp(s[j] - shift);
    for (std::int64_t j = 0; j < kv_tokens; ++j) s[j] = s[j] == Real{0} ? Real{0} : s[j] / sum;
    if (o.dropout) {
      const Real kept = static_cast<Real>(1.0 / (1.0 - o.dropout->p));
      for (std::int64_t j = 0; j < kv_tokens; ++j) {
        s[j] = base::dropout_draw(o.dropout->seed, b, h, i, j) >= o.dropout->p * 0x1p32 ? s[j] * kept : Real{0};
      }
    }
    scores = convert(convert(scores, weights), dtype_of<Real>);
    const std::int64_t out_row = ((b * q_tokens + i) * heads + h) * value_dim;
    for (std::int64_t j = 0; j < kv_tokens; ++j) {
      const Real weight = scores.template data_as<Real>()[j];
      if (weight == Real{0}) continue;
      for (std::int64_t d = 0; d < value_dim; ++d) {
        out_data[out_row + d] += weight * v_data[((b * kv_tokens + j) * kv_heads + kv_head) * value_dim + d];
      }
    }
    const std::int64_t statistic = (b * heads + h) * q_tokens + i;
    result.lse.template data_as<Real>()[statistic] = sum == Real{0} ? -infinity : shift + std::log(sum);
    result.row_max.template data_as<Real>()[statistic] = max;
  });
  result.out = convert(result.out, q.dtype());
  return result;
}

/// Largest finite magnitude.
inline double largest_finite(const TensorView& view) {
  double worst = 0.0;
  for_each_index(view.shape(), [&](const Extents& index) {
    const double value = std::abs(at(view, index));
    if (std::isfinite(value)) worst = std::max(worst, value);
  });
  return worst;
}

/// The rule of FlashAttention's own suite: the error against float64 is at most twice that of a plain implementation in the same
/// types, plus 1e-6 of the largest magnitude.
inline void expect_within_rule(const char* what, const TensorView& got, const TensorView& exact, const TensorView& plain,
                               double magnitude) {
  const double allowed = 2.0 * max_abs_difference(plain, exact) + 1e-6 * magnitude;
  const double error = max_abs_difference(got, exact);
  EXPECT_LE(error, allowed) << what << ": plain implementation's error " << max_abs_difference(plain, exact) << ", largest magnitude "
                            << magnitude;
}

inline void expect_accurate(const Forward& got, const Forward& exact, const Forward& plain) {
  expect_within_rule("out", got.out, exact.out, plain.out, largest_finite(exact.out));
  const double scores = std::max(largest_finite(exact.lse), largest_finite(exact.row_max));
  expect_within_rule("lse", got.lse, exact.lse, plain.lse, scores);
  expect_within_rule("row_max", got.row_max, exact.row_max, plain.row_max, scores);
}

/// Whole check of one call, on every ISA.
inline void check_against_exact(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
  const Forward exact = run_exact(q, k, v, options);
  const Forward plain = plain_attention<float>(q, k, v, options, q.dtype());
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    expect_accurate(run_forward(q, k, v, options), exact, plain);
  }
}

}  // namespace heed::test
