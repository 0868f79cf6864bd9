// SPDX-License-Identifier: Apache-2.0
// heed bench --suite scaling: cost curves against L. Time grows with the visible pairs, memory with the tokens. bench/plot_curves.py draws them.
#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <fmt/format.h>

#include <heed/kernels.hpp>

#include "cli/bench/bench.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

constexpr double kMostSeconds = 20;  // of one call: longer points are left out
constexpr std::int64_t kWindow = 1024;

/// A line of /proc/self/status, "VmHWM:" or "VmRSS:", in bytes; nothing where the system has no such file.
std::optional<std::int64_t> status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(name, 0) == 0) return std::stoll(line.substr(name.size())) * 1024;
  }
  return {};
}

/// From now on VmHWM is the peak since now. Linux only; elsewhere nothing is reported. What earlier points freed goes back to the system
/// first, or a short point would seem to need what a long one before it did.
void reset_peak_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
  std::ofstream("/proc/self/clear_refs") << "5";
}

struct Curve {
  const char* name;
  Mask mask;
};

double useful_flop(const Problem& p) {
  if (p.mask != Mask::sliding_window(kWindow)) return forward_flop(p);
  const auto L = static_cast<double>(p.keys), w = std::min(static_cast<double>(kWindow), L);
  return 4.0 * (w * (w + 1) / 2 + (L - w) * w) * static_cast<double>(p.q_heads * p.head_dim);
}

/// One point of a curve: its rows for every number of threads, with what the process needed beyond `base_bytes`, inputs and outputs included.
std::vector<BenchRow> point(const Bench& bench, const Curve& curve, std::int64_t length, std::optional<std::int64_t> base_bytes) {
  Problem problem = self_attention(DType::kFloat32, length, 64);
  problem.q_heads = problem.kv_heads = 1;
  problem.mask = curve.mask;
  reset_peak_memory();
  BenchCase bench_case = forward_case(fmt::format("forward {}", curve.name), problem);
  bench_case.work = useful_flop(problem);
  std::vector<BenchRow> rows;
  for (const int n : bench.threads()) {
    Effort effort = bench.effort(1.5);
    if (!bench.quick()) effort.least_rounds = 2;
    for (BenchRow& row : measure(bench.wanted({&bench_case, 1}), n, effort)) {
      row.length = length;
      if (const auto peak = status_bytes("VmHWM:"); peak && base_bytes) row.memory_bytes = *peak - *base_bytes;
      rows.push_back(std::move(row));
    }
  }
  return rows;
}

void run_curve(Bench& bench, const Curve& curve, std::optional<std::int64_t> base_bytes) {
  const std::int64_t longest = bench.pick(65536, 1024);
  for (std::int64_t length = 256; length <= longest; length *= 2) {
    if (interrupted()) return;
    double slowest = 0;
    for (BenchRow& row : point(bench, curve, length, base_bytes)) {
      slowest = std::max(slowest, row.seconds.value_or(0));
      bench.add(std::move(row));
    }
    if (length < longest && 4 * slowest > kMostSeconds) {
      note(fmt::format("{}: nothing beyond L{}, where a call takes {:.1f} s\n", curve.name, length, slowest));
      return;
    }
  }
}

}  // namespace

void run_scaling(Bench& bench) {
  set_num_threads(*bench.threads().rbegin());
  (void)fma_yardstick()->speed(0.001);  // starts the threads, so that their stacks belong to nobody's curve
  const std::array<Curve, 3> curves = {
      {{"dense", Mask::none()}, {"causal", Mask::causal()}, {"window 1024", Mask::sliding_window(kWindow)}}};
  // Before the first tensor: what the program, its libraries and their threads take.
  const auto base_bytes = status_bytes("VmRSS:");
  for (const Curve& curve : curves) run_curve(bench, curve, base_bytes);
  bench.add_thread_scaling();
}

}  // namespace heed::cli::bench
