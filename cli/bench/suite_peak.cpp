// SPDX-License-Identifier: Apache-2.0
// heed bench --suite peak: the yardsticks alone.
#include <string>
#include <utility>
#include <vector>

#include <heed/kernels.hpp>

#include "cli/bench/bench.hpp"
#include "cli/bench/caches.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

constexpr double kSeconds = 0.02;  // of one run of a probe

BenchRow peak_row(const Yardstick& yardstick, const std::string& shape, int threads, int rounds) {
  set_num_threads(threads);
  (void)yardstick.speed(kSeconds);
  std::vector<double> speeds;
  for (int i = 0; i < rounds && (i == 0 || !interrupted()); ++i) speeds.push_back(yardstick.speed(kSeconds));
  BenchRow row{.suite = {},
               .name = yardstick.name,
               .shape = shape,
               .dtype = {},
               .threads = threads,
               .value = spread_of(speeds),
               .unit = yardstick.unit};
  row.rounds = static_cast<int>(speeds.size());
  return row;
}

}  // namespace

void run_peak(Bench& bench) {
  const CachePool memory(DType::kFloat32, bench.quick() ? 16 << 20 : decode_bytes());
  std::vector<std::pair<YardstickPtr, std::string>> yardsticks = {{fma_yardstick(), "between registers"}};
  if (bf16_dot_yardstick() != nullptr) yardsticks.emplace_back(bf16_dot_yardstick(), "between registers");
  yardsticks.emplace_back(read_yardstick(memory.as_floats()), bytes_text(memory.elements() * 4));
  for (const auto& [yardstick, shape] : yardsticks) {
    if (!bench.wants(yardstick->name, "", shape)) continue;
    for (const int n : bench.threads()) bench.add(peak_row(*yardstick, shape, n, bench.quick() ? 1 : 31));
  }
}

}  // namespace heed::cli::bench
