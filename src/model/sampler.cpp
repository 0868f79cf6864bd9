// SPDX-License-Identifier: Apache-2.0
// Drawing the next token. Every step uses basic IEEE arithmetic in a fixed order and orders candidates totally (by logit, then by id), so
// that a seed gives the same draws whatever the C and C++ libraries.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include <heed/model/decoder.hpp>

#include "base/message.hpp"

namespace heed::model {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Candidate {
  double logit;
  double weight;  ///< proportional to the probability; the largest is 1
  Token token;
};

/// Descending, lower ids first on ties.
bool comes_before(const Candidate& a, const Candidate& b) noexcept { return a.logit != b.logit ? a.logit > b.logit : a.token < b.token; }

void check(bool good, std::string_view option, const std::string& expected, const std::string& got) {
  if (!good) base::throw_invalid("Sampler", option, expected, got);
}

/// e^x for x <= 0 from +, * and scaling by powers of two, because std::exp differs between C libraries. Error below 2e-15 relative:
/// x = k ln 2 + r with |r| <= 0.35, and the Taylor series to r^13 leaves 0.35^14 / 14!.
double exp_of(double x) noexcept {
  if (!(x > -708.0)) return 0.0;  // below it the result would be subnormal
  constexpr double kLog2E = 1.4426950408889634;
  constexpr double kLn2High = 0.693147180369123816490;  // 33 bits: k * kLn2High is exact (fdlibm's split)
  constexpr double kLn2Low = 1.90821492927058770002e-10;
  const double k = std::floor(x * kLog2E + 0.5);
  const double r = (x - k * kLn2High) - k * kLn2Low;
  double sum = 1.0;
  for (int i = 13; i > 0; --i) sum = 1.0 + sum * r / i;
  return std::ldexp(sum, static_cast<int>(k));
}

/// In [0, 1), a multiple of 2^-53. std::uniform_real_distribution is not the same everywhere.
double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

void penalise_repetition(std::vector<Candidate>& candidates, const SamplingOptions& options, std::span<const Token> history) {
  const auto window = static_cast<std::size_t>(options.repetition_window);
  if (options.repetition_penalty == 1.0) return;
  if (history.size() > window) history = history.last(window);
  std::vector<Token> seen(history.begin(), history.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const Token token : seen) {
    double& logit = candidates[static_cast<std::size_t>(token)].logit;
    logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
  }
}

/// Moves the `count` best to the front, in order.
void sort_front(std::vector<Candidate>& candidates, std::size_t count) {
  const auto middle = candidates.begin() + static_cast<std::ptrdiff_t>(std::min(count, candidates.size()));
  if (middle != candidates.end()) std::nth_element(candidates.begin(), middle, candidates.end(), comes_before);
  std::sort(candidates.begin(), middle, comes_before);
}

void weigh(std::vector<Candidate>& candidates, double temperature) {
  double largest = -kInfinity;
  for (const Candidate& candidate : candidates) largest = std::max(largest, candidate.logit);
  for (Candidate& candidate : candidates) {
    // The equality comes first because inf - inf is not a number.
    candidate.weight = candidate.logit == largest ? 1.0 : exp_of((candidate.logit - largest) / temperature);
  }
}

float without_nan(float logit) noexcept { return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit; }

/// Greedy without penalties needs no list of candidates.
Token argmax(std::span<const float> logits) noexcept {
  std::size_t best = 0;
  float best_logit = without_nan(logits[0]);
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (!(logits[i] > best_logit)) continue;
    best = i;
    best_logit = logits[i];
  }
  return static_cast<Token>(best);
}

double total_weight(const std::vector<Candidate>& candidates) noexcept {
  double total = 0.0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

/// Keeps the shortest front of the sorted candidates that holds `top_p` of the weight. Sorting all of a vocabulary of 262,144 takes as long
/// as half a token of a small model, and the front is mostly short: sort little first, more when it does not suffice.
void keep_top_p(std::vector<Candidate>& candidates, double top_p) {
  const double wanted = top_p * total_weight(candidates);
  for (std::size_t sorted = 256;; sorted *= 16) {
    sort_front(candidates, sorted);
    const std::size_t count = std::min(sorted, candidates.size());
    double sum = 0.0;
    for (std::size_t i = 0; i < count; ++i) {
      sum += candidates[i].weight;
      if (sum >= wanted || i + 1 == candidates.size()) {
        candidates.resize(i + 1);
        return;
      }
    }
  }
}

void keep_min_p(std::vector<Candidate>& candidates, double min_p) {
  // The best weight is 1, so that weight is p / p_max.
  candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [&](const Candidate& c) { return c.weight < min_p; }),
                   candidates.end());
}

Token draw(const std::vector<Candidate>& candidates, double u) noexcept {
  const double target = u * total_weight(candidates);
  double sum = 0.0;
  Token last = candidates.front().token;
  for (const Candidate& candidate : candidates) {
    if (candidate.weight == 0.0) continue;
    sum += candidate.weight;
    last = candidate.token;
    if (target < sum) break;
  }
  return last;  // rounding may leave `target` at the whole sum: then the last one that can be drawn
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options) : options_(options), random_(options.seed) {
  const auto text = [](double value) { return std::to_string(value); };
  check(options.temperature >= 0 && options.temperature < kInfinity, "temperature", "a finite number >= 0", text(options.temperature));
  check(options.top_k >= 0, "top_k", "a number >= 0", std::to_string(options.top_k));
  check(options.top_p > 0 && options.top_p <= 1, "top_p", "a number above 0 and up to 1", text(options.top_p));
  check(options.min_p >= 0 && options.min_p <= 1, "min_p", "a number from 0 to 1", text(options.min_p));
  check(options.repetition_penalty > 0 && options.repetition_penalty < kInfinity, "repetition_penalty", "a finite number > 0",
        text(options.repetition_penalty));
  check(options.repetition_window >= 0, "repetition_window", "a number >= 0", std::to_string(options.repetition_window));
}

Token Sampler::sample(std::span<const float> logits, std::span<const Token> history) {
  if (logits.empty()) base::throw_invalid("Sampler::sample", "logits", "at least one", "none");
  const auto vocabulary = static_cast<std::int64_t>(logits.size());
  for (const Token token : history) {
    if (token < 0 || token >= vocabulary) {
      base::throw_invalid("Sampler::sample", "history", "ids below " + std::to_string(vocabulary), std::to_string(token));
    }
  }
  const bool is_greedy = options_.temperature == 0.0;
  if (is_greedy && options_.repetition_penalty == 1.0) return argmax(logits);
  std::vector<Candidate> candidates;
  candidates.reserve(logits.size());
  for (std::size_t i = 0; i < logits.size(); ++i) {
    candidates.push_back({without_nan(logits[i]), 0.0, static_cast<Token>(i)});
  }
  penalise_repetition(candidates, options_, history);
  if (is_greedy) return std::min_element(candidates.begin(), candidates.end(), comes_before)->token;
  if (options_.top_k > 0 && options_.top_k < vocabulary) {
    sort_front(candidates, static_cast<std::size_t>(options_.top_k));
    candidates.resize(static_cast<std::size_t>(options_.top_k));
  }
  weigh(candidates, options_.temperature);
  if (options_.top_p < 1.0) keep_top_p(candidates, options_.top_p);
  if (options_.min_p > 0.0) keep_min_p(candidates, options_.min_p);
  return draw(candidates, uniform(random_));
}

}  // namespace heed::model
