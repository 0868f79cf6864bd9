// SPDX-License-Identifier: Apache-2.0
// Each step of sampling against a small computation of its own, and the draws against the distribution.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include <heed/error.hpp>
#include <heed/model/decoder.hpp>

namespace heed::test {
namespace {

using model::Sampler;
using model::SamplingOptions;
using model::Token;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

Token greedy(const std::vector<float>& logits, const std::vector<Token>& history = {}, double penalty = 1.0, std::int64_t window = 64) {
  return Sampler({.repetition_penalty = penalty, .repetition_window = window}).sample(logits, history);
}

TEST(Sampler, GreedyTakesTheLowestIdOnTies) {
  EXPECT_EQ(greedy({1, 3, 2, 3}), 1);
  EXPECT_EQ(greedy({-1, -1}), 0);
  EXPECT_EQ(greedy({0, kInf, kInf}), 1);
}

TEST(Sampler, NanCountsAsMinusInfinity) {
  EXPECT_EQ(greedy({kNan, -5, kNan}), 1);
  EXPECT_EQ(greedy({kNan, -kInf}), 0);
  EXPECT_EQ(greedy({kNan, -5, kNan}, {1}, 1.5), 1);
  Sampler sampler({.temperature = 1.0});
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sampler.sample(std::vector<float>{kNan, 0, -kInf}, {}), 1);
}

TEST(Sampler, RepetitionPenaltyDividesPositiveAndMultipliesNegativeLogits) {
  EXPECT_EQ(greedy({4.0f, 2.1f, -1.0f}, {0}, 2.0), 1) << "4 / 2 < 2.1";
  EXPECT_EQ(greedy({4.0f, 1.9f, -1.0f}, {0}, 2.0), 0) << "4 / 2 > 1.9";
  EXPECT_EQ(greedy({-1.0f, -1.9f}, {0}, 2.0), 1) << "-1 * 2 < -1.9";
  EXPECT_EQ(greedy({4.0f, 1.9f}, {0, 0, 0}, 2.0), 0) << "once for a token, however often it came";
  EXPECT_EQ(greedy({1.0f, 1.9f}, {0}, 0.5), 0) << "below 1 it favours: 1 / 0.5 > 1.9";
}

TEST(Sampler, RepetitionWindowCountsFromTheEnd) {
  EXPECT_EQ(greedy({4.0f, 2.1f, 0}, {0, 2}, 2.0, 1), 0);
  EXPECT_EQ(greedy({4.0f, 2.1f, 0}, {0, 2}, 2.0, 2), 1);
  EXPECT_EQ(greedy({4.0f, 2.1f, 0}, {0, 0}, 2.0, 0), 0);
}

std::set<Token> drawn(const SamplingOptions& options, const std::vector<float>& logits, int draws = 3000) {
  Sampler sampler(options);
  std::set<Token> tokens;
  for (int i = 0; i < draws; ++i) tokens.insert(sampler.sample(logits, {}));
  return tokens;
}
using Tokens = std::set<Token>;

TEST(Sampler, TopKKeepsTheKLargestAndLowIdsOnTies) {
  EXPECT_EQ(drawn({.temperature = 1.0, .top_k = 2}, {0, 1, 2, 1}), (Tokens{1, 2}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_k = 0}, {0, 1, 2, 1}), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_k = 9}, {0, 1, 2, 1}), (Tokens{0, 1, 2, 3}));
}

TEST(Sampler, TopPKeepsTheShortestFrontThatHoldsP) {
  // Probabilities 0.5, 0.3, 0.15, 0.05.
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f), std::log(0.3f)};
  EXPECT_EQ(drawn({.temperature = 1.0, .top_p = 0.49}, logits), (Tokens{1}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_p = 0.51}, logits), (Tokens{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_p = 0.81}, logits), (Tokens{0, 1, 3}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_p = 0.96}, logits), (Tokens{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_k = 2, .top_p = 0.6}, logits), (Tokens{1})) << "of the two that top-k left, 0.625 and 0.375";
}

