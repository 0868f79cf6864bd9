// SPDX-License-Identifier: Apache-2.0
#include "cli/bench_measure.hpp"

#include <algorithm>
#include <chrono>

#include <heed/kernels.hpp>

#include "cli/io.hpp"

namespace heed::cli {
namespace {

// About half of a prefill's run: the yardsticks before and after a kernel then see as much of the neighbours as the kernel does.
constexpr double kProbeSeconds = 0.05;

template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Rounds of a register probe that take about kProbeSeconds. From the best of some short runs on one thread, which no neighbour disturbed.
template <class Probe>
std::int64_t rounds_for(Probe&& probe) {
  constexpr std::int64_t kRounds = 20000;  // about a millisecond
  double best = seconds_of([&] { (void)probe(kRounds); });
  for (int i = 0; i < 9; ++i) best = std::min(best, seconds_of([&] { (void)probe(kRounds); }));
  return static_cast<std::int64_t>(static_cast<double>(kRounds) * kProbeSeconds / best) + 1;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

/// What the rounds of one case gave.
struct Samples {
  std::vector<double> speed, peak, ratio;

  void add(double kernel, double before, double after) {
    speed.push_back(kernel);
    peak.push_back((before + after) / 2);
    ratio.push_back(kernel / peak.back());
  }
};

BenchResult summarize(const BenchCase& bench_case, const Samples& samples, int threads) {
  const auto [least, most] = std::minmax_element(samples.ratio.begin(), samples.ratio.end());
  return {bench_case.name,      bench_case.shape,      bench_case.bound, threads, median(samples.speed),
          median(samples.peak), median(samples.ratio), *least,           *most};
}

}  // namespace

const char* to_string(Bound bound) noexcept {
  switch (bound) {
    case Bound::kFma: return "FMA";
    case Bound::kBf16Dot: return "bf16 dot";
    case Bound::kRead: return "read";
  }
  return "";
}

const char* unit_of(Bound bound) noexcept { return bound == Bound::kRead ? "GB/s" : "GFLOP/s"; }

Yardsticks::Yardsticks(int threads, std::span<const float> memory) : threads_(threads), memory_(memory) {
  set_num_threads(1);
  fma_rounds_ = rounds_for(probe_fma);
  dot_rounds_ = probe_bf16_dot(1) > 0 ? rounds_for(probe_bf16_dot) : 0;
}

double Yardsticks::measure(Bound bound) const {
  double work = 0;
  const double seconds = seconds_of([&] {
    switch (bound) {
      case Bound::kFma: work = probe_fma(fma_rounds_); break;
      case Bound::kBf16Dot: work = probe_bf16_dot(dot_rounds_); break;
      case Bound::kRead: work = probe_read(memory_); break;
    }
  });
  return work / seconds;
}

std::vector<BenchResult> measure(std::span<const BenchCase> cases, const Yardsticks& yardsticks, int rounds) {
  set_num_threads(yardsticks.threads());
  for (const BenchCase& bench_case : cases) bench_case.run();
  std::vector<Samples> samples(cases.size());
  for (int round = 0; round < rounds && !interrupted(); ++round) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const double before = yardsticks.measure(cases[i].bound);
      const double speed = cases[i].work / seconds_of(cases[i].run);
      samples[i].add(speed, before, yardsticks.measure(cases[i].bound));
    }
  }
  std::vector<BenchResult> results;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (!samples[i].ratio.empty()) results.push_back(summarize(cases[i], samples[i], yardsticks.threads()));
  }
  return results;
}

}  // namespace heed::cli
