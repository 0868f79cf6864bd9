// SPDX-License-Identifier: Apache-2.0
// heed bench --suite backward: gradients, at 2.5 times the forward's useful flop.
#include <cstdint>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/bench.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/bench/targets.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

void add_cases(std::vector<BenchCase>& cases, Problem problem) {
  for (const Layout layout : {Layout::kHeadsFirst, Layout::kTokensFirst}) {
    problem.layout = layout;
    problem.mask = Mask::none();
    cases.push_back(backward_case(fmt::format("backward no mask {}", to_string(layout)), problem));
    problem.mask = Mask::causal();
    const auto target = problem.head_dim == 64 ? target_of(Pass::kBackward, problem.dtype, 64) : std::nullopt;
    cases.push_back(backward_case(fmt::format("backward causal {}", to_string(layout)), problem, target));
  }
}

std::vector<BenchCase> cases_of(const Bench& bench, DType dtype) {
  std::vector<BenchCase> cases;
  for (const std::int64_t head_dim : {64, 128}) add_cases(cases, self_attention(dtype, bench.pick(1024, 16), head_dim));
  Problem grouped = self_attention(dtype, bench.pick(1024, 16), 128);
  grouped.kv_heads = 2;
  add_cases(cases, grouped);
  return cases;
}

}  // namespace

void run_backward(Bench& bench) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (interrupted()) return;
    bench.run(cases_of(bench, dtype), 5);
  }
  bench.add_thread_scaling();
}

}  // namespace heed::cli::bench
