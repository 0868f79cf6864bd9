// SPDX-License-Identifier: Apache-2.0
// What a suite reports: one row per kernel, shape, type and number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace heed::cli::bench {

/// What the rounds of one measurement gave. low and high bound the median with 95 % confidence, whatever the distribution: order
/// statistics of the binomial; with fewer than six rounds that is the whole range.
struct Spread {
  double median = 0, least = 0, most = 0, low = 0, high = 0;
};
/// `samples` must not be empty.
[[nodiscard]] Spread spread_of(std::vector<double> samples);
/// A number without rounds of its own.
[[nodiscard]] Spread exactly(double value);
/// 1 / x for every x of it.
[[nodiscard]] Spread inverse(const Spread& spread);

/// Whether a large ratio (or value, in a row without a ratio) is good.
enum class Better { kHigher, kLower };

/// The yardstick that a row was measured in turn with.
struct Peak {
  double value = 0;  ///< median, in the row's unit
  std::string of;    ///< "FMA", "bf16 dot", "read", or what else the kernel ran against
  double best = 0;   ///< of all rounds; 0: not known. Beside value_max, it tells what both do when nobody disturbs
};

struct BenchRow {
  std::string suite, name, shape, dtype;
  int threads = 1;
  Spread value;
  std::string unit;
  std::optional<Peak> peak = {};
  std::optional<Spread> ratio = {};   ///< median of the rounds' ratios value / peak, not the ratio of the medians
  std::optional<double> target = {};  ///< for the ratio; for the value where there is no ratio
  Better better = Better::kHigher;
  int rounds = 0;
  int disturbed_rounds = 0;                       ///< during which the system gave a core of ours to another program
  std::optional<double> seconds = {};             ///< median of one call
  std::optional<std::int64_t> length = {};        ///< L, in cost curves
  std::optional<std::int64_t> memory_bytes = {};  ///< in cost curves
  std::string note = {};
};

/// What the target is for, and what --compare compares.
[[nodiscard]] const Spread& judged(const BenchRow& row) noexcept;
enum class Outcome { kNoTarget, kPass, kFail };
[[nodiscard]] Outcome outcome_of(const BenchRow& row) noexcept;

/// For every pair of rows that differ in their threads only: how the speed grows, against how the yardstick's does.
[[nodiscard]] std::vector<BenchRow> thread_scaling(const std::vector<BenchRow>& rows);

}  // namespace heed::cli::bench
