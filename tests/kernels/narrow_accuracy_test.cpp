// SPDX-License-Identifier: Apache-2.0
// The narrow kernels of every ISA that runs here against float64, under the accuracy rule: at most twice the error of a plain float32
// implementation whose weights are rounded to the inputs' type, plus 1e-6 of the largest magnitude.
#include <gtest/gtest.h>

#include "kernels/narrow_case.hpp"

namespace heed::test {
namespace {

double largest_error(const std::vector<double>& got, const std::vector<double>& truth) {
  double worst = got.size() == truth.size() ? 0.0 : kInfinity;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == truth[i]) continue;
    const double error = std::abs(got[i] - truth[i]);
    worst = std::max(worst, std::isnan(error) ? kInfinity : error);
  }
  return worst;
}

double largest_finite(const std::vector<double>& values) {
  double worst = 0.0;
  for (const double value : values) worst = std::isfinite(value) ? std::max(worst, std::abs(value)) : worst;
  return worst;
}

void expect_rule(const char* what, const std::vector<double>& got, const std::vector<double>& plain, const std::vector<double>& truth,
                 const std::string& name) {
  const double allowed = 2.0 * largest_error(plain, truth) + 1e-6 * largest_finite(truth);
  EXPECT_LE(largest_error(got, truth), allowed) << what << " of " << name;
}

void expect_accurate(const NarrowSpec& spec, const std::string& name) {
  const NarrowCase problem(spec);
  const NarrowTruth truth = problem.truth();
  const NarrowTruth plain = problem.plain();
  for (const base::Isa isa : isas_that_run()) {
    const NarrowResult got = problem.run(isa);
    const std::string where = name + " on " + base::to_string(isa);
    expect_rule("out", values_of(got.out), plain.out, truth.out, where);
    expect_rule("lse", values_of(got.lse), plain.lse, truth.lse, where);
    expect_rule("row_max", values_of(got.row_max), plain.row_max, truth.row_max, where);
  }
}

struct Types {
  DType q, kv;
};
const Types kTypes[] = {{DType::kFloat32, DType::kFloat32},   {DType::kFloat32, DType::kBFloat16}, {DType::kFloat32, DType::kFloat16},
                        {DType::kBFloat16, DType::kBFloat16}, {DType::kBFloat16, DType::kFloat16}, {DType::kFloat16, DType::kBFloat16},
                        {DType::kFloat16, DType::kFloat16}};

class NarrowAccuracy : public testing::TestWithParam<Types> {
 protected:
  static NarrowSpec typed(NarrowSpec spec) {
    spec.q_type = GetParam().q;
    spec.kv_type = GetParam().kv;
    return spec;
  }
};

TEST_P(NarrowAccuracy, Dims) {
  for (const std::int64_t dim : {1, 2, 3, 5, 8, 15, 16, 17, 31, 48, 64, 80, 96, 127, 128, 129, 192, 256}) {
    expect_accurate(typed({.group = 3, .keys = 70, .dim = dim, .value_dim = dim}), "dim " + std::to_string(dim));
  }
  expect_accurate(typed({.group = 2, .keys = 33, .dim = 1024, .value_dim = 1}), "1024, 1");
  expect_accurate(typed({.group = 2, .keys = 33, .dim = 1, .value_dim = 1024}), "1, 1024");
  expect_accurate(typed({.group = 1, .keys = 40, .dim = 576, .value_dim = 512}), "576, 512");
}

TEST_P(NarrowAccuracy, Rows) {
  for (std::int64_t rows = 1; rows <= kernels::kMostNarrowRows; rows += rows < 20 ? 1 : 11) {
    expect_accurate(typed({.group = rows, .keys = 90, .dim = 24, .value_dim = 40}), "rows " + std::to_string(rows));
  }
  expect_accurate(typed({.tokens = 5, .group = 3, .keys = 90, .dim = 24, .value_dim = 40}), "5 tokens of 3 heads");
}

TEST_P(NarrowAccuracy, Keys) {
  for (const std::int64_t keys : {1, 2, 3, 4, 7, 15, 16, 17, 63, 64, 65, 127, 255, 256, 257, 511, 777}) {
    expect_accurate(typed({.group = 4, .keys = keys, .dim = 32, .value_dim = 32}), "keys " + std::to_string(keys));
  }
}

TEST_P(NarrowAccuracy, Segments) {
  expect_accurate(typed({.keys = 300, .segments = {256, 44}}), "two");
  expect_accurate(typed({.keys = 290, .segments = {1, 2, 3, 250, 0, 4, 30}}), "odd");
  expect_accurate(typed({.keys = 300, .dim = 20, .segments = std::vector<std::int64_t>(20, 15)}), "pages");
  // More rows than keys exist: the page's slack.
  expect_accurate(typed({.keys = 300, .segments = {128, 128, 128}}), "slack");
}