TEST(Sampler, MinPIsRelativeToTheLargestProbability) {
  const std::vector<float> logits = {std::log(0.15f), std::log(0.5f), std::log(0.05f), std::log(0.3f)};
  EXPECT_EQ(drawn({.temperature = 1.0, .min_p = 0.59}, logits), (Tokens{1, 3}));
  EXPECT_EQ(drawn({.temperature = 1.0, .min_p = 0.61}, logits), (Tokens{1}));
  EXPECT_EQ(drawn({.temperature = 2.0, .min_p = 0.61}, logits), (Tokens{1, 3})) << "after the temperature: sqrt(0.6) = 0.77";
  EXPECT_EQ(drawn({.temperature = 1.0, .min_p = 1.0}, {1, 3, 3}), (Tokens{1, 2}));
}

/// The whole rule in one piece: sorts everything, long double, std::exp.
Token sample_slowly(std::vector<float> logits, const std::vector<Token>& history, const SamplingOptions& options, double u) {
  struct Entry {
    long double logit, p;
    Token token;
  };
  std::vector<Entry> entries;
  const auto start = std::max<std::int64_t>(0, static_cast<std::int64_t>(history.size()) - options.repetition_window);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    long double logit = logits[i];
    if (std::count(history.begin() + start, history.end(), static_cast<Token>(i)) > 0) {
      logit = logit > 0 ? logit / options.repetition_penalty : logit * options.repetition_penalty;
    }
    entries.push_back({logit / options.temperature, 0, static_cast<Token>(i)});
  }
  const bool cuts_k = options.top_k > 0 && options.top_k < static_cast<std::int64_t>(entries.size());
  const bool sorted = cuts_k || options.top_p < 1;  // otherwise the draw walks in the order of ids
  if (sorted) std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.logit > b.logit; });
  if (cuts_k) entries.resize(static_cast<std::size_t>(options.top_k));
  long double sum = 0, largest = -INFINITY, cumulative = 0;
  for (const Entry& entry : entries) largest = std::max(largest, entry.logit);
  for (Entry& entry : entries) sum += entry.p = std::exp(entry.logit - largest);
  for (Entry& entry : entries) entry.p /= sum;
  if (options.top_p < 1) {
    std::size_t count = 0;
    while (count < entries.size() && cumulative < options.top_p) cumulative += entries[count++].p;
    entries.resize(count);
  }
  long double best = 0, total = 0;
  for (const Entry& entry : entries) best = std::max(best, entry.p);
  entries.erase(std::remove_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.p < options.min_p * best; }), entries.end());
  for (const Entry& entry : entries) total += entry.p;
  cumulative = 0;
  for (const Entry& entry : entries) {
    cumulative += entry.p;
    if (u * total < cumulative) return entry.token;
  }
  return entries.back().token;
}

TEST(Sampler, EveryCombinationAgreesWithASlowComputation) {
  std::mt19937_64 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 3000; ++round) {
    std::vector<float> logits(1 + random() % 700);
    for (float& logit : logits) logit = normal(random);
    std::vector<Token> history(random() % 20);
    for (Token& token : history) token = static_cast<Token>(random() % logits.size());
    SamplingOptions options;
    options.temperature = 0.3 + static_cast<double>(random() % 20) * 0.1;
    options.seed = random();
    if (random() % 2 == 0) options.top_k = static_cast<std::int64_t>(random() % 600);
    if (random() % 2 == 0) options.top_p = 0.05 + static_cast<double>(random() % 90) * 0.01;
    if (random() % 2 == 0) options.min_p = static_cast<double>(random() % 30) * 0.01;
    if (random() % 2 == 0) options.repetition_penalty = 1.3;
    options.repetition_window = static_cast<std::int64_t>(random() % 12);
    Sampler sampler(options);
    std::mt19937_64 draws(options.seed);
    for (int i = 0; i < 4; ++i) {
      const double u = static_cast<double>(draws() >> 11) * 0x1.0p-53;
      ASSERT_EQ(sampler.sample(logits, history), sample_slowly(logits, history, options, u)) << "round " << round;
    }
  }
}

