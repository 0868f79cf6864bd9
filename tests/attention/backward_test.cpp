// SPDX-License-Identifier: Apache-2.0
// The backward kernels on every ISA against the float64 reference: random calls with all options, head dimensions, lengths.
#include <array>
#include <string>
#include <utility>

#include <heed/attention.hpp>

#include "attention/plain_gradients.hpp"
#include "attention/random_case.hpp"

namespace heed::test {
namespace {

constexpr std::uint64_t kCases = 45;

class RandomGradients : public ::testing::TestWithParam<DType> {};

TEST_P(RandomGradients, AgreeWithTheReference) {
  for (std::uint64_t seed = 1; seed <= kCases; ++seed) {
    const RandomCase c(seed, GetParam());
    const TensorView &q = c.q.view, &v = c.v.view;
    const Tensor dout = random_normal({q.size(0), q.size(1), q.size(2), v.size(3)}, GetParam(), seed + 1000);
    SCOPED_TRACE(c.describe());
    check_gradients_against_exact(dout, q, c.k.view, v, c.options);
    if (::testing::Test::HasFailure()) return;  // one case is enough to look at
  }
}

std::string type_name(const ::testing::TestParamInfo<DType>& param) { return to_string(param.param); }
INSTANTIATE_TEST_SUITE_P(Types, RandomGradients, ::testing::ValuesIn(fast_dtypes()), type_name);

// Head dimensions around every strip of the outer product, with several ranges of keys and groups of row blocks.
TEST(BackwardShapes, HeadDims) {
  const std::array<std::array<std::int64_t, 2>, 8> dims = {
      {{48, 96}, {80, 80}, {112, 33}, {128, 128}, {144, 64}, {192, 1}, {256, 250}, {1024, 1023}}};
  for (std::size_t n = 0; n < dims.size(); ++n) {
    const auto [dim, value_dim] = dims[n];
    SCOPED_TRACE("D " + std::to_string(dim) + ", Dv " + std::to_string(value_dim));
    const std::int64_t heads = n % 2 == 0 ? 1 : 3, q_tokens = n % 3 == 0 ? 60 : 18, kv_tokens = dim < 200 ? 200 : 70;
    const Tensor q = random_normal({1, q_tokens, heads, dim}, DType::kFloat32, 1),
                 k = random_normal({1, kv_tokens, 1, dim}, DType::kFloat32, 2),
                 v = random_normal({1, kv_tokens, 1, value_dim}, DType::kFloat32, 3),
                 dout = random_normal({1, q_tokens, heads, value_dim}, DType::kFloat32, 4);
    AttentionOptions options;
    if (n % 2 == 0) options.mask = Mask::causal() & Mask::window(100, 0);
    check_gradients_against_exact(dout, q, k, v, options);
  }
}

}  // namespace
}  // namespace heed::test
