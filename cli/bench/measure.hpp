// SPDX-License-Identifier: Apache-2.0
// Speed as a share of the machine's own: many short rounds; in each, a kernel sits between two runs of its yardstick that take together
// about as long as it does, in the same process, so that a busy neighbour or a changing clock hits both. The ratio is taken round by round;
// the median of the rounds is reported with its spread, and no round is left out.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <heed/dtype.hpp>

#include "cli/bench/row.hpp"

namespace heed::cli::bench {

/// What a kernel is measured against: a probe of the machine, or another way to do the same work.
struct Yardstick {
  std::string name, unit;               ///< "FMA", "GFLOP/s"
  std::function<double(double)> speed;  ///< runs for about so many seconds on the current number of threads; units of 1e-9 a second
};
using YardstickPtr = std::shared_ptr<const Yardstick>;

/// Multiply-adds between registers.
[[nodiscard]] YardstickPtr fma_yardstick();
/// bfloat16 pair dots between registers; null where the active instruction set has none.
[[nodiscard]] YardstickPtr bf16_dot_yardstick();
/// What bounds products of this type here: the bf16 dot for bfloat16 where it is native, else FMA.
[[nodiscard]] YardstickPtr compute_yardstick(DType dtype);
/// Reads all of the memory once, however long that takes; its size should be what the kernel walks over.
[[nodiscard]] YardstickPtr read_yardstick(std::span<const float> memory);
/// `work` flop or bytes in each run().
[[nodiscard]] YardstickPtr rival_yardstick(std::string name, std::string unit, double work, std::function<void()> run);

struct BenchCase {
  std::string name, shape, dtype;
  YardstickPtr yardstick;
  double work = 0;  ///< useful flop, or bytes that must be read, of one run
  std::function<void()> run;
  std::optional<double> target = {};
  std::string note = {};
};

/// How long to measure: rounds until `seconds` are over, but at least and at most so many.
struct Effort {
  int least_rounds = 5, most_rounds = 200;
  double seconds = 10;
  double slice_seconds = 0.012;  ///< shorter calls are repeated until they take so long
};

/// Every case twice untimed, then rounds over all cases. Sets the number of threads. Without a row where Ctrl-C came before a first round.
[[nodiscard]] std::vector<BenchRow> measure(std::span<const BenchCase> cases, int threads, const Effort& effort);

/// Seconds of `run`.
[[nodiscard]] double time_of(const std::function<void()>& run);

}  // namespace heed::cli::bench
