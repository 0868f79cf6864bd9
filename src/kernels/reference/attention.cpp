// SPDX-License-Identifier: Apache-2.0
// Order of operations: scale -> softcap -> bias, ALiBi -> mask -> sink joins the denominator -> softmax -> dropout -> times V.
#include "kernels/reference/attention.hpp"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "base/philox.hpp"

namespace heed::kernels::reference {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

bool is_visible(const Problem& problem, const Row& row, std::int64_t j) noexcept {
  if (j >= problem.kv_lengths[row.b]) return false;
  if (!problem.visible(problem.mask, row.b, row.h, row.i, problem.query_offsets[row.b] + row.i, j)) return false;
  return !problem.bias || problem.bias(row.b, row.h, row.i, j) != kMinusInfinity;
}

double dot(const double* a, std::int64_t a_stride, const double* b, std::int64_t b_stride, std::int64_t count) noexcept {
  double sums[4] = {};  // additions to one sum would wait for each other
  std::int64_t d = 0;
  for (; d + 4 <= count; d += 4) {
    for (std::int64_t n = 0; n < 4; ++n) sums[n] += a[(d + n) * a_stride] * b[(d + n) * b_stride];
  }
  for (; d < count; ++d) sums[0] += a[d * a_stride] * b[d * b_stride];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double scaled_score(const Problem& problem, const Row& row, std::int64_t j) noexcept {
  const double* q = &problem.q(row.b, row.i, row.h, 0);
  const double* k = &problem.k(row.b, j, row.h / problem.group, 0);
  return problem.scale * dot(q, problem.q.strides[3], k, problem.k.strides[3], problem.head_dim);
}

/// The score of a visible key.
double score(const Problem& problem, const Row& row, std::int64_t j) noexcept {
  double s = scaled_score(problem, row, j);
  if (problem.softcap > 0.0) s = problem.softcap * std::tanh(s / problem.softcap);
  if (problem.bias) s += problem.bias(row.b, row.h, row.i, j);
  if (problem.slopes) {
    const std::int64_t distance = problem.query_offsets[row.b] + row.i - j;
    s -= problem.slopes(row.b, row.h, 0, 0) * static_cast<double>(std::abs(distance));
  }
  return s;
}

struct Softmax {
  double max = kMinusInfinity;  ///< over the visible keys
  double lse = kMinusInfinity;  ///< sink included
  double sink = 0.0;            ///< weight of the sink
};

/// weights[j]: the softmax weight of key j, 0 for masked ones, before dropout.
Softmax softmax(const Problem& problem, const Row& row, double* weights) noexcept {
  const double sink_logit = problem.sinks ? problem.sinks(0, row.h, 0, 0) : kMinusInfinity;
  Softmax result;
  for (std::int64_t j = 0; j < problem.kv_tokens; ++j) {
    weights[j] = is_visible(problem, row, j) ? score(problem, row, j) : kMinusInfinity;
    if (weights[j] > result.max) result.max = weights[j];
  }
  const double largest = result.max > sink_logit ? result.max : sink_logit;
  const double reference = largest == kMinusInfinity ? 0.0 : largest;  // exp(-inf - -inf) would be NaN
  double sum = std::exp(sink_logit - reference);
  for (std::int64_t j = 0; j < problem.kv_tokens; ++j) {
    weights[j] = std::exp(weights[j] - reference);
    sum += weights[j];
  }
  if (sum == 0.0) return result;  // no visible key and no sink: every weight is 0 already
  for (std::int64_t j = 0; j < problem.kv_tokens; ++j) {
    if (weights[j] != 0.0) weights[j] /= sum;  // a masked key stays at 0, also in a row whose sum is NaN
  }
  result.lse = reference + std::log(sum);
  result.sink = std::exp(sink_logit - reference) / sum;
  return result;
}

/// What dropout multiplies weight j by: 0 or 1 / (1 - p).
double dropout_factor(const Problem& problem, const Row& row, std::int64_t j) noexcept {
  if (problem.dropout_threshold == 0) return 1.0;
  const std::uint32_t draw = base::dropout_draw(problem.dropout_seed, row.b, row.h, row.i, j);
  return draw >= problem.dropout_threshold ? problem.dropout_scale : 0.0;
}

/// dw_j = m_j dot(dout, v_j), and 0 for a dropped key whatever its values are
double weight_gradient(const Problem& problem, const Row& row, const Array4<const double>& dout, std::int64_t j) noexcept {
  const double* g = &dout(row.b, row.i, row.h, 0);
  const double* v = &problem.v(row.b, j, row.h / problem.group, 0);
  const double factor = dropout_factor(problem, row, j);
  return factor == 0.0 ? 0.0 : factor * dot(g, dout.strides[3], v, problem.v.strides[3], problem.value_dim);
}

/// Gradient of the scaled score given the gradient of the capped one: d tanh(x) = 1 - tanh(x)^2.
double through_softcap(const Problem& problem, const Row& row, std::int64_t j, double gradient) noexcept {
  if (problem.softcap <= 0.0) return gradient;
  const double t = std::tanh(scaled_score(problem, row, j) / problem.softcap);
  return gradient * (1.0 - t * t);
}

}  // namespace

void forward_row(const Problem& problem, const Row& row, const Outputs& outputs, double* weights) noexcept {
  const Softmax s = softmax(problem, row, weights);
  if (outputs.lse) outputs.lse(row.b, row.h, row.i, 0) = s.lse;
  if (outputs.row_max) outputs.row_max(row.b, row.h, row.i, 0) = s.max;
  for (std::int64_t d = 0; d < problem.value_dim; ++d) outputs.out(row.b, row.i, row.h, d) = 0.0;
  for (std::int64_t j = 0; j < problem.kv_tokens; ++j) {
    if (weights[j] == 0.0) continue;  // masked, or too small to count: its V row is not read
    const double weight = weights[j] * dropout_factor(problem, row, j);
    if (weight == 0.0) continue;
    for (std::int64_t d = 0; d < problem.value_dim; ++d) {
      outputs.out(row.b, row.i, row.h, d) += weight * problem.v(row.b, j, row.h / problem.group, d);
    }
  }
}

// With w the weights, m the dropout factors and s the capped, biased scores:
//   out = sum_j w_j m_j v_j      dw_j = m_j dot(dout, v_j)      ds_j = w_j (dw_j - sum_i w_i dw_i)
// The sink is one more weight, whose value vector is 0.
void backward_row(const Problem& problem, const Row& row, const Array4<const double>& dout, const Gradients& gradients,
                  double* weights) noexcept {
  const auto [b, h, i] = row;
  const std::int64_t kv_head = h / problem.group;
  const Softmax s = softmax(problem, row, weights);
  double mean = 0.0;
  for (std::int64_t j = 0; j < problem.kv_tokens; ++j) {
    if (weights[j] != 0.0) mean += weights[j] * weight_gradient(problem, row, dout, j);
  }
  if (gradients.dsinks) gradients.dsinks(b, h, 0, 0) -= s.sink * mean;

  for (std::int64_t j = 0; j < problem.kv_tokens; ++j) {
    if (weights[j] == 0.0) continue;
    const double kept = weights[j] * dropout_factor(problem, row, j);
    for (std::int64_t d = 0; d < problem.value_dim; ++d) gradients.dv(b, j, kv_head, d) += kept * dout(b, i, h, d);
    const double ds = weights[j] * (weight_gradient(problem, row, dout, j) - mean);
    if (gradients.dbias) gradients.dbias(b, h, i, j) += ds;
    const double dscaled = problem.scale * through_softcap(problem, row, j, ds);
    for (std::int64_t d = 0; d < problem.head_dim; ++d) {
      gradients.dq(b, i, h, d) += dscaled * problem.k(b, j, kv_head, d);
      gradients.dk(b, j, kv_head, d) += dscaled * problem.q(b, i, h, d);
    }
  }
}

}  // namespace heed::kernels::reference
