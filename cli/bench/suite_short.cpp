// SPDX-License-Identifier: Apache-2.0
// heed bench --suite short: sequences that fit caches, where a fused kernel has nothing to save and everything to lose; the cost of a call.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/bench.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/bench/unfused.hpp"
#include "cli/io.hpp"

namespace heed::cli::bench {
namespace {

/// Both compute the same thing, or the comparison is worth nothing. Absolute, for outputs that are means of values in [-1, 1).
void require_same(const Tensor& ours, const Tensor& theirs) {
  const float *a = ours.data_as<float>(), *b = theirs.data_as<float>();
  float worst = 0;
  for (std::int64_t i = 0; i < element_count(ours.shape()); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  if (!(worst < 1e-4F)) throw std::runtime_error(fmt::format("the unfused baseline differs by {}", worst));
}

struct Short {
  explicit Short(const Problem& p)
      : inputs(p), unfused(p.batch * p.q_heads, p.keys, p.head_dim), theirs(DType::kFloat32, inputs.out_memory.shape()) {}
  void fused() { attention_into({.out = inputs.out}, inputs.q, inputs.k, inputs.v); }
  void baseline() {
    unfused.run(std::as_const(inputs.q_memory).data_as<float>(), std::as_const(inputs.k_memory).data_as<float>(),
                std::as_const(inputs.v_memory).data_as<float>(), theirs.data_as<float>());
  }
  Inputs inputs;  // [B, H, L, D]
  UnfusedAttention unfused;
  Tensor theirs;
};

BenchCase short_case(std::int64_t batch, std::int64_t length, std::int64_t head_dim) {
  Problem problem = self_attention(DType::kFloat32, length, head_dim);
  problem.batch = batch;
  const auto both = std::make_shared<Short>(problem);
  both->fused();
  both->baseline();
  require_same(both->inputs.out_memory, both->theirs);
  const double work = forward_flop(problem);
  return {.name = "no mask against GEMM-softmax-GEMM",
          .shape = shape_text(problem),
          .dtype = to_string(problem.dtype),
          .yardstick = rival_yardstick("oneDNN", "GFLOP/s", work, [both] { both->baseline(); }),
          .work = work,
          .run = [both] { both->fused(); },
          .target = 1.0};
}

/// The time of a whole call minus what its flop would take at the peak: more than what lies before the kernel, never less.
std::vector<BenchRow> call_cost(const Bench& bench) {
  Problem problem = self_attention(DType::kFloat32, 16, 64);
  problem.q_heads = problem.kv_heads = 1;
  const BenchCase call = forward_case("call, beyond its flop at the peak", problem);
  auto rows = measure(bench.wanted({&call, 1}), 1, bench.effort(0.5));
  if (rows.empty()) return {};
  BenchRow& row = rows[0];
  const double flop_us = call.work / row.peak->value * 1e-3;
  const auto us = [&](double gflops) { return call.work / gflops * 1e-3 - flop_us; };
  const Spread speed = row.value;
  row.value = {us(speed.median), us(speed.most), us(speed.least), us(speed.high), us(speed.low)};
  row.unit = "us";
  row.peak = {};
  row.ratio = {};
  row.target = 5;
  row.better = Better::kLower;
  return rows;
}

}  // namespace

void run_short(Bench& bench) {
  std::vector<std::int64_t> lengths = {16, 64, 128, 256, 512};
  if (bench.quick()) lengths = {16, 64};
  for (const std::int64_t batch : {1, 8}) {
    for (const std::int64_t head_dim : {64, 128}) {
      std::vector<BenchCase> cases;
      for (const std::int64_t length : lengths) cases.push_back(short_case(batch, length, head_dim));
      if (interrupted()) return;
      bench.run(cases, 4);
    }
  }
  if (interrupted()) return;
  for (BenchRow& row : call_cost(bench)) bench.add(std::move(row));
}

}  // namespace heed::cli::bench
