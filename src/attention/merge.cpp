// SPDX-License-Identifier: Apache-2.0
// Joins attention over disjoint sets of keys. Weights and sums are float64: the parts' own rounding is all the error there is.
#include <heed/attention.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "attention/elements.hpp"
#include "base/floating_point.hpp"
#include "base/message.hpp"

namespace heed {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
constexpr const char* kFunction = "merge_states";

void check_tensor(std::size_t part, const char* name, const Tensor& got, const Tensor& first) {
  const std::string argument = "states[" + std::to_string(part) + "]." + name;
  if (got.data() == nullptr) base::throw_invalid(kFunction, argument, "a tensor", "none");
  if (got.shape() != first.shape()) base::throw_invalid(kFunction, argument, to_string(first.shape()), to_string(got.shape()));
  if (got.dtype() != first.dtype()) base::throw_invalid(kFunction, argument, to_string(first.dtype()), to_string(got.dtype()));
}

void check(std::span<const AttentionState> states) {
  if (states.empty()) base::throw_invalid(kFunction, "states", "at least one state", "none");
  const Tensor& out = states[0].out;
  const Tensor& lse = states[0].lse;
  for (std::size_t part = 0; part < states.size(); ++part) {
    check_tensor(part, "out", states[part].out, out);
    check_tensor(part, "lse", states[part].lse, lse);
  }
  const Shape& s = out.shape();
  if (s.rank() != 4) base::throw_invalid(kFunction, "states[0].out", "4 axes [B, Lq, Hq, Dv]", to_string(s));
  const Shape rows = {s[0], s[2], s[1]};
  if (lse.shape() != rows) base::throw_invalid(kFunction, "states[0].lse", "[B, Hq, Lq] = " + to_string(rows), to_string(lse.shape()));
  if (!is_floating(out.dtype())) base::throw_invalid(kFunction, "states[0].out", "a floating type", to_string(out.dtype()));
  if (lse.dtype() != DType::kFloat32 && lse.dtype() != DType::kFloat64) {
    base::throw_invalid(kFunction, "states[0].lse", "float32 or float64", to_string(lse.dtype()));
  }
}

struct Row {
  std::int64_t b, i, h;
};

/// log sum_n exp(lse_n); NaN where a part has it, also beside parts without keys.
double merged_lse(std::span<const AttentionState> states, const Row& row) {
  double largest = kMinusInfinity;
  for (const AttentionState& state : states) {
    const double part = element(state.lse, {row.b, row.h, row.i});
    if (std::isnan(part)) return part;
    largest = std::max(largest, part);
  }
  if (std::isinf(largest)) return largest;
  double sum = 0.0;
  for (const AttentionState& state : states) sum += std::exp(element(state.lse, {row.b, row.h, row.i}) - largest);
  return largest + std::log(sum);
}

/// A part without keys has weight 0 and is not read.
void merge_row(std::span<const AttentionState> states, const Row& row, double lse, double* out, std::int64_t value_dim) {
  for (std::int64_t d = 0; d < value_dim; ++d) out[d] = 0.0;
  for (const AttentionState& state : states) {
    const double part = element(state.lse, {row.b, row.h, row.i});
    if (part == kMinusInfinity) continue;
    const double weight = std::exp(part - lse);
    for (std::int64_t d = 0; d < value_dim; ++d) out[d] += weight * element(state.out, {row.b, row.i, row.h, d});
  }
}

}  // namespace

AttentionState merge_states(std::span<const AttentionState> states) {
  check(states);
  const base::DefaultFloatingPoint environment;
  const Shape& s = states[0].out.shape();
  Tensor out(DType::kFloat64, s);
  Tensor lse(DType::kFloat64, states[0].lse.shape());
  double* out_row = out.data_as<double>();
  for (std::int64_t b = 0; b < s[0]; ++b) {
    for (std::int64_t i = 0; i < s[1]; ++i) {
      for (std::int64_t h = 0; h < s[2]; ++h, out_row += s[3]) {
        const double merged = merged_lse(states, {b, i, h});
        lse.data_as<double>()[(b * s[2] + h) * s[1] + i] = merged;
        merge_row(states, {b, i, h}, merged, out_row, s[3]);
      }
    }
  }
  return {front::rounded_like(out, states[0].out), front::rounded_like(lse, states[0].lse)};
}

}  // namespace heed