TEST(Sampler, DrawsFollowTheDistribution) {
  const std::vector<float> logits = {0.0f, 1.0f, -1.0f, 2.0f, 0.5f, -3.0f, 1.5f, 0.2f};
  constexpr double kTemperature = 0.7;
  constexpr int kDraws = 100000;
  std::vector<int> counts(logits.size());
  Sampler sampler({.temperature = kTemperature, .seed = 3});
  for (int i = 0; i < kDraws; ++i) ++counts[static_cast<std::size_t>(sampler.sample(logits, {}))];
  double total = 0, chi_squared = 0;
  for (const float logit : logits) total += std::exp(logit / kTemperature);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double expected = kDraws * std::exp(logits[i] / kTemperature) / total;
    chi_squared += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_squared, 29.88);  // 7 degrees of freedom, one in 10,000
  EXPECT_GT(chi_squared, 0.2);    // suspiciously even is wrong too: one in 100,000
}

TEST(Sampler, ASeedGivesTheSameDrawsOnEveryPlatform) {
  // From an implementation of the Mersenne twister in another language.
  const std::vector<Token> expected = {3, 3, 3, 2, 3, 1, 3, 3, 2, 3, 0, 3, 3, 3, 3, 3, 3, 3, 1, 1, 3, 2, 3, 1};
  Sampler sampler({.temperature = 1.0, .seed = 42});
  std::vector<Token> got;
  for (std::size_t i = 0; i < expected.size(); ++i) got.push_back(sampler.sample(std::vector<float>{0, 1, 2, 3}, {}));
  EXPECT_EQ(got, expected);
}

TEST(Sampler, ExtremeLogitsAndTemperatures) {
  EXPECT_EQ(drawn({.temperature = 1e-300}, {1, 2, 1}, 50), (Tokens{1}));
  EXPECT_EQ(drawn({.temperature = 1e300}, {1, 2, -5}, 200), (Tokens{0, 1, 2}));
  EXPECT_EQ(drawn({.temperature = 1.0}, {kInf, 2, kInf}, 200), (Tokens{0, 2}));
  EXPECT_EQ(drawn({.temperature = 1.0, .top_p = 0.9}, {-3.4e38f, 3.4e38f}, 50), (Tokens{1}));
  EXPECT_EQ(drawn({.temperature = 1.0}, {-kInf, -kInf}, 200), (Tokens{0, 1})) << "nothing to choose by: any token";
}

void expect_refused(const SamplingOptions& options, const std::string& name) {
  try {
    Sampler sampler(options);
    ADD_FAILURE() << name;
  } catch (const InvalidArgument& error) {
    EXPECT_NE(std::string(error.what()).find(name + ":"), std::string::npos) << error.what();
  }
}

TEST(Sampler, ErrorsNameTheOption) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {-0.1, nan, infinity}) expect_refused({.temperature = bad}, "temperature");
  expect_refused({.top_k = -1}, "top_k");
  for (const double bad : {0.0, 1.1, nan}) expect_refused({.top_p = bad}, "top_p");
  for (const double bad : {-0.1, 1.1, nan}) expect_refused({.min_p = bad}, "min_p");
  for (const double bad : {0.0, -1.0, nan, infinity}) expect_refused({.repetition_penalty = bad}, "repetition_penalty");
  expect_refused({.repetition_window = -1}, "repetition_window");
  Sampler sampler(SamplingOptions{});
  EXPECT_THROW(static_cast<void>(sampler.sample({}, {})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sampler.sample(std::vector<float>{1}, std::vector<Token>{1})), InvalidArgument);
}

}  // namespace
}  // namespace heed::test
