// SPDX-License-Identifier: Apache-2.0
// Attention through every sparse pattern, forward and backward, on every ISA, against the float64 reference. The reference of the forward
// pass reads the pattern from a boolean tensor that its predicate filled, so that nothing of the pattern's code is on both sides.
#include <string>
#include <vector>

#include <heed/attention.hpp>

#include "attention/plain_gradients.hpp"
#include "mask/pattern_models.hpp"

namespace heed::test {
namespace {

constexpr std::int64_t kTokens = 70, kKeys = 150, kHeads = 4, kKvHeads = 2, kDim = 16;

std::vector<Model> patterns() {
  std::vector<std::optional<std::int64_t>> parents(kTokens);
  for (std::size_t i = 3; i < parents.size(); ++i) parents[i] = static_cast<std::int64_t>(i / 2);
  const Model causal = causal_model();
  return {
      dilated_model(6, 5),
      causal & strided_model(7),
      causal & (sliding_window_model(8) | strided_model(8)),
      causal & fixed_model({.stride = 16, .vertical = 2, .rotation = 3}),
      causal & chunked_model(48),
      axial_model({10, 15}),
      axial_model({5, 6, 5}),
      neighborhood_model({.grid = {10, 15}, .window = {3, 5}}),
      neighborhood_model({.grid = {150}, .window = {20}, .dilation = {3}}),
      neighborhood_model({.grid = {5, 6, 5}, .window = {3, 2, 2}, .dilation = {1, 2, 1}}),
      shifted_window_model({.grid = {10, 15}, .window = {4, 4}, .shift = {2, 2}}),
      random_blocks_model({.block = 16, .per_row = 2, .columns = 10, .seed = 5}),
      causal & random_blocks_model({.block = 8, .per_row = 3, .seed = 6, .heads = RandomHeads::kEach}),
      vertical_slash_model({0, 3, 77}, {0, 1, 40, 100}),
      tree_model(parents),
      longformer_model(9, {0, 100}),
      big_bird_model({.block = 16, .random_blocks = 1, .columns = 10, .seed = 2}),
      sinks_and_window_model(4, 30),
      in_blocks_model(24, window_model(0, 1)),
      per_head_model({causal & strided_model(5), sinks_and_window_model(2, 9), axial_model({10, 15}), ~columns_model({1, 140})}),
      ~(dilated_model(20, 2) | fixed_model({.stride = 32, .vertical = 4, .rotation = 4})) & causal,
  };
}

Mask tensor_mask(const Model& model) {
  const BoolArray array({1, kHeads, kTokens, kKeys});
  for (std::int64_t at = 0; at < kHeads * kTokens * kKeys; ++at) {
    const std::int64_t h = at / kKeys / kTokens, i = at / kKeys % kTokens, j = at % kKeys;
    array.data[static_cast<std::size_t>(at)] = model.visible(0, h, i, i + kKeys - kTokens, j);
  }
  return Mask::from_tensor(array.view());
}

class PatternAttention : public ::testing::TestWithParam<DType> {};

TEST_P(PatternAttention, AgreesWithTheReference) {
  const Tensor q = random_normal({1, kTokens, kHeads, kDim}, GetParam(), 1), k = random_normal({1, kKeys, kKvHeads, kDim}, GetParam(), 2),
               v = random_normal({1, kKeys, kKvHeads, kDim}, GetParam(), 3), dout = random_normal(q.shape(), GetParam(), 4);
  for (const Model& model : patterns()) {
    SCOPED_TRACE(model.mask.to_string());
    const AttentionOptions options = {.mask = model.mask};
    const AttentionOptions by_tensor = {.mask = tensor_mask(model)};
    const Forward exact = run_exact(q, k, v, by_tensor);
    const Forward plain = plain_attention<float>(q, k, v, by_tensor, q.dtype());
    for (const base::Isa isa : isas_here()) {
      SCOPED_TRACE(base::to_string(isa));
      const base::ForceIsa forced(isa);
      expect_accurate(run_forward(q, k, v, options), exact, plain);
    }
    check_gradients_against_exact(dout, q, k, v, options);
    if (::testing::Test::HasFailure()) return;
  }
}

std::string type_name(const ::testing::TestParamInfo<DType>& param) { return to_string(param.param); }
INSTANTIATE_TEST_SUITE_P(Types, PatternAttention, ::testing::ValuesIn(fast_dtypes()), type_name);

}  // namespace
}  // namespace heed::test
