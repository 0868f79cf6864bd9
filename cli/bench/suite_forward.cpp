// SPDX-License-Identifier: Apache-2.0
// heed bench --suite forward and --suite causal: prefill.
#include <array>
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

constexpr std::array kDTypes = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr std::array kLayouts = {Layout::kHeadsFirst, Layout::kTokensFirst};
constexpr std::array<std::int64_t, 6> kHeadDims = {64, 80, 96, 128, 192, 256};
constexpr std::int64_t kQuickTokens = 64;

std::vector<BenchCase> head_dim_cases(const Bench& bench, DType dtype) {
  std::vector<BenchCase> cases;
  for (const std::int64_t head_dim : kHeadDims) {
    for (const Layout layout : kLayouts) {
      Problem problem = self_attention(dtype, bench.pick(1024, kQuickTokens), head_dim);
      problem.layout = layout;
      cases.push_back(
          forward_case(fmt::format("forward no mask {}", to_string(layout)), problem, target_of(Pass::kForward, dtype, head_dim)));
    }
  }
  return cases;
}

/// Fewer KV heads for the same query heads, against as many of both: the flop are the same.
std::vector<BenchCase> group_cases(const Bench& bench, DType dtype) {
  // Two measurements of the same kernel differ by about so much.
  constexpr double kAsFast = 0.97;
  std::vector<BenchCase> cases;
  Problem problem = self_attention(dtype, bench.pick(1024, kQuickTokens), 128);
  problem.q_heads = problem.kv_heads = 24;
  problem.mask = Mask::causal();
  const BenchCase alone = forward_case("MHA", problem);
  const YardstickPtr mha = rival_yardstick("MHA", "GFLOP/s", alone.work, alone.run);
  for (const std::int64_t group : {3, 4, 8, 24}) {
    problem.kv_heads = problem.q_heads / group;
    BenchCase grouped = forward_case(fmt::format("causal G{} against MHA", group), problem, kAsFast);
    grouped.yardstick = mha;
    cases.push_back(grouped);
  }
  return cases;
}

/// As many heads as keep a call below about 20 GFLOP.
std::int64_t heads_for(std::int64_t length) { return length <= 2048 ? 8 : length <= 4096 ? 4 : 1; }

std::vector<BenchCase> causal_cases(const Bench& bench, DType dtype) {
  std::vector<BenchCase> cases;
  for (std::int64_t length = bench.pick(256, kQuickTokens); length <= bench.pick(8192, 2 * kQuickTokens); length *= 2) {
    for (const Layout layout : kLayouts) {
      Problem problem = self_attention(dtype, length, 128);
      problem.q_heads = problem.kv_heads = heads_for(length);
      problem.layout = layout;
      problem.mask = Mask::causal();
      // The targets are for long sequences: the diagonal's tiles are half empty, and at L = 256 they are a third of all.
      const auto target = length >= 2048 ? target_of(Pass::kCausal, dtype, 128) : std::nullopt;
      cases.push_back(forward_case(fmt::format("forward causal {}", to_string(layout)), problem, target));
    }
  }
  return cases;
}

}  // namespace

void run_forward(Bench& bench) {
  for (const DType dtype : kDTypes) {
    if (interrupted()) return;
    bench.run(head_dim_cases(bench, dtype), 5);
  }
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (interrupted()) return;
    bench.run(group_cases(bench, dtype), 4);
  }
  bench.add_thread_scaling();
}

void run_causal(Bench& bench) {
  for (const DType dtype : kDTypes) {
    if (interrupted()) return;
    bench.run(causal_cases(bench, dtype), 6);
  }
  bench.add_thread_scaling();
}

}  // namespace heed::cli::bench
