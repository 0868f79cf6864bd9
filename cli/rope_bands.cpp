// SPDX-License-Identifier: Apache-2.0
#include "cli/rope_bands.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <type_traits>
#include <variant>

#include <fmt/format.h>

#include "cli/io.hpp"

namespace heed::cli {
namespace {

constexpr double kSame = 1e-9;  // relative: frequencies come from float64 powers

/// What the lowest frequencies are divided by at most.
double factor_of(const RopeConfig& config, std::int64_t length) {
  return std::visit(
      [length](const auto& rule) {
        using Rule = std::decay_t<decltype(rule)>;
        if constexpr (std::is_same_v<Rule, std::monostate>) {
          return 1.0;
        } else if constexpr (std::is_same_v<Rule, RopeNtk>) {
          return rule.alpha;
        } else if constexpr (std::is_same_v<Rule, RopeDynamic>) {
          const auto limit = static_cast<double>(rule.max_positions);
          return rule.factor * std::max(static_cast<double>(length), limit) / limit - (rule.factor - 1.0);
        } else if constexpr (std::is_same_v<Rule, RopeDivisors>) {
          return *std::max_element(rule.divisors.begin(), rule.divisors.end());
        } else {
          return rule.factor;
        }
      },
      config.scaling);
}

Treatment treatment_of(double divisor, double factor) {
  if (std::isinf(divisor)) return Treatment::kStopped;
  if (std::abs(divisor - 1.0) < kSame) return Treatment::kKept;
  if (divisor < 1.0) return Treatment::kFaster;
  return divisor < factor * (1.0 - kSame) ? Treatment::kBlended : Treatment::kInterpolated;
}

/// "11.2", "3.05", "0.0081": three digits, without an exponent up to millions.
std::string short_number(double value) { return value >= 1000.0 ? grouped(std::llround(value)) : fmt::format("{:.3g}", value); }

std::string kept_text(const RopeConfig& config, double least_turns, const std::string& trained) {
  if (least_turns >= 1.0) {
    return fmt::format("turns at least {} times within {}: kept, it encodes local order", short_number(least_turns), trained);
  }
  const bool scaled = !std::holds_alternative<std::monostate>(config.scaling);
  return fmt::format("turns less than once within {}: past them it {}", trained,
                     scaled ? "would show new angles, and this rule leaves it" : "shows angles that training never did");
}

struct BlendedText {
  double factor;

  std::string operator()(const RopeYarn& yarn) const {
    return fmt::format("between {} turns and {}: a ramp over the pairs, from kept to divided by {}", short_number(yarn.beta_fast),
                       short_number(yarn.beta_slow), short_number(factor));
  }
  std::string operator()(const RopeLlama3& llama) const {
    return fmt::format("between {} turns and {}: a ramp over the turns, from kept to divided by {}", short_number(llama.high_freq_factor),
                       short_number(llama.low_freq_factor), short_number(factor));
  }
  std::string operator()(const RopeNtk&) const { return larger_base(); }
  std::string operator()(const RopeDynamic&) const { return larger_base(); }
  std::string operator()(const RopeLong&) const { return "as the searched list says"; }
  std::string operator()(const RopeDivisors&) const { return "as the file's table says"; }
  template <class Rule>
  std::string operator()(const Rule&) const {
    return "slower than trained";
  }

  [[nodiscard]] std::string larger_base() const {
    return fmt::format("a larger base: the slower a pair turns, the more it is stretched, up to {}", short_number(factor));
  }
};

std::string interpolated_text(const RopeConfig& config, double most_turns, const std::string& trained) {
  if (std::holds_alternative<RopeLinear>(config.scaling)) {
    return "every pair alike: positions are squeezed into the trained range, and neighbours with them";
  }
  if (std::holds_alternative<RopeLong>(config.scaling)) return "as the searched list says";
  if (std::holds_alternative<RopeDivisors>(config.scaling)) return "as the file's table says";
  return fmt::format("turns at most {} times within {}: new angles lie beyond, so positions are squeezed into the trained range",
                     short_number(most_turns), trained);
}

std::string why(const RopeConfig& config, const RopeExplanation& all, const RopeBand& band, std::int64_t trained_length) {
  const std::string trained = grouped(trained_length) + " tokens";
  switch (band.treatment) {
    case Treatment::kKept: return kept_text(config, all.pairs[band.last].trained_turns, trained);
    case Treatment::kBlended: return std::visit(BlendedText{all.factor}, config.scaling);
    case Treatment::kInterpolated: return interpolated_text(config, all.pairs[band.first].trained_turns, trained);
    case Treatment::kFaster: return "the list has a factor below 1 here: faster than trained";
    case Treatment::kStopped: return "does not turn: content without position";
  }
  return {};
}

/// Kept pairs that turn less than once are a band of their own: they are why a rotation fails past its trained length.
bool fare_alike(const RopePair& a, const RopePair& b) {
  if (a.treatment != b.treatment) return false;
  return a.treatment != Treatment::kKept || (a.trained_turns >= 1.0) == (b.trained_turns >= 1.0);
}

}  // namespace

const char* to_string(Treatment treatment) noexcept {
  switch (treatment) {
    case Treatment::kKept: return "kept";
    case Treatment::kBlended: return "blended";
    case Treatment::kInterpolated: return "interpolated";
    case Treatment::kFaster: return "faster";
    case Treatment::kStopped: return "stopped";
  }
  return "";
}

RopeExplanation explain_rope(const RopeConfig& config, std::int64_t length, std::int64_t trained_length) {
  const RopeFrequencies scaled = rope_frequencies(config, length);
  const RopeFrequencies plain = rope_frequencies({.rotary_dim = config.rotary_dim, .base = config.base}, length);
  RopeExplanation result;
  result.factor = factor_of(config, length);
  result.magnitude = scaled.magnitude;
  for (std::size_t i = 0; i < plain.radians_per_token.size(); ++i) {
    const double theta = plain.radians_per_token[i], actual = scaled.radians_per_token[i];
    const double wavelength = 2.0 * std::numbers::pi / theta;
    const double divisor = actual > 0.0 ? theta / actual : std::numeric_limits<double>::infinity();
    result.pairs.push_back({wavelength, static_cast<double>(trained_length) / wavelength, divisor, treatment_of(divisor, result.factor)});
  }
  for (std::size_t i = 0; i < result.pairs.size(); ++i) {
    if (i > 0 && fare_alike(result.pairs[i - 1], result.pairs[i])) {
      result.bands.back().last = i;
    } else {
      result.bands.push_back({i, i, result.pairs[i].treatment, ""});
    }
  }
  for (RopeBand& band : result.bands) band.why = why(config, result, band, trained_length);
  return result;
}

}  // namespace heed::cli
