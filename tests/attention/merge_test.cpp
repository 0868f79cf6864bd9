// SPDX-License-Identifier: Apache-2.0
// merge_states: parts over disjoint keys against the whole.
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <heed/attention.hpp>
#include <heed/error.hpp>

#include "support/attention.hpp"

namespace heed::test {
namespace {

TensorView keys(const Tensor& tensor, std::int64_t begin, std::int64_t count) { return slice(tensor.view(), 1, begin, count); }

/// Parts of the keys [0, 17), cut at `cuts`; positions stay those of the whole because they are given.
std::vector<AttentionState> parts_of(const Tensor& q, const Tensor& k, const Tensor& v, const std::vector<std::int64_t>& cuts,
                                     const AttentionOptions& first) {
  std::vector<AttentionState> parts;
  for (std::size_t n = 0; n + 1 < cuts.size(); ++n) {
    AttentionOptions options = first;
    if (n > 0) options.sink_logits = {};
    parts.push_back(attention_state(q, keys(k, cuts[n], cuts[n + 1] - cuts[n]), keys(v, cuts[n], cuts[n + 1] - cuts[n]), options));
  }
  return parts;
}

TEST(MergeStates, PartsOfFloat64EqualTheWhole) {
  const Tensor q = random_normal({2, 4, 6, 5}, DType::kFloat64, 1), k = random_normal({2, 17, 2, 5}, DType::kFloat64, 2),
               v = random_normal({2, 17, 2, 3}, DType::kFloat64, 3);
  const Tensor sinks = random_normal({6}, DType::kFloat64, 4);
  const AttentionOptions options = {.softcap = 4.0, .sink_logits = sinks};
  const AttentionState whole = attention_state(q, k, v, options);
  for (const std::vector<std::int64_t>& cuts :
       std::vector<std::vector<std::int64_t>>{{0, 17}, {0, 8, 17}, {0, 1, 2, 16, 17}, {0, 0, 17, 17}}) {
    const AttentionState merged = merge_states(parts_of(q, k, v, cuts, options));
    EXPECT_LT(max_abs_difference(merged.out, whole.out), 1e-14);
    EXPECT_LT(max_abs_difference(merged.lse, whole.lse), 1e-14);
  }
}

// The parts' own rounding is all the error there is: half a unit each, twice for the rounding of the result.
TEST(MergeStates, NarrowTypesLoseOnlyTheirRounding) {
  for (const DType dtype : fast_dtypes()) {
    const Tensor q = random_normal({1, 4, 4, 8}, dtype, 1), k = random_normal({1, 17, 2, 8}, dtype, 2),
                 v = random_normal({1, 17, 2, 8}, dtype, 3);
    const AttentionState merged = merge_states(parts_of(q, k, v, {0, 5, 9, 17}, {}));
    const Forward exact = run_exact(q, k, v, {});
    EXPECT_EQ(merged.out.dtype(), dtype);
    EXPECT_EQ(merged.lse.dtype(), DType::kFloat32);
    EXPECT_LT(max_abs_difference(merged.out, exact.out), (3 * roundoff(dtype) + 1e-6) * max_abs(v));
    EXPECT_LT(max_abs_difference(merged.lse, exact.lse), 2e-6);
  }
}

TEST(MergeStates, PartWithoutKeysIsNotRead) {
  const Tensor q = random_normal({1, 2, 1, 4}, DType::kFloat32, 1), k = random_normal({1, 6, 1, 4}, DType::kFloat32, 2),
               v = random_normal({1, 6, 1, 4}, DType::kFloat32, 3);
  std::vector<AttentionState> states;
  states.push_back(attention_state(q, k, v));
  states.push_back({Tensor(DType::kFloat32, {1, 2, 1, 4}), Tensor(DType::kFloat32, {1, 1, 2})});
  std::fill_n(states[1].out.data_as<float>(), 8, std::nanf(""));
  std::fill_n(states[1].lse.data_as<float>(), 2, -std::numeric_limits<float>::infinity());
  const AttentionState merged = merge_states(states);
  EXPECT_TRUE(same_values(merged.out, states[0].out));
  EXPECT_TRUE(same_values(merged.lse, states[0].lse));
}

TEST(MergeStates, NoKeysAnywhere) {
  const Tensor q = random_normal({1, 2, 1, 4}, DType::kFloat32, 1), none(DType::kFloat32, {1, 0, 1, 4});
  std::vector<AttentionState> states;
  for (int n = 0; n < 2; ++n) states.push_back(attention_state(q, none, none));
  const AttentionState merged = merge_states(states);
  EXPECT_EQ(max_abs(merged.out), 0.0);
  EXPECT_EQ(element(merged.lse, {0, 0, 0}), -kInfinity);
}

// Logits of 1e5: weights are relative, so nothing overflows.
TEST(MergeStates, HugeLse) {
  std::vector<AttentionState> states;
  for (const double lse : {1e5, 1e5 + std::log(3.0)}) {
    states.push_back({Tensor(DType::kFloat64, {1, 1, 1, 1}), Tensor(DType::kFloat64, {1, 1, 1})});
    states.back().out.data_as<double>()[0] = lse == 1e5 ? 4.0 : 8.0;
    states.back().lse.data_as<double>()[0] = lse;
  }
  const AttentionState merged = merge_states(states);
  EXPECT_NEAR(element(merged.out, {0, 0, 0, 0}), 7.0, 1e-9);
  EXPECT_NEAR(element(merged.lse, {0, 0, 0}), 1e5 + std::log(4.0), 1e-9);
}

// Were the NaN taken for a part without keys, the next merge would drop it.
TEST(MergeStates, NanStaysBesidePartsWithoutKeys) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double other : {-kInfinity, 1.0, kInfinity}) {
    std::vector<AttentionState> states;
    for (const double lse : {other, std::numeric_limits<double>::quiet_NaN()}) {
      states.push_back({Tensor::zeros(DType::kFloat64, {1, 1, 1, 1}), Tensor(DType::kFloat64, {1, 1, 1})});
      states.back().lse.data_as<double>()[0] = lse;
    }
    const AttentionState merged = merge_states(states);
    EXPECT_TRUE(std::isnan(element(merged.out, {0, 0, 0, 0})));
    EXPECT_TRUE(std::isnan(element(merged.lse, {0, 0, 0})));
  }
}

TEST(MergeStates, RefusesWhatDoesNotMatch) {
  EXPECT_THROW(static_cast<void>(merge_states({})), InvalidArgument);
  std::vector<AttentionState> states;
  states.push_back({Tensor::zeros(DType::kFloat32, {1, 2, 1, 4}), Tensor::zeros(DType::kFloat32, {1, 1, 2})});
  states.push_back({Tensor::zeros(DType::kFloat32, {1, 2, 1, 5}), Tensor::zeros(DType::kFloat32, {1, 1, 2})});
  try {
    static_cast<void>(merge_states(states));
    FAIL();
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(), "merge_states: states[1].out: expected [1, 2, 1, 4], got [1, 2, 1, 5]");
  }
}

}  // namespace
}  // namespace heed::test
