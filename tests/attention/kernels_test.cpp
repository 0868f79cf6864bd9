// SPDX-License-Identifier: Apache-2.0
// Every kernel that runs here against the float64 reference: random calls with all options, the grid of FlashAttention's own suite,
// memory orders, and outputs in any strides.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include <heed/attention.hpp>
#include <heed/kernels.hpp>

#include "attention/aligned_allocations.hpp"
#include "attention/random_case.hpp"
#include "base/parallel.hpp"
#include "support/allocations.hpp"

namespace heed::test {
namespace {

constexpr std::uint64_t kCases = 140;

class RandomCalls : public ::testing::TestWithParam<DType> {};

TEST_P(RandomCalls, AgreeWithTheReference) {
  for (std::uint64_t seed = 1; seed <= kCases; ++seed) {
    const RandomCase c(seed, GetParam());
    SCOPED_TRACE(c.describe());
    check_against_exact(c.q.view, c.k.view, c.v.view, c.options);
    if (::testing::Test::HasFailure()) return;  // one case is enough to look at
  }
}

std::string type_name(const ::testing::TestParamInfo<DType>& param) { return to_string(param.param); }
INSTANTIATE_TEST_SUITE_P(Types, RandomCalls, ::testing::ValuesIn(fast_dtypes()), type_name);

// Head dims, lengths and heads of tests/test_flash_attn.py, thinned: every head dim with one pair of lengths and one grouping.
class FlashGrid : public ::testing::TestWithParam<DType> {};

TEST_P(FlashGrid, AgreesWithTheReference) {
  const std::array<std::int64_t, 12> dims = {32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256};
  const std::array<std::pair<std::int64_t, std::int64_t>, 8> lengths = {
      {{113, 203}, {128, 217}, {113, 211}, {108, 256}, {256, 108}, {203, 113}, {1, 239}, {3, 799}}};
  const std::array<std::int64_t, 3> kv_heads = {6, 1, 2};
  for (std::size_t n = 0; n < dims.size(); ++n) {
    const auto [q_tokens, kv_tokens] = lengths[n % lengths.size()];
    const DType dtype = GetParam();
    const Tensor q = random_normal({1, q_tokens, 6, dims[n]}, dtype, 1),
                 k = random_normal({1, kv_tokens, kv_heads[n % 3], dims[n]}, dtype, 2),
                 v = random_normal({1, kv_tokens, kv_heads[n % 3], dims[n]}, dtype, 3);
    const Tensor slopes = random_normal({6}, DType::kFloat32, 4, 0.3);
    AttentionOptions options;
    if (n % 2 == 0) options.mask = Mask::causal();
    if (n % 4 == 1) options.mask = Mask::window(static_cast<std::int64_t>(17 * n % 101), static_cast<std::int64_t>(n));
    if (n % 3 == 0) options.softcap = 50.0;
    if (n % 3 == 1) options.alibi_slopes = slopes;
    SCOPED_TRACE("D " + std::to_string(dims[n]) + ", Lq " + std::to_string(q_tokens) + ", Lk " + std::to_string(kv_tokens));
    check_against_exact(q, k, v, options);
  }
}
INSTANTIATE_TEST_SUITE_P(Types, FlashGrid, ::testing::ValuesIn(fast_dtypes()), type_name);

// Entries N(0,1) with one in a thousand from N(0,100): the distribution of FlashAttention-3's accuracy table (arXiv 2407.08608, 4.3).
TEST(Accuracy, Outliers) {
  for (const DType dtype : fast_dtypes()) {
    SCOPED_TRACE(to_string(dtype));
    const auto with_outliers = [dtype](std::uint64_t seed) {
      Tensor wide = random_normal({1, 130, 2, 64}, DType::kFloat32, seed);
      std::mt19937_64 engine(seed);
      std::normal_distribution<float> large(0.0F, 10.0F);
      for (std::int64_t n = 0; n < element_count(wide.shape()); ++n) {
        if (engine() % 1000 == 0) wide.data_as<float>()[n] += large(engine);
      }
      return convert(wide, dtype);
    };
    check_against_exact(with_outliers(1), with_outliers(2), with_outliers(3), {});
  }
}

// Same numbers, same bits, however q, k and v lie in memory.
TEST(MemoryOrder, SameBits) {
  for (const base::Isa isa : isas_here()) {
    const base::ForceIsa forced(isa);
    for (const DType dtype : fast_dtypes()) {
      for (const std::int64_t q_tokens : {2, 40}) {
        SCOPED_TRACE(std::string(base::to_string(isa)) + ", " + to_string(dtype) + ", Lq " + std::to_string(q_tokens));
        const Tensor q = random_normal({2, q_tokens, 4, 24}, dtype, 1), k = random_normal({2, 150, 2, 24}, dtype, 2),
                     v = random_normal({2, 150, 2, 20}, dtype, 3);
        const Forward compact = run_forward(q, k, v, {.mask = Mask::causal()});
        const auto bhld = [](const Tensor& x) { return convert(permute(x.view(), {0, 2, 1, 3}), x.dtype()); };
        const auto bldh = [](const Tensor& x) { return convert(permute(x.view(), {0, 1, 3, 2}), x.dtype()); };
        const Tensor q1 = bhld(q), k1 = bhld(k), v1 = bhld(v), q2 = bldh(q), k2 = bldh(k), v2 = bldh(v);
        const auto from_bhld = [](const Tensor& x) { return permute(x.view(), {0, 2, 1, 3}); };
        const auto from_bldh = [](const Tensor& x) { return permute(x.view(), {0, 1, 3, 2}); };
        EXPECT_TRUE(same_values(run_forward(from_bhld(q1), from_bhld(k1), from_bhld(v1), {.mask = Mask::causal()}).out, compact.out));
        EXPECT_TRUE(same_values(run_forward(from_bldh(q2), from_bldh(k2), from_bldh(v2), {.mask = Mask::causal()}).out, compact.out));
      }
    }
  }
}

// `out` follows q: torch's [B, H, L, D] comes back as such.
TEST(MemoryOrder, OutFollowsQ) {
  const Tensor q = random_normal({2, 4, 9, 8}, DType::kFloat32, 1), k = random_normal({2, 11, 2, 8}, DType::kFloat32, 2),
               v = random_normal({2, 11, 2, 6}, DType::kFloat32, 3);
  const Tensor transposed = attention(permute(q.view(), {0, 2, 1, 3}), k, v);
  EXPECT_EQ(transposed.shape(), (Shape{2, 9, 4, 6}));
  EXPECT_EQ(transposed.strides(), (Strides{4 * 9 * 6, 6, 9 * 6, 1}));
  const Tensor plain = attention(convert(permute(q.view(), {0, 2, 1, 3}), DType::kFloat32), k, v);
  EXPECT_EQ(plain.strides(), (Strides{9 * 4 * 6, 4 * 6, 6, 1}));
  EXPECT_TRUE(same_values(transposed, plain));
}

// Outputs may lie anywhere, with any strides; the gaps between their elements keep what they held.
TEST(MemoryOrder, OutputsInAnyStrides) {
  for (const base::Isa isa : isas_here()) {
    const base::ForceIsa forced(isa);
    for (const std::int64_t q_tokens : {2, 40}) {
      SCOPED_TRACE(std::string(base::to_string(isa)) + ", Lq " + std::to_string(q_tokens));
      const Tensor q = random_normal({2, q_tokens, 4, 24}, DType::kFloat32, 1), k = random_normal({2, 70, 2, 24}, DType::kFloat32, 2),
                   v = random_normal({2, 70, 2, 20}, DType::kFloat32, 3);
      const Forward expected = run_forward(q, k, v, {});
      Tensor out_memory = random_normal({2, 40 * 2, q_tokens + 1, 4}, DType::kFloat32, 4),
             statistics = random_normal({2, q_tokens, 2, 8}, DType::kFloat32, 5);
      const Tensor out_before = out_memory.clone(), statistics_before = statistics.clone();
      const Strides o = out_memory.strides(), s = statistics.strides();
      const MutableTensorView out(out_memory.data(), DType::kFloat32, {2, q_tokens, 4, 20}, {o[0], o[2], o[3], 2 * o[1]});
      const MutableTensorView lse(statistics.data(), DType::kFloat32, {2, 4, q_tokens}, {s[0], 2 * s[3], s[1]});
      const MutableTensorView row_max(statistics.data_as<float>() + s[2], {2, 4, q_tokens}, {s[0], s[3], s[1]});
      attention_into({.out = out, .lse = lse, .row_max = row_max}, q, k, v);
      EXPECT_TRUE(same_values(out, expected.out) && same_values(lse, expected.lse) && same_values(row_max, expected.row_max));
      // Whatever is not an element of an output: odd planes of out_memory, its last token, and the unused statistics.
      for_each_index(out_memory.shape(), [&](const Extents& n) {
        if (n[1] % 2 == 1 || n[2] == q_tokens) {
          EXPECT_EQ(at(out_memory, n), at(out_before, n));
        }
      });
      for_each_index(statistics.shape(), [&](const Extents& n) {
        if (n[2] == 0 ? n[3] % 2 == 1 : n[3] >= 4) {
          EXPECT_EQ(at(statistics, n), at(statistics_before, n));
        }
      });
    }
  }
}

// The parts of a split call, joined: a wide and a narrow call, each over half of the keys.
TEST(MergeKernels, HalvesEqualTheWhole) {
  for (const base::Isa isa : isas_here()) {
    const base::ForceIsa forced(isa);
    for (const DType dtype : fast_dtypes()) {
      for (const std::int64_t q_tokens : {2, 20}) {
        SCOPED_TRACE(std::string(base::to_string(isa)) + ", " + to_string(dtype));
        const Tensor q = random_normal({1, q_tokens, 2, 16}, dtype, 1), k = random_normal({1, 90, 1, 16}, dtype, 2),
                     v = random_normal({1, 90, 1, 16}, dtype, 3);
        std::vector<AttentionState> parts;
        parts.push_back(attention_state(q, slice(k.view(), 1, 0, 37), slice(v.view(), 1, 0, 37)));
        parts.push_back(attention_state(q, slice(k.view(), 1, 37, 53), slice(v.view(), 1, 37, 53)));
        const AttentionState merged = merge_states(parts);
        const Forward exact = run_exact(q, k, v, {});
        const double lse_error = 2e-6;
        EXPECT_LE(max_abs_difference(merged.lse, exact.lse), lse_error);
        // Each part is rounded once and so is the result; weights that lse misjudges shift at most that share of |v|.
        EXPECT_LE(max_abs_difference(merged.out, exact.out), (3 * roundoff(dtype) + 1e-6 + 2 * lse_error) * max_abs(v));
      }
    }
  }
}

// Once the arena is warm, a call allocates nothing: no plan, no tensor, no scratch, no L x L matrix.
TEST(Memory, SteadyStateAllocatesNothing) {
  if (!base::SerialOpenMp::works()) set_num_threads(1);  // without OpenMP's pool every thread that starts is an allocation
  const Tensor k = random_normal({1, 1280, 1, 128}, DType::kFloat32, 2);
  for (const std::int64_t q_tokens : {1, 1280}) {
    const Tensor q = random_normal({1, q_tokens, 2, 128}, DType::kFloat32, 1);
    Tensor out(DType::kFloat32, {1, q_tokens, 2, 128});
    const auto call = [&] { attention_into({.out = out}, q, k, k, {.mask = Mask::causal()}); };
    call();
    call();
    const std::size_t before = aligned_allocations();
    forget_allocations();
    call();
    EXPECT_EQ(aligned_allocations(), before) << "Lq " << q_tokens;
    EXPECT_EQ(largest_allocation(), 0U) << "Lq " << q_tokens;
  }
}

}  // namespace
}  // namespace heed::test
