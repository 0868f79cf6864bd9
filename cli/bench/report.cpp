// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/report.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "cli/tables.hpp"

namespace heed::cli::bench {
namespace {

using nlohmann::json;

template <class T>
json or_null(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

void put_spread(json& row, const char* name, const Spread* s) {
  const std::string key = name;
  row[key] = s != nullptr ? json(s->median) : json();
  row[key + "_min"] = s != nullptr ? json(s->least) : json();
  row[key + "_max"] = s != nullptr ? json(s->most) : json();
  row[key + "_low"] = s != nullptr ? json(s->low) : json();
  row[key + "_high"] = s != nullptr ? json(s->high) : json();
}

json row_json(const BenchRow& r) {
  json row = {{"suite", r.suite},
              {"name", r.name},
              {"shape", r.shape},
              {"dtype", r.dtype},
              {"threads", r.threads},
              {"unit", r.unit},
              {"peak", r.peak ? json(r.peak->value) : json()},
              {"peak_of", r.peak ? json(r.peak->of) : json()},
              {"peak_best", r.peak && r.peak->best > 0 ? json(r.peak->best) : json()},
              {"target", or_null(r.target)},
              {"better", r.better == Better::kHigher ? "higher" : "lower"},
              {"rounds", r.rounds},
              {"disturbed_rounds", r.disturbed_rounds},
              {"seconds", or_null(r.seconds)},
              {"length", or_null(r.length)},
              {"memory_bytes", or_null(r.memory_bytes)},
              {"note", r.note}};
  put_spread(row, "value", &r.value);
  put_spread(row, "ratio", r.ratio ? &*r.ratio : nullptr);
  return row;
}

const char* verdict_text(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPass: return "PASS";
    case Outcome::kFail: return "FAIL";
    case Outcome::kNoTarget: return "";
  }
  return "";
}

std::string share(double ratio) { return fmt::format("{:.1f} %", 100 * ratio); }

/// A ratio as a share; a value in its unit, as it has no yardstick.
std::string judged_text(const BenchRow& row, double number) { return row.ratio ? share(number) : number_text(number); }

std::string target_text(const BenchRow& row) {
  if (!row.target) return "";
  return fmt::format("{} {}", row.better == Better::kHigher ? ">=" : "<=", judged_text(row, *row.target));
}

std::string ranges_text(const BenchRow& row) {
  const Spread& s = judged(row);
  if (s.least == s.most) return "";
  return fmt::format("{} - {}", judged_text(row, s.least), judged_text(row, s.most));
}

Row cells(const BenchRow& r, Verdicts verdicts) {
  return {r.name,
          r.dtype,
          std::to_string(r.threads),
          fmt::format("{} {}", number_text(r.value.median), r.unit),
          r.peak ? fmt::format("{} {}", number_text(r.peak->value), r.peak->of) : "",
          r.ratio ? share(r.ratio->median) : "",
          ranges_text(r),
          target_text(r),
          verdicts == Verdicts::kShow ? verdict_text(outcome_of(r)) : "",
          r.note.empty() ? r.shape : fmt::format("{} ({})", r.shape, r.note)};
}

/// Says when the figures above are worth little, and why. Empty otherwise.
std::string warning_of(const std::vector<BenchRow>& rows) {
  int rounds = 0, disturbed = 0;
  for (const BenchRow& row : rows) {
    rounds += row.rounds;
    disturbed += row.disturbed_rounds;
  }
  if (5 * disturbed <= rounds) return {};
  return fmt::format("\n{} of {} rounds were disturbed: other programs took cores from this one. Repeat it when they are done.\n",
                     disturbed, rounds);
}

}  // namespace

std::string number_text(double value) {
  const double size = std::abs(value);
  return size >= 100 ? fmt::format("{:.0f}", value) : size >= 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.2f}", value);
}

json to_json(const std::vector<BenchRow>& rows, const json& machine) {
  json list = json::array();
  for (const BenchRow& row : rows) list.push_back(row_json(row));
  return {{"machine", machine}, {"rows", list}};
}

std::string as_table(const std::vector<BenchRow>& rows, const json& machine, Verdicts verdicts) {
  std::string text = fmt::format("heed {}, instruction set {}, {}\n", machine.at("heed").get<std::string>(),
                                 machine.at("isa").get<std::string>(), machine.at("cpu").get<std::string>());
  std::vector<Row> table;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (table.empty())
      table.push_back({"kernel", "type", "threads", "speed", "yardstick", "ratio", "rounds from - to", "target", "", "shape"});
    table.push_back(cells(rows[i], verdicts));
    if (i + 1 < rows.size() && rows[i + 1].suite == rows[i].suite) continue;
    text += fmt::format("\n{}\n{}", rows[i].suite, format_table(table));
    table.clear();
  }
  return verdicts == Verdicts::kShow ? text + warning_of(rows) : text;
}

std::string summary_of_targets(const std::vector<BenchRow>& rows) {
  const auto count = [&rows](Outcome outcome) {
    return std::count_if(rows.begin(), rows.end(), [outcome](const BenchRow& row) { return outcome_of(row) == outcome; });
  };
  const auto met = count(Outcome::kPass), missed = count(Outcome::kFail);
  if (met + missed == 0) return {};
  return fmt::format("\n{} of {} targets met{}\n", met, met + missed, missed > 0 ? ": FAIL" : ": PASS");
}

}  // namespace heed::cli::bench
