// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <stdexcept>

#include <fmt/format.h>

#include "cli/bench/report.hpp"
#include "cli/io.hpp"
#include "cli/tables.hpp"

namespace heed::cli::bench {
namespace {

using nlohmann::json;

[[noreturn]] void reject(const std::string& source, const std::string& what) {
  throw std::runtime_error(fmt::format("{}: {}", source, what));
}

/// Fields of one JSON object, with errors that say which one of which file is wrong.
class Fields {
 public:
  Fields(const json& object, std::string path, const std::string& source) : object_(object), path_(std::move(path)), source_(source) {
    if (!object.is_object()) reject(source_, fmt::format("{} should be an object, is {}", path_, object.type_name()));
  }

  [[nodiscard]] std::string text(const char* name) const {
    const json& field = at(name);
    if (!field.is_string()) wrong(name, "text", field);
    return field.get<std::string>();
  }
  /// Empty for null and for a field that is not there.
  [[nodiscard]] std::optional<double> number_or_null(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end() || found->is_null()) return {};
    if (!found->is_number()) wrong(name, "a number or null", *found);
    return found->get<double>();
  }
  [[nodiscard]] double positive(const char* name) const {
    const json& field = at(name);
    if (!field.is_number() || !(field.get<double>() > 0)) wrong(name, "a number above 0", field);
    return field.get<double>();
  }

 private:
  [[nodiscard]] const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) reject(source_, fmt::format("{}.{} is missing: not what `heed bench --json` writes", path_, name));
    return *found;
  }
  [[noreturn]] void wrong(const char* name, const char* expected, const json& got) const {
    reject(source_, fmt::format("{}.{} should be {}, is {}", path_, name, expected,
                                got.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 40)));
  }

  const json& object_;
  std::string path_;
  const std::string& source_;
};

Measured measured_from(const json& document, const std::string& path, const std::string& source) {
  const Fields fields(document, path, source);
  Measured row{.suite = fields.text("suite"), .name = fields.text("name"), .shape = fields.text("shape"), .dtype = fields.text("dtype")};
  const double threads = fields.positive("threads");
  row.threads = static_cast<int>(std::min(threads, 1e6));
  const double value = fields.positive("value");
  const bool has_ratio = fields.number_or_null("ratio").has_value();
  row.number = has_ratio ? fields.positive("ratio") : value;
  row.unit = has_ratio ? "%" : fields.text("unit");
  row.low = std::min(row.number, fields.number_or_null(has_ratio ? "ratio_low" : "value_low").value_or(row.number));
  row.high = std::max(row.number, fields.number_or_null(has_ratio ? "ratio_high" : "value_high").value_or(row.number));
  const std::string better = fields.text("better");
  if (better != "higher" && better != "lower") reject(source, path + ".better should be \"higher\" or \"lower\"");
  row.higher_is_better = better == "higher";
  return row;
}

bool same_row(const Measured& a, const Measured& b) {
  return a.suite == b.suite && a.name == b.name && a.shape == b.shape && a.dtype == b.dtype && a.threads == b.threads && a.unit == b.unit;
}

const Measured* find_row(const Measurement& in, const Measured& wanted) {
  const auto found = std::find_if(in.rows.begin(), in.rows.end(), [&](const Measured& row) { return same_row(row, wanted); });
  return found == in.rows.end() ? nullptr : &*found;
}

/// Half the width of the median's 95 % interval, as a share of the median.
double noise(const Measured& row) { return (row.high - row.low) / (2 * row.number); }

/// How far two medians of the same program may lie apart.
double visible_change(const Measured& before, const Measured& after) {
  constexpr double kLeast = 0.02;  // what a run differs from the next by where neither swings: page placement, alignment
  return std::max(kLeast, std::hypot(noise(before), noise(after)));
}

/// Above 1 is better.
double change(const Measured& before, const Measured& after) {
  return before.higher_is_better ? after.number / before.number : before.number / after.number;
}

std::string number_of(const Measured& row) {
  return row.unit == "%" ? fmt::format("{:.1f} %", 100 * row.number) : fmt::format("{} {}", number_text(row.number), row.unit);
}

}  // namespace

const char* to_string(Verdict verdict) noexcept {
  switch (verdict) {
    case Verdict::kFaster: return "faster";
    case Verdict::kSlower: return "slower";
    case Verdict::kSame: return "same";
    case Verdict::kUnsure: return "unsure";
  }
  return "";
}

Measurement measurement_from(const json& document, const std::string& source) {
  const Fields fields(document, "the document", source);
  for (const char* part : {"machine", "rows"}) {
    if (!document.contains(part)) reject(source, fmt::format("\"{}\" is missing: not what `heed bench --json` writes", part));
  }
  const Fields machine(document.at("machine"), "machine", source);
  const json& rows = document.at("rows");
  if (!rows.is_array()) reject(source, fmt::format("rows should be a list, is {}", rows.type_name()));
  Measurement measurement{.cpu = machine.text("cpu"), .isa = machine.text("isa"), .rows = {}};
  for (std::size_t i = 0; i < rows.size(); ++i) measurement.rows.push_back(measured_from(rows[i], fmt::format("rows[{}]", i), source));
  return measurement;
}

Measurement read_measurement(const std::string& path) {
  const std::string source = path == "-" ? "standard input" : path;
  try {
    return measurement_from(json::parse(read_text(path)), source);
  } catch (const json::exception& error) {
    reject(source, fmt::format("not JSON: {}", error.what()));
  }
}

Verdict compare(const Measured& before, const Measured& after) noexcept {
  constexpr double kLittle = 0.05;  // a change below this may hide behind "same"
  const double better = change(before, after), visible = visible_change(before, after);
  if (better > 1 + visible) return Verdict::kFaster;
  if (better < 1 / (1 + visible)) return Verdict::kSlower;
  return visible <= kLittle ? Verdict::kSame : Verdict::kUnsure;
}

Comparison compare(const Measurement& before, const Measurement& after) {
  std::vector<Row> table = {{"kernel", "type", "threads", "before", "after", "change", "visible from", "verdict", "shape"}};
  std::array<int, 4> counts{};
  for (const Measured& row : after.rows) {
    const Measured* old = find_row(before, row);
    if (old == nullptr) continue;
    const Verdict verdict = compare(*old, row);
    ++counts[static_cast<std::size_t>(verdict)];
    table.push_back({row.name, row.dtype, std::to_string(row.threads), number_of(*old), number_of(row),
                     fmt::format("{:.3f} x", change(*old, row)), fmt::format("{:.1f} %", 100 * visible_change(*old, row)),
                     to_string(verdict), row.shape});
  }
  const auto strangers = [](const Measurement& of, const Measurement& to) {
    return std::count_if(of.rows.begin(), of.rows.end(), [&to](const Measured& row) { return find_row(to, row) == nullptr; });
  };
  std::string text;
  if (before.cpu != after.cpu || before.isa != after.isa) {
    text = fmt::format("Not the same machine or instruction set: before {} ({}), after {} ({}).\n", before.cpu, before.isa, after.cpu,
                       after.isa);
  }
  text += format_table(table);
  text += fmt::format("\n{} rows: {} faster, {} slower, {} same, {} unsure; {} only before, {} only after. Above 1 x is better.\n",
                      table.size() - 1, counts[0], counts[1], counts[2], counts[3], strangers(before, after), strangers(after, before));
  return {text, static_cast<int>(table.size()) - 1, counts[1]};
}

}  // namespace heed::cli::bench
