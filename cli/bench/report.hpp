// SPDX-License-Identifier: Apache-2.0
// Rows as JSON for programs and as tables for people.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/bench/row.hpp"

namespace heed::cli::bench {

/// {"machine": ..., "rows": [...]}; a field without a value is null.
[[nodiscard]] nlohmann::json to_json(const std::vector<BenchRow>& rows, const nlohmann::json& machine);
/// Without verdicts a target has neither PASS nor FAIL beside it, and disturbed rounds are not spoken of: for sizes that measure nothing.
enum class Verdicts : std::uint8_t { kShow, kLeaveOut };
[[nodiscard]] std::string as_table(const std::vector<BenchRow>& rows, const nlohmann::json& machine, Verdicts verdicts);
/// "gate: 30 of 36 targets met" and the rows that did not; empty where no row has a target.
[[nodiscard]] std::string summary_of_targets(const std::vector<BenchRow>& rows);
/// 118 GFLOP/s, 0.42 us
[[nodiscard]] std::string number_text(double value);

}  // namespace heed::cli::bench