TEST_P(NarrowAccuracy, StridedLastAxis) {
  expect_accurate(typed({.group = 3, .keys = 300, .dim = 37, .value_dim = 53, .memory = Memory::kStrided}), "strided");
  expect_accurate(typed({.tokens = 3,
                         .group = 3,
                         .keys = 70,
                         .dim = 64,
                         .value_dim = 64,
                         .memory = Memory::kStrided,
                         .sees = [](std::int64_t i, std::int64_t, std::int64_t j) { return j <= 67 + i; }}),
                  "strided and masked");
}

TEST_P(NarrowAccuracy, Masks) {
  const Sees causal = [](std::int64_t i, std::int64_t, std::int64_t j) { return j <= 297 + i; };
  const Sees window = [](std::int64_t i, std::int64_t, std::int64_t j) { return j <= 297 + i && j > 197 + i; };
  const Sees per_head = [](std::int64_t, std::int64_t g, std::int64_t j) { return (j + g) % 3 == 0 && j % 128 < 64; };
  const Sees nothing_for_some = [](std::int64_t i, std::int64_t g, std::int64_t j) { return i != 1 && (g != 2 || j > 280); };
  const Sees nothing = [](std::int64_t, std::int64_t, std::int64_t) { return false; };
  const std::pair<const char*, Sees> masks[] = {
      {"causal", causal}, {"window", window}, {"per head", per_head}, {"some empty", nothing_for_some}, {"nothing", nothing}};
  for (const auto& [name, sees] : masks) {
    expect_accurate(typed({.tokens = 3, .group = 4, .keys = 300, .sees = sees}), name);
    expect_accurate(typed({.tokens = 3, .group = 4, .keys = 300, .sees = sees, .has_sinks = true}), std::string(name) + " and sinks");
  }
}

TEST_P(NarrowAccuracy, Options) {
  expect_accurate(typed({.softcap = 0.5F}), "softcap");
  expect_accurate(typed({.softcap = 50.0F, .q_size = 30.0}), "softcap, large scores");
  expect_accurate(typed({.tokens = 2, .keys = 70, .has_bias = true}), "bias");
  expect_accurate(typed({.tokens = 2, .keys = 300, .has_bias = true, .bias_type = GetParam().q}), "bias of q's type");
  expect_accurate(typed({.tokens = 3, .has_alibi = true}), "alibi");
  expect_accurate(typed({.has_sinks = true}), "sinks");
  expect_accurate(typed({.scale = -0.3F}), "negative scale");
  expect_accurate(typed({.tokens = 2,
                         .keys = 300,
                         .sees = [](std::int64_t i, std::int64_t, std::int64_t j) { return j <= 298 + i; },
                         .softcap = 3.0F,
                         .has_bias = true,
                         .has_alibi = true,
                         .has_sinks = true}),
                  "all of them");
}

TEST_P(NarrowAccuracy, BiasOfMinusInfinityMasks) {
  NarrowCase problem(typed({.tokens = 2, .group = 2, .keys = 150, .has_bias = true}));
  for (std::int64_t j = 20; j < 150; ++j) problem.set_bias(0, 1, j, -kInfinity);
  for (std::int64_t j = 0; j < 150; ++j) problem.set_bias(1, 0, j, -kInfinity);
  const NarrowTruth truth = problem.truth();
  for (const base::Isa isa : isas_that_run()) {
    const NarrowResult got = problem.run(isa);
    EXPECT_LE(largest_error(values_of(got.lse), truth.lse), 1e-5);
    expect_rule("out", values_of(got.out), problem.plain().out, truth.out, base::to_string(isa));
    EXPECT_EQ(at(got.lse, {1, 0}), -kInfinity);
    EXPECT_EQ(at(got.row_max, {1, 0}), -kInfinity);
    for (std::int64_t d = 0; d < 64; ++d) EXPECT_EQ(at(got.out, {1, 0, d}), 0.0);
  }
}

TEST_P(NarrowAccuracy, HugeLogits) {
  // Scores of about +-1e5: one key takes all, and nothing overflows. float16 holds 65504 at most, so the scale does the rest.
  expect_accurate(typed({.keys = 300, .scale = 500.0F, .q_size = 25.0}), "huge");
  expect_accurate(typed({.keys = 300, .scale = -500.0F, .has_sinks = true, .q_size = 25.0}), "huge, with sinks");
}

INSTANTIATE_TEST_SUITE_P(Types, NarrowAccuracy, testing::ValuesIn(kTypes),
                         [](const auto& types) { return std::string(to_string(types.param.q)) + "_" + to_string(types.param.kv); });

}  // namespace
}  // namespace heed::test
