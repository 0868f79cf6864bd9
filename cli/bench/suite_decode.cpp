// SPDX-License-Identifier: Apache-2.0
// heed bench --suite decode: one query over long caches against the read bandwidth; and chunks of queries, without a cliff between the
// narrow and the wide path.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <heed/kernels.hpp>

#include "cli/bench/bench.hpp"
#include "cli/bench/caches.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/bench/targets.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

struct Heads {
  std::int64_t q, kv;
};
constexpr std::array<Heads, 6> kHeads = {{{8, 8}, {24, 8}, {32, 8}, {32, 4}, {27, 3}, {32, 1}}};  // G = 1, 3, 4, 8, 9, 32

/// Between a quarter of the keys and all of them, unequally.
std::vector<std::int64_t> ragged_lengths(std::int64_t batch, std::int64_t keys) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t b = 0; b < batch; ++b) lengths.push_back(keys - b * b * (keys * 3 / 4) / ((batch - 1) * (batch - 1)));
  return lengths;
}

std::vector<BenchCase> cases_of(const Bench& bench, const CachePoolPtr& pool) {
  const YardstickPtr read = read_yardstick(pool->as_floats());
  const std::int64_t scale = bench.pick(1, 16);
  std::vector<BenchCase> cases;
  for (const Heads heads : kHeads) {
    const auto target = heads.q == 4 * heads.kv ? target_of(Pass::kDecode, pool->dtype(), 128) : std::nullopt;
    cases.push_back(decode_case(fmt::format("decode G{}", heads.q / heads.kv), pool, read,
                                {.q_heads = heads.q, .kv_heads = heads.kv, .keys = 8192 / scale}, target));
  }
  cases.push_back(decode_case("decode batch 8", pool, read, {.batch = 8, .keys = 4096 / scale / scale}));
  cases.push_back(decode_case("decode batch 32", pool, read, {.batch = 32, .keys = 1024 / scale}));
  const std::int64_t keys = 4096 / scale / scale;
  cases.push_back(decode_case("decode ragged", pool, read, {.batch = 8, .keys = keys, .lengths = ragged_lengths(8, keys)}));
  return cases;
}

constexpr std::int64_t kMostQueries = 64;
constexpr const char* kWorstStep = "chunked prefill, worst step";

/// Attention of the cache's last 1 to kMostQueries tokens over all of it.
struct Chunks {
  explicit Chunks(const Problem& problem) : inputs(problem) {}
  void run(std::int64_t queries) {
    const TensorView q = slice(inputs.q, 1, 0, queries);
    attention_into({.out = slice(inputs.out, 1, 0, queries)}, q, inputs.k, inputs.v, {.mask = Mask::causal()});
  }
  Inputs inputs;
};

/// steps[i]: how the time of one row grows from i + 1 queries to i + 2, in one pass over all chunk sizes.
std::vector<double> steps_of_a_pass(Chunks& chunks, std::int64_t most) {
  std::vector<double> steps;
  double before = 0;
  for (std::int64_t queries = 1; queries <= most; ++queries) {
    // The better of two: a single neighbour's burst would look like a cliff.
    const auto once = [&] { return time_of([&] { chunks.run(queries); }); };
    const double per_row = std::min(once(), once()) / static_cast<double>(queries);
    if (queries > 1) steps.push_back(per_row / before);
    before = per_row;
  }
  return steps;
}

/// The worst step, each taken as its median over passes.
BenchRow worst_step(const Bench& bench, const Problem& problem, int threads) {
  set_num_threads(threads);
  const std::int64_t most = bench.pick(kMostQueries, 4);
  Chunks chunks(problem);
  std::vector<std::vector<double>> by_step(static_cast<std::size_t>(most - 1));
  const int passes = bench.quick() ? 1 : 9;
  for (int pass = 0; pass < passes && (pass == 0 || !interrupted()); ++pass) {
    const auto steps = steps_of_a_pass(chunks, most);
    for (std::size_t i = 0; i < steps.size(); ++i) by_step[i].push_back(steps[i]);
  }
  Spread worst;
  std::size_t at = 0;
  for (std::size_t i = 0; i < by_step.size(); ++i) {
    const Spread step = spread_of(by_step[i]);
    if (step.median > worst.median) {
      worst = step;
      at = i;
    }
  }
  BenchRow row{.suite = {},
               .name = kWorstStep,
               .shape = shape_text(problem),
               .dtype = to_string(problem.dtype),
               .threads = threads,
               .value = worst,
               .unit = "x"};
  row.target = 1.3;
  row.better = Better::kLower;
  row.rounds = static_cast<int>(by_step[0].size());
  row.note = fmt::format("time of a row from Lq {} to {}", at + 1, at + 2);
  return row;
}

}  // namespace

void run_decode(Bench& bench) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (interrupted()) return;
    const auto pool = std::make_shared<CachePool>(dtype, bench.quick() ? 16 << 20 : decode_bytes());
    bench.run(cases_of(bench, pool), 8);
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const Problem problem{.kv_heads = 2, .q_tokens = bench.pick(kMostQueries, 4), .keys = bench.pick(8192, 512), .dtype = dtype};
    if (!bench.wants(kWorstStep, to_string(dtype), shape_text(problem))) continue;
    for (const int n : bench.threads()) {
      if (interrupted()) return;
      bench.add(worst_step(bench, problem, n));
    }
  }
}

}  // namespace heed::cli::bench
