// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/measure.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <utility>

#include <sys/resource.h>

#include <heed/kernels.hpp>

#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

// A probe runs for half of its kernel's slice, within these limits: shorter ones see a clock tick, longer ones waste the time of rounds.
// Beside a call of seconds it takes a twentieth of that.
constexpr double kLeastProbe = 0.004, kMostProbe = 0.04, kLongShare = 0.05;

template <class Work>
double seconds_of(Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Rounds of a register probe that take a second. From the best of some short runs on one thread, which no neighbour disturbed.
double rounds_per_second(double (*probe)(std::int64_t)) {
  constexpr std::int64_t kRounds = 20000;  // about a millisecond
  const int threads = get_num_threads();
  set_num_threads(1);
  double best = seconds_of([&] { (void)probe(kRounds); });
  for (int i = 0; i < 9; ++i) best = std::min(best, seconds_of([&] { (void)probe(kRounds); }));
  set_num_threads(threads);
  return static_cast<double>(kRounds) / best;
}

YardstickPtr register_yardstick(const char* name, double (*probe)(std::int64_t)) {
  const double rate = rounds_per_second(probe);
  return std::make_shared<Yardstick>(Yardstick{name, "GFLOP/s", [probe, rate](double seconds) {
                                                 const auto rounds = static_cast<std::int64_t>(rate * seconds) + 1;
                                                 double work = 0;
                                                 const double taken = seconds_of([&] { work = probe(rounds); });
                                                 return work / taken * 1e-9;
                                               }});
}

/// What the rounds of one case gave, and how it is run.
struct Running {
  const BenchCase* bench_case;
  int calls = 1;             // of one round
  double probe_seconds = 0;  // each side
  std::vector<double> value = {}, peak = {}, ratio = {}, seconds = {};
  int disturbed = 0;  // rounds

  /// Units of 1e-9 a second.
  double round() {
    const double taken = seconds_of([&] {
      for (int i = 0; i < calls; ++i) bench_case->run();
    });
    seconds.push_back(taken / calls);
    return bench_case->work * calls / taken * 1e-9;
  }
  void add(double kernel, double before, double after) {
    value.push_back(kernel);
    peak.push_back((before + after) / 2);
    ratio.push_back(kernel / peak.back());
  }
};

/// The first run pays for pages and scratch; the second tells how many calls a round takes.
Running prepare(const BenchCase& bench_case, double slice_seconds) {
  bench_case.run();
  const double once = std::max(1e-7, seconds_of(bench_case.run));
  const double calls = std::clamp(std::ceil(slice_seconds / once), 1.0, 1e6);
  const double most = std::max(kMostProbe, kLongShare * once);
  return {&bench_case, static_cast<int>(calls), std::clamp(calls * once / 2, std::min(kLeastProbe, slice_seconds), most)};
}

/// How often the system has taken a core from one of our threads that wanted to go on.
std::int64_t preemptions_so_far() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

/// One round over all cases. A yardstick's run after one case serves as the run before the next, if that has the same.
void run_round(std::vector<Running>& all) {
  const Yardstick* fresh = nullptr;
  double before = 0;
  for (Running& running : all) {
    if (interrupted()) return;
    const Yardstick& yardstick = *running.bench_case->yardstick;
    const std::int64_t preemptions = preemptions_so_far();
    if (fresh != &yardstick) before = yardstick.speed(running.probe_seconds);
    const double value = running.round();
    const double after = yardstick.speed(running.probe_seconds);
    running.add(value, before, after);
    running.disturbed += preemptions_so_far() > preemptions ? 1 : 0;
    fresh = &yardstick;
    before = after;
  }
}

BenchRow summarize(const Running& running, int threads) {
  const BenchCase& c = *running.bench_case;
  BenchRow row{.suite = {},
               .name = c.name,
               .shape = c.shape,
               .dtype = c.dtype,
               .threads = threads,
               .value = spread_of(running.value),
               .unit = c.yardstick->unit};
  const Spread peak = spread_of(running.peak);
  row.peak = Peak{peak.median, c.yardstick->name, peak.most};
  row.ratio = spread_of(running.ratio);
  row.target = c.target;
  row.rounds = static_cast<int>(running.ratio.size());
  row.disturbed_rounds = running.disturbed;
  row.seconds = spread_of(running.seconds).median;
  row.note = c.note;
  return row;
}

}  // namespace

YardstickPtr fma_yardstick() {
  static const YardstickPtr yardstick = register_yardstick("FMA", probe_fma);
  return yardstick;
}

YardstickPtr bf16_dot_yardstick() {
  static const YardstickPtr yardstick = probe_bf16_dot(1) > 0 ? register_yardstick("bf16 dot", probe_bf16_dot) : nullptr;
  return yardstick;
}

YardstickPtr compute_yardstick(DType dtype) {
  const YardstickPtr dot = dtype == DType::kBFloat16 ? bf16_dot_yardstick() : nullptr;
  return dot != nullptr ? dot : fma_yardstick();
}

YardstickPtr read_yardstick(std::span<const float> memory) {
  return std::make_shared<Yardstick>(Yardstick{"read", "GB/s", [memory](double /*seconds*/) {
                                                 double bytes = 0;
                                                 const double taken = seconds_of([&] { bytes = probe_read(memory); });
                                                 return bytes / taken * 1e-9;
                                               }});
}

YardstickPtr rival_yardstick(std::string name, std::string unit, double work, std::function<void()> run) {
  const auto once = std::make_shared<double>(0);  // seconds of the latest call
  return std::make_shared<Yardstick>(Yardstick{std::move(name), std::move(unit), [work, once, run = std::move(run)](double seconds) {
                                                 const int calls = *once > 0 ? static_cast<int>(std::clamp(seconds / *once, 1.0, 1e6)) : 1;
                                                 const double taken = seconds_of([&] {
                                                   for (int i = 0; i < calls; ++i) run();
                                                 });
                                                 *once = taken / calls;
                                                 return work * calls / taken * 1e-9;
                                               }});
}

std::vector<BenchRow> measure(std::span<const BenchCase> cases, int threads, const Effort& effort) {
  if (cases.empty()) return {};
  set_num_threads(threads);
  std::vector<Running> all;
  for (const BenchCase& bench_case : cases) {
    if (interrupted()) return {};
    all.push_back(prepare(bench_case, effort.slice_seconds));
    (void)bench_case.yardstick->speed(all.back().probe_seconds);
  }
  double elapsed = 0, longest = 0;
  for (int round = 0; round < effort.most_rounds && !interrupted(); ++round) {
    if (round >= effort.least_rounds && elapsed + longest > effort.seconds) break;
    const double taken = seconds_of([&] { run_round(all); });
    elapsed += taken;
    longest = std::max(longest, taken);
  }
  std::vector<BenchRow> rows;
  for (const Running& running : all) {
    if (!running.ratio.empty()) rows.push_back(summarize(running, threads));
  }
  return rows;
}

double time_of(const std::function<void()>& run) { return seconds_of(run); }

}  // namespace heed::cli::bench
