// SPDX-License-Identifier: Apache-2.0
// What a RopeConfig comes to: one angle per token and pair, and a magnitude. One overload per scaling rule; formulas are in rope.hpp.
#include <algorithm>
#include <cmath>
#include <new>
#include <numbers>
#include <string>
#include <variant>

#include <heed/rope.hpp>

#include "base/message.hpp"

namespace heed {
namespace {

constexpr const char* kFunction = "rope_frequencies";

void require_positive(const char* field, double value) {
  if (!(value > 0.0) || !std::isfinite(value)) {
    base::throw_invalid(kFunction, field, "a finite number above 0", base::number(value));
  }
}

void require_at_least(const char* field, std::int64_t least, std::int64_t value) {
  if (value < least) base::throw_invalid(kFunction, field, "at least " + std::to_string(least), std::to_string(value));
}

void require_list(const char* field, std::int64_t pairs, const std::vector<double>& values) {
  if (static_cast<std::int64_t>(values.size()) != pairs) {
    base::throw_invalid(kFunction, field, std::to_string(pairs) + " values (rotary_dim / 2)", std::to_string(values.size()));
  }
  for (const double value : values) require_positive(field, value);
}

/// b^(-2i/d) for i < d/2.
std::vector<double> plain(std::int64_t rotary_dim, double base) {
  std::vector<double> theta;
  if (static_cast<std::size_t>(rotary_dim / 2) > theta.max_size()) throw std::bad_alloc();
  theta.resize(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < theta.size(); ++i) {
    theta[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim));
  }
  return theta;
}

/// The base whose lowest frequency is `alpha` times lower. With one pair there is nothing to stretch: its frequency is 1 for any base.
double ntk_base(std::int64_t rotary_dim, double base, double alpha) {
  if (rotary_dim == 2) return base;
  const auto d = static_cast<double>(rotary_dim);
  return base * std::pow(alpha, d / (d - 2.0));
}

/// Pair index, as a real number, whose wave turns `rotations` times within `length` tokens.
double index_of_rotations(double rotations, std::int64_t rotary_dim, double base, std::int64_t length) {
  return static_cast<double>(rotary_dim) * std::log(static_cast<double>(length) / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(base));
}

double yarn_gain(double factor, double mscale) { return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

double yarn_magnitude(const RopeYarn& yarn) {
  if (yarn.attention_factor) return *yarn.attention_factor;
  if (yarn.mscale != 0.0 && yarn.mscale_all_dim != 0.0) {
    return yarn_gain(yarn.factor, yarn.mscale) / yarn_gain(yarn.factor, yarn.mscale_all_dim);
  }
  return yarn_gain(yarn.factor, 1.0);
}

struct Resolver {
  const RopeConfig& config;
  std::int64_t length;

  RopeFrequencies operator()(std::monostate) const { return {plain(config.rotary_dim, config.base)}; }

  RopeFrequencies operator()(const RopeLinear& linear) const {
    require_positive("scaling.factor", linear.factor);
    RopeFrequencies result{plain(config.rotary_dim, config.base)};
    for (double& theta : result.radians_per_token) theta /= linear.factor;
    return result;
  }

  RopeFrequencies operator()(const RopeNtk& ntk) const {
    require_positive("scaling.alpha", ntk.alpha);
    return {plain(config.rotary_dim, ntk_base(config.rotary_dim, config.base, ntk.alpha))};
  }

  RopeFrequencies operator()(const RopeDynamic& dynamic) const {
    require_positive("scaling.factor", dynamic.factor);
    require_at_least("scaling.max_positions", 1, dynamic.max_positions);
    const auto limit = static_cast<double>(dynamic.max_positions);
    const double n = std::max(static_cast<double>(length), limit);
    const double alpha = dynamic.factor * n / limit - (dynamic.factor - 1.0);
    return {plain(config.rotary_dim, ntk_base(config.rotary_dim, config.base, alpha))};
  }

  RopeFrequencies operator()(const RopeYarn& yarn) const {
    require_positive("scaling.factor", yarn.factor);
    require_at_least("scaling.original_length", 1, yarn.original_length);
    require_positive("scaling.beta_fast", yarn.beta_fast);
    require_positive("scaling.beta_slow", yarn.beta_slow);
    if (yarn.attention_factor) require_positive("scaling.attention_factor", *yarn.attention_factor);
    double low = index_of_rotations(yarn.beta_fast, config.rotary_dim, config.base, yarn.original_length);
    double high = index_of_rotations(yarn.beta_slow, config.rotary_dim, config.base, yarn.original_length);
    if (yarn.truncate == RopeYarn::Truncate::kYes) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, static_cast<double>(config.rotary_dim - 1));
    if (low == high) high += 0.001;
    RopeFrequencies result{plain(config.rotary_dim, config.base), yarn_magnitude(yarn)};
    for (std::size_t i = 0; i < result.radians_per_token.size(); ++i) {
      const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
      double& theta = result.radians_per_token[i];
      theta = theta * (1.0 - ramp) + theta / yarn.factor * ramp;
    }
    return result;
  }

  RopeFrequencies operator()(const RopeLong& rope) const {
    require_positive("scaling.factor", rope.factor);
    require_at_least("scaling.original_length", 2, rope.original_length);  // ln(1) would divide by 0
    require_list("scaling.short_factors", config.rotary_dim / 2, rope.short_factors);
    require_list("scaling.long_factors", config.rotary_dim / 2, rope.long_factors);
    if (rope.attention_factor) require_positive("scaling.attention_factor", *rope.attention_factor);
    RopeFrequencies result{plain(config.rotary_dim, config.base)};
    const auto& divisors = length > rope.original_length ? rope.long_factors : rope.short_factors;
    for (std::size_t i = 0; i < divisors.size(); ++i) result.radians_per_token[i] /= divisors[i];
    if (rope.attention_factor) {
      result.magnitude = *rope.attention_factor;
    } else if (rope.factor > 1.0) {
      result.magnitude = std::sqrt(1.0 + std::log(rope.factor) / std::log(static_cast<double>(rope.original_length)));
    }
    return result;
  }

  RopeFrequencies operator()(const RopeLlama3& llama) const {
    require_positive("scaling.factor", llama.factor);
    require_positive("scaling.low_freq_factor", llama.low_freq_factor);
    require_positive("scaling.high_freq_factor", llama.high_freq_factor);
    if (llama.high_freq_factor <= llama.low_freq_factor) {
      base::throw_invalid(kFunction, "scaling.high_freq_factor", "more than low_freq_factor " + base::number(llama.low_freq_factor),
                          base::number(llama.high_freq_factor));
    }
    require_at_least("scaling.original_length", 1, llama.original_length);
    RopeFrequencies result{plain(config.rotary_dim, config.base)};
    for (double& theta : result.radians_per_token) {
      // How often the wave turns within the original length; the two factors are such counts.
      const double turns = static_cast<double>(llama.original_length) * theta / (2.0 * std::numbers::pi);
      const double keep = std::clamp((turns - llama.low_freq_factor) / (llama.high_freq_factor - llama.low_freq_factor), 0.0, 1.0);
      theta = (1.0 - keep) * theta / llama.factor + keep * theta;
    }
    return result;
  }

  RopeFrequencies operator()(const RopeProportional& rope) const {
    if (!(rope.proportion >= 0.0 && rope.proportion <= 1.0)) {
      base::throw_invalid(kFunction, "scaling.proportion", "a number from 0 to 1", base::number(rope.proportion));
    }
    require_positive("scaling.factor", rope.factor);
    RopeFrequencies result{plain(config.rotary_dim, config.base)};
    auto& theta = result.radians_per_token;
    const auto live = static_cast<std::size_t>(rope.proportion * static_cast<double>(config.rotary_dim) / 2.0);
    for (std::size_t i = 0; i < theta.size(); ++i) theta[i] = i < live ? theta[i] / rope.factor : 0.0;
    return result;
  }

  RopeFrequencies operator()(const RopeDivisors& rope) const {
    require_list("scaling.divisors", config.rotary_dim / 2, rope.divisors);
    RopeFrequencies result{plain(config.rotary_dim, config.base)};
    for (std::size_t i = 0; i < rope.divisors.size(); ++i) result.radians_per_token[i] /= rope.divisors[i];
    return result;
  }
};

}  // namespace

bool depends_on_length(const RopeConfig& config) noexcept {
  return std::holds_alternative<RopeDynamic>(config.scaling) || std::holds_alternative<RopeLong>(config.scaling);
}

RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t length) {
  if (config.rotary_dim < 2 || config.rotary_dim % 2 != 0) {
    base::throw_invalid(kFunction, "rotary_dim", "an even number of at least 2", std::to_string(config.rotary_dim));
  }
  if (!(config.base > 1.0) || !std::isfinite(config.base)) {
    base::throw_invalid(kFunction, "base", "a finite number above 1", base::number(config.base));
  }
  require_at_least("length", 0, length);
  RopeFrequencies result = std::visit(Resolver{config, length}, config.scaling);
  // Every number may be right by itself and their quotient no number.
  double worst = result.magnitude;
  for (const double theta : result.radians_per_token) worst = std::isfinite(theta) ? worst : theta;
  if (!std::isfinite(worst)) base::throw_invalid(kFunction, "scaling", "finite frequencies and magnitude", base::number(worst));
  return result;
}

}  // namespace heed
