// SPDX-License-Identifier: Apache-2.0
// What suites share: how thorough to be, with how many threads, and where the rows go.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench/measure.hpp"

namespace heed::cli::bench {

/// kQuick: small sizes and one round; shows that everything runs, measures nothing worth keeping.
enum class Size { kFull, kQuick };

class Bench {
 public:
  /// `only`: rows whose name, type and shape together contain it; all of them where it is empty.
  Bench(std::set<int> threads, Size size, std::optional<int> rounds, std::string only)
      : threads_(std::move(threads)), size_(size), rounds_(rounds), only_(std::move(only)) {}

  [[nodiscard]] const std::set<int>& threads() const noexcept { return threads_; }
  [[nodiscard]] bool quick() const noexcept { return size_ == Size::kQuick; }
  /// The full size, or the one that shows that it runs.
  [[nodiscard]] std::int64_t pick(std::int64_t full, std::int64_t small) const noexcept { return quick() ? small : full; }
  [[nodiscard]] Effort effort(double seconds, int least_rounds = 5) const;

  [[nodiscard]] bool wants(const std::string& name, const std::string& dtype, const std::string& shape) const;
  [[nodiscard]] std::vector<BenchCase> wanted(std::span<const BenchCase> cases) const;

  /// The rows that follow belong to this suite.
  void begin_suite(const std::string& name);
  /// Measures the cases with every number of threads, for about `seconds` each.
  void run(std::span<const BenchCase> cases, double seconds, int least_rounds = 5);
  void add(BenchRow row);
  void add_thread_scaling();
  [[nodiscard]] const std::vector<BenchRow>& rows() const noexcept { return rows_; }
  /// Of the current suite, so far.
  [[nodiscard]] std::vector<BenchRow> suite_rows() const;

 private:
  std::set<int> threads_;
  Size size_;
  std::optional<int> rounds_;
  std::string only_, suite_;
  std::vector<BenchRow> rows_;
};

struct Suite {
  const char* name;
  const char* summary;
  void (*run)(Bench& bench);
};
/// In the order in which they are listed. The first one is what runs when none is asked for.
[[nodiscard]] std::span<const Suite> suites();

void run_overview(Bench& bench);
void run_peak(Bench& bench);
void run_forward(Bench& bench);
void run_causal(Bench& bench);
void run_decode(Bench& bench);
void run_backward(Bench& bench);
void run_short(Bench& bench);
void run_masks(Bench& bench);
void run_sparse(Bench& bench);
void run_kv(Bench& bench);
void run_scaling(Bench& bench);
void run_gate(Bench& bench);

}  // namespace heed::cli::bench
