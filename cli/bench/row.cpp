// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/row.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace heed::cli::bench {
namespace {

bool same_work(const BenchRow& a, const BenchRow& b) {
  return a.suite == b.suite && a.name == b.name && a.shape == b.shape && a.dtype == b.dtype && a.unit == b.unit;
}

BenchRow scaling_row(const BenchRow& one, const BenchRow& many) {
  // Two threads must reach 1.85 of the 2 that the yardstick reaches. Where the yardstick itself does not scale nothing can be asked.
  constexpr double kLeastShare = 1.85 / 2, kScales = 1.8;
  BenchRow row = many;
  const Spread &a = *one.ratio, &b = *many.ratio;
  row.name = "threads: " + many.name;
  row.unit = "x";
  row.value = exactly(many.value.median / one.value.median);
  row.peak = Peak{many.peak->value / one.peak->value, "yardstick's own"};
  row.ratio = Spread{b.median / a.median, b.least / a.most, b.most / a.least, b.low / a.high, b.high / a.low};
  row.target = {};
  if (many.threads == 2 && row.peak->value >= kScales) row.target = kLeastShare;
  row.seconds = {};
  row.length = row.memory_bytes = {};
  return row;
}

}  // namespace

Spread spread_of(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const std::size_t n = samples.size();
  const auto rank = static_cast<double>(n) / 2 - 0.98 * std::sqrt(static_cast<double>(n));  // normal approximation of Binomial(n, 1/2)
  const auto cut = rank > 1 ? static_cast<std::size_t>(rank) : 0;
  const double median = n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
  return {median, samples.front(), samples.back(), samples[cut], samples[n - 1 - cut]};
}

Spread exactly(double value) { return {value, value, value, value, value}; }

Spread inverse(const Spread& s) { return {1 / s.median, 1 / s.most, 1 / s.least, 1 / s.high, 1 / s.low}; }

const Spread& judged(const BenchRow& row) noexcept { return row.ratio ? *row.ratio : row.value; }

Outcome outcome_of(const BenchRow& row) noexcept {
  if (!row.target) return Outcome::kNoTarget;
  const double value = judged(row).median;
  return (row.better == Better::kHigher ? value >= *row.target : value <= *row.target) ? Outcome::kPass : Outcome::kFail;
}

std::vector<BenchRow> thread_scaling(const std::vector<BenchRow>& rows) {
  std::vector<BenchRow> scaling;
  for (const BenchRow& many : rows) {
    if (many.threads == 1 || !many.ratio) continue;
    for (const BenchRow& one : rows) {
      if (one.threads == 1 && one.ratio && same_work(one, many)) scaling.push_back(scaling_row(one, many));
    }
  }
  return scaling;
}

}  // namespace heed::cli::bench
