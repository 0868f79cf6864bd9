// SPDX-License-Identifier: Apache-2.0
// heed bench: one size of each kind of work, for the README's table.
#include <memory>
#include <vector>

#include "cli/bench/bench.hpp"
#include "cli/bench/caches.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

std::vector<BenchCase> prefill_cases(const Bench& bench) {
  std::vector<BenchCase> cases;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Problem problem = self_attention(dtype, bench.pick(2048, 128), 128);
    cases.push_back(forward_case("prefill no mask", problem));
    problem.mask = Mask::causal();
    cases.push_back(forward_case("prefill causal", problem));
  }
  return cases;
}

std::vector<BenchCase> backward_cases(const Bench& bench) {
  std::vector<BenchCase> cases;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    Problem problem = self_attention(dtype, bench.pick(1024, 16), 64);
    problem.mask = Mask::causal();
    cases.push_back(backward_case("backward causal", problem));
  }
  return cases;
}

}  // namespace

void run_overview(Bench& bench) {
  bench.run(prefill_cases(bench), 6);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (interrupted()) return;
    const auto pool = std::make_shared<CachePool>(dtype, bench.quick() ? 16 << 20 : decode_bytes());
    const BenchCase decode = decode_case("decode", pool, read_yardstick(pool->as_floats()), {.keys = bench.pick(8192, 512)});
    bench.run({&decode, 1}, 3);
  }
  bench.run(backward_cases(bench), 3);
}

}  // namespace heed::cli::bench
