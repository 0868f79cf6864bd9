// SPDX-License-Identifier: Apache-2.0
// heed bench --suite sparse: the published patterns at a length where it matters. Time against the dense time's share of tiles that some
// query sees.
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/bench.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

struct Pattern {
  std::string name;
  Mask mask;
};

/// At 16,384 tokens each leaves about a tenth of the tiles, but where its nature is another.
std::vector<Pattern> patterns(std::int64_t length) {
  const std::int64_t unit = length / 128;  // 128 at full length
  return {{"sliding window", Mask::sliding_window(13 * unit)},
          {"sinks and window", Mask::sinks_and_window(4, 13 * unit)},
          {"longformer", Mask::longformer(6 * unit, std::array<std::int64_t, 3>{0, length / 3, length / 2})},
          {"big bird", Mask::big_bird({.block = 64, .window_blocks = 7, .global_blocks = 4, .random_blocks = 6, .seed = 1})},
          {"random blocks", Mask::random_blocks({.block = 64, .per_row = length / 640, .seed = 1})},
          {"chunked", Mask::causal() & Mask::chunked(26 * unit)}};
}

/// Of tiles with a visible element; tests/mask compares these counts with single elements.
double tile_share(std::int64_t length, const Mask& mask) {
  const TileStatistics counts = mask.tile_statistics(length, length);
  return static_cast<double>(counts.visited) / static_cast<double>(counts.tiles);
}

BenchCase case_of(const Problem& dense, const Pattern& pattern, const BenchCase& whole, const YardstickPtr& yardstick) {
  constexpr double kTarget = 1.0 / 1.25;
  Problem problem = dense;
  problem.mask = pattern.mask;
  const double share = tile_share(problem.keys, pattern.mask);
  BenchCase c = forward_case(pattern.name, problem, kTarget);
  c.yardstick = yardstick;
  c.work = whole.work * share;
  c.note = fmt::format("{:.1f} % of the tiles", 100 * share);
  return c;
}

}  // namespace

void run_sparse(Bench& bench) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (interrupted()) return;
    Problem dense = self_attention(dtype, bench.pick(16384, 1280), 64);
    dense.q_heads = dense.kv_heads = 1;
    const BenchCase whole = forward_case("dense", dense);
    const YardstickPtr yardstick = rival_yardstick("share of dense", "GFLOP/s", whole.work, whole.run);
    std::vector<BenchCase> cases;
    for (const Pattern& pattern : patterns(dense.keys)) cases.push_back(case_of(dense, pattern, whole, yardstick));
    bench.run(cases, 8);
  }
}

}  // namespace heed::cli::bench
