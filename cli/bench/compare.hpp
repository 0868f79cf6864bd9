// SPDX-License-Identifier: Apache-2.0
// Two measurements side by side, with a verdict that knows how much each of them swung.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace heed::cli::bench {

enum class Verdict {
  kFaster,
  kSlower,
  kSame,   ///< the two differ by less than what the rounds allow to see, and that is little
  kUnsure  ///< the rounds swung too much to say
};
[[nodiscard]] const char* to_string(Verdict verdict) noexcept;

/// What --compare needs of a row.
struct Measured {
  std::string suite, name, shape, dtype;
  int threads = 1;
  double number = 0, low = 0, high = 0;  ///< the ratio to the yardstick, or the value where there is none; bounds of the median
  std::string unit = {};                 ///< "%" of the yardstick, or the value's
  bool higher_is_better = true;
};

struct Measurement {
  std::string cpu, isa;
  std::vector<Measured> rows;
};

/// Reads what `heed bench --json` writes. Throws std::runtime_error that names the source and the field that is not as it should be.
[[nodiscard]] Measurement measurement_from(const nlohmann::json& document, const std::string& source);
/// The same from a file; "-" is standard input.
[[nodiscard]] Measurement read_measurement(const std::string& path);

/// Faster or slower only where the two medians' 95 % bounds, and the 2 % that two runs of the same program differ by, are left behind.
[[nodiscard]] Verdict compare(const Measured& before, const Measured& after) noexcept;

struct Comparison {
  std::string text;
  int compared = 0;  ///< rows that both have
  int slower = 0;
};
[[nodiscard]] Comparison compare(const Measurement& before, const Measurement& after);

}  // namespace heed::cli::bench
