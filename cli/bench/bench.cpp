// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/bench.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "cli/io.hpp"

namespace heed::cli::bench {

Effort Bench::effort(double seconds, int least_rounds) const {
  if (quick()) return {.least_rounds = 1, .most_rounds = 1, .seconds = 0, .slice_seconds = 0.0005};
  Effort effort{.least_rounds = least_rounds, .seconds = seconds};
  if (rounds_) effort.least_rounds = effort.most_rounds = *rounds_;
  return effort;
}

void Bench::begin_suite(const std::string& name) {
  suite_ = name;
  note(fmt::format("{} ...\n", name));
}

bool Bench::wants(const std::string& name, const std::string& dtype, const std::string& shape) const {
  return only_.empty() || fmt::format("{} {} {}", name, dtype, shape).find(only_) != std::string::npos;
}

std::vector<BenchCase> Bench::wanted(std::span<const BenchCase> cases) const {
  std::vector<BenchCase> chosen;
  std::copy_if(cases.begin(), cases.end(), std::back_inserter(chosen),
               [this](const BenchCase& c) { return wants(c.name, c.dtype, c.shape); });
  return chosen;
}

void Bench::run(std::span<const BenchCase> cases, double seconds, int least_rounds) {
  const auto chosen = wanted(cases);
  for (const int n : threads_) {
    for (BenchRow& row : measure(chosen, n, effort(seconds, least_rounds))) add(std::move(row));
  }
}

void Bench::add(BenchRow row) {
  row.suite = suite_;
  rows_.push_back(std::move(row));
}

void Bench::add_thread_scaling() {
  for (BenchRow& row : thread_scaling(suite_rows())) add(std::move(row));
}

std::vector<BenchRow> Bench::suite_rows() const {
  std::vector<BenchRow> rows;
  std::copy_if(rows_.begin(), rows_.end(), std::back_inserter(rows), [this](const BenchRow& row) { return row.suite == suite_; });
  return rows;
}

std::span<const Suite> suites() {
  static constexpr std::array<Suite, 12> kSuites = {{
      {"overview", "the README's table: prefill, decode and backward at one size each (the default)", run_overview},
      {"peak", "what the machine does at most: multiply-adds, bf16 dots, bytes read", run_peak},
      {"forward", "every type and head dimension, both memory layouts; grouped heads against as many alone", run_forward},
      {"causal", "causal prefill from 256 to 8192 tokens", run_causal},
      {"decode", "one query over long caches: MHA, GQA, MQA, batches, ragged lengths; chunks of 1 to 64 queries", run_decode},
      {"backward", "gradients: every type, both layouts, with and without a causal mask", run_backward},
      {"short", "16 to 512 tokens against GEMM, softmax, GEMM by oneDNN; the cost of a call", run_short},
      {"masks", "windows, documents, block-sparse layouts against their share of the dense time", run_masks},
      {"sparse", "published sparse patterns at 16,384 tokens against their share of the dense time", run_sparse},
      {"kv", "decode from caches of every format and layout; 8 bits against bfloat16", run_kv},
      {"scaling", "time and memory from 256 to 65,536 tokens; threads", run_scaling},
      {"gate", "the project's targets, PASS or FAIL, within 90 seconds", run_gate},
  }};
  return kSuites;
}

}  // namespace heed::cli::bench
