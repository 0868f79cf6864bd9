// SPDX-License-Identifier: Apache-2.0
// Speed as a share of the machine's own: every timed call of a kernel sits between two runs of its yardstick, in the same process, so that
// a busy neighbour or a changing clock hits both. Medians over rounds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace heed::cli {

/// What bounds a kernel: multiply-adds, bfloat16 dots, or bytes read from memory.
enum class Bound { kFma, kBf16Dot, kRead };

[[nodiscard]] const char* to_string(Bound bound) noexcept;
/// "GFLOP/s" or "GB/s"
[[nodiscard]] const char* unit_of(Bound bound) noexcept;

struct BenchCase {
  std::string name, shape;
  Bound bound = Bound::kFma;
  double work = 0;  ///< useful flop, or bytes that must be read, of one run
  std::function<void()> run;
};

/// Medians; speeds in flop/s or bytes/s. `ratio` is the median of the rounds' ratios, not the ratio of the medians.
struct BenchResult {
  std::string name, shape;
  Bound bound = Bound::kFma;
  int threads = 1;
  double speed = 0, peak = 0, ratio = 0, ratio_min = 0, ratio_max = 0;
};

/// Runs the yardsticks. Their lengths are found once, at construction.
class Yardsticks {
 public:
  /// `memory` is what the read probe walks over; its size should be what a decode case walks over. May be empty where no case reads.
  /// Leaves the number of threads at one; measure() below sets it.
  Yardsticks(int threads, std::span<const float> memory);
  /// flop/s or bytes/s, now.
  [[nodiscard]] double measure(Bound bound) const;
  [[nodiscard]] int threads() const noexcept { return threads_; }

 private:
  int threads_;
  std::span<const float> memory_;
  std::int64_t fma_rounds_, dot_rounds_;
};

/// Every case once untimed, then `rounds` rounds over all cases. Sets the number of threads.
[[nodiscard]] std::vector<BenchResult> measure(std::span<const BenchCase> cases, const Yardsticks& yardsticks, int rounds);

}  // namespace heed::cli
