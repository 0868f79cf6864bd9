// SPDX-License-Identifier: Apache-2.0
// heed bench --suite gate: what the project holds itself to, on one and two threads, within 90 seconds on two cores.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/bench.hpp"
#include "cli/bench/caches.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/bench/targets.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

constexpr std::array kLayouts = {Layout::kHeadsFirst, Layout::kTokensFirst};

/// Shares out the time that is left, so that a slow machine gets fewer rounds rather than more minutes.
class Schedule {
 public:
  static constexpr double kForward = 20, kDecode = 5, kBackward = 6;  // weights
  explicit Schedule(std::size_t thread_counts) : thread_counts_(static_cast<double>(thread_counts)) {}

  /// Seconds of rounds for each number of threads of a part of this weight.
  [[nodiscard]] double next(double weight) {
    constexpr double kAll = 80, kRounds = 0.85;  // the rest of the 90 s, and of a part's time, goes into inputs and first runs
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    const double share = weight / weights_left_;
    weights_left_ -= weight;
    return std::max(0.0, kAll - elapsed.count()) * share * kRounds / thread_counts_;
  }

 private:
  double thread_counts_, weights_left_ = kForward + 2 * kDecode + kBackward;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};
constexpr int kLeastRounds = 3;

void add_forward(std::vector<BenchCase>& cases, Problem problem, Pass pass) {
  problem.mask = pass == Pass::kCausal ? Mask::causal() : Mask::none();
  for (const Layout layout : kLayouts) {
    problem.layout = layout;
    cases.push_back(forward_case(fmt::format("forward {} {}", pass == Pass::kCausal ? "causal" : "no mask", to_string(layout)), problem,
                                 target_of(pass, problem.dtype, problem.head_dim)));
  }
}

std::vector<BenchCase> forward_cases(const Bench& bench) {
  std::vector<BenchCase> cases;
  const std::int64_t length = bench.pick(2048, 64);
  for (const std::int64_t head_dim : {128, 64}) {
    add_forward(cases, self_attention(DType::kFloat32, length, head_dim), Pass::kForward);
    add_forward(cases, self_attention(DType::kFloat32, length, head_dim), Pass::kCausal);
    add_forward(cases, self_attention(DType::kBFloat16, length, head_dim), Pass::kForward);
  }
  // Cases of one yardstick in a row share its runs.
  std::stable_partition(cases.begin(), cases.end(), [](const BenchCase& c) { return c.yardstick == fma_yardstick(); });
  return cases;
}

std::vector<BenchCase> backward_cases(const Bench& bench) {
  std::vector<BenchCase> cases;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const Layout layout : kLayouts) {
      Problem problem = self_attention(dtype, bench.pick(1024, 16), 64);
      problem.layout = layout;
      problem.mask = Mask::causal();
      cases.push_back(backward_case(fmt::format("backward causal {}", to_string(layout)), problem, target_of(Pass::kBackward, dtype, 64)));
    }
  }
  return cases;
}

void run_gate_decode(Bench& bench, DType dtype, Schedule& schedule) {
  const auto pool = std::make_shared<CachePool>(dtype, bench.quick() ? 16 << 20 : decode_bytes());
  const BenchCase decode =
      decode_case("decode", pool, read_yardstick(pool->as_floats()), {.keys = bench.pick(8192, 512)}, target_of(Pass::kDecode, dtype, 128));
  bench.run({&decode, 1}, schedule.next(Schedule::kDecode), kLeastRounds);
}

}  // namespace

void run_gate(Bench& bench) {
  Schedule schedule(bench.threads().size());
  bench.run(forward_cases(bench), schedule.next(Schedule::kForward), kLeastRounds);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (interrupted()) return;
    run_gate_decode(bench, dtype, schedule);
  }
  if (interrupted()) return;
  bench.run(backward_cases(bench), schedule.next(Schedule::kBackward), kLeastRounds);
  bench.add_thread_scaling();
}

}  // namespace heed::cli::bench
