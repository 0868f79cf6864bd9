// SPDX-License-Identifier: Apache-2.0
#include "ladder/measure.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <ctime>

#include <heed/kernels.hpp>

namespace ladder {
namespace {

constexpr double kSeconds = 0.005;  ///< of a probe, and at least of a step: quick ones run more than once
/// A sample during which the scheduler took the core away is taken again: whoever had it also had the caches.
constexpr int kAttempts = 40;
constexpr double kPatience = 1.0;  ///< seconds: slow steps do not fit between two interruptions on a busy machine, and hardly notice them

/// Processor time of this one-threaded program: what a scheduler gives to others meanwhile does not count.
template <class Work>
double seconds_of(Work&& work) {
  const std::clock_t start = std::clock();
  work();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

std::int64_t probe_rounds() {
  constexpr std::int64_t kRounds = 20000;
  double best = 1;
  for (int i = 0; i < 10; ++i) best = std::min(best, seconds_of([] { (void)heed::probe_fma(kRounds); }));
  return static_cast<std::int64_t>(static_cast<double>(kRounds) * kSeconds / best) + 1;
}

double probe(std::int64_t rounds) {
  double flops = 0;
  const double seconds = seconds_of([&] { flops = heed::probe_fma(rounds); });
  return flops / seconds;
}

/// Between the nearest two ranks; share 0.5 is the median.
double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  const double rank = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(rank);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (rank - static_cast<double>(below)) * (values[above] - values[below]);
}

struct Samples {
  int repeats = 1, attempts = 1;
  std::vector<double> speed, peak, ratio;
};

/// How often the scheduler has taken the core away from this program.
long interruptions() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_nivcsw;
}

struct Sample {
  double before, seconds, after;  ///< peak, step, peak
};

Sample sample(const Rung& rung, const Problem& p, std::int64_t rounds, const Samples& samples) {
  const auto run = [&] {
    for (int i = 0; i < samples.repeats; ++i) rung.step(p);
  };
  Sample s{};
  double spent = 0;
  for (int attempt = 0; attempt < samples.attempts && spent < kPatience; ++attempt) {
    const long begin = interruptions();
    s.before = probe(rounds);
    s.seconds = seconds_of(run);
    s.after = probe(rounds);
    if (interruptions() == begin) break;
    spent += s.seconds;
  }
  return s;
}

void add_round(const Rung& rung, const Problem& p, std::int64_t rounds, Samples& samples) {
  const Sample s = sample(rung, p, rounds, samples);
  const auto pairs = static_cast<double>(p.length * p.length);
  samples.speed.push_back(4 * pairs * static_cast<double>(p.head_dim) * samples.repeats / s.seconds);  // two products of 2 * L * L * D
  samples.peak.push_back((s.before + s.after) / 2);
  samples.ratio.push_back(samples.speed.back() / samples.peak.back());
}

}  // namespace

std::vector<Result> measure(const std::vector<Rung>& rungs, const Problem& problem, int rounds) {
  const std::int64_t probes = probe_rounds();
  std::vector<Samples> samples(rungs.size());
  for (std::size_t i = 0; i < rungs.size(); ++i) {  // the first run also warms up
    const double seconds = seconds_of([&] { rungs[i].step(problem); });
    samples[i].attempts = rounds > 1 ? kAttempts : 1;  // a single round only shows that everything runs
    samples[i].repeats = static_cast<int>(std::clamp(kSeconds / std::max(seconds, 1e-6), 1.0, 100.0));
  }
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < rungs.size(); ++i) add_round(rungs[i], problem, probes, samples[i]);
  }
  std::vector<Result> results;
  for (std::size_t i = 0; i < rungs.size(); ++i) {
    const Samples& s = samples[i];
    results.push_back({rungs[i].name, quantile(s.speed, 0.5), quantile(s.peak, 0.5), quantile(s.ratio, 0.5), quantile(s.ratio, 0.25),
                       quantile(s.ratio, 0.75)});
  }
  return results;
}

}  // namespace ladder
