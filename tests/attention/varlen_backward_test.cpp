// SPDX-License-Identifier: Apache-2.0
// Gradients of packed sequences: each to the bit those of a call over its own slices; zero where no sequence is.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <heed/attention.hpp>
#include <heed/error.hpp>

#include "attention/packed_case.hpp"

namespace heed::test {
namespace {

AttentionGrads run_packed(const PackedCase& c, const Tensor& dout) {
  const AttentionState state = attention_varlen_state(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
  return attention_varlen_backward(dout, c.q, c.k, c.v, state, c.q_offsets, c.k_offsets, c.options);
}

/// Entry s of a batch of copies, whose other entries have a dout of 0.
AttentionGrads run_alone(const PackedCase& c, const Tensor& dout, std::int64_t s) {
  return c.separately(s, [&](const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
    Tensor own = Tensor::zeros(dout.dtype(), {c.sequences, c.tokens(s), c.q_heads, v.size(3)});
    const Tensor rows = convert(c.copies(dout, c.q_starts, s), dout.dtype());
    const std::int64_t entry_bytes = c.tokens(s) * c.q_heads * v.size(3) * size_bytes(own.dtype());
    std::memcpy(static_cast<std::byte*>(own.data()) + s * entry_bytes, static_cast<const std::byte*>(rows.data()) + s * entry_bytes,
                static_cast<std::size_t>(entry_bytes));
    return attention_backward(own, q, k, v, attention_state(q, k, v, options), options);
  });
}

/// Rows of sequence s in a packed gradient against entry s of a batched one.
void expect_same_rows(const char* what, const Tensor& packed, const Tensor& batched, std::int64_t first, std::int64_t s) {
  const Shape& n = batched.shape();
  for_each_index({n[1], n[2], n[3]}, [&](const Extents& i) {
    ASSERT_EQ(at(packed, {first + i[0], i[1], i[2]}), at(batched, {s, i[0], i[1], i[2]})) << what << to_string(i);
  });
}

class VarlenBackward : public ::testing::TestWithParam<DType> {};

TEST_P(VarlenBackward, SameBitsAsSeparateCalls) {
  for (std::uint64_t seed = 301; seed <= 324; ++seed) {
    const PackedCase c(seed, GetParam());
    const Tensor dout = random_normal({c.q.shape()[0], c.q_heads, c.v.shape()[2]}, GetParam(), seed);
    for (const base::Isa isa : isas_here()) {
      const base::ForceIsa forced(isa);
      const AttentionGrads packed = run_packed(c, dout);
      std::vector<double> sinks(static_cast<std::size_t>(c.q_heads)), sizes(static_cast<std::size_t>(c.q_heads));
      for (std::int64_t s = 0; s < c.sequences; ++s) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", sequence " + std::to_string(s) + ", " + c.options.mask.to_string());
        const AttentionGrads alone = run_alone(c, dout, s);
        expect_same_rows("dq", packed.dq, alone.dq, c.q_starts[static_cast<std::size_t>(s)], s);
        expect_same_rows("dk", packed.dk, alone.dk, c.k_starts[static_cast<std::size_t>(s)], s);
        expect_same_rows("dv", packed.dv, alone.dv, c.k_starts[static_cast<std::size_t>(s)], s);
        for (std::size_t h = 0; c.options.sink_logits && h < sinks.size(); ++h) {
          const double part = element(alone.dsink_logits, {static_cast<std::int64_t>(h)});
          sinks[h] += part;
          sizes[h] += std::abs(part);
        }
      }
      // Each part was rounded to float32 once, and so was the sum.
      for (std::size_t h = 0; c.options.sink_logits && h < sinks.size(); ++h) {
        EXPECT_NEAR(element(packed.dsink_logits, {static_cast<std::int64_t>(h)}), sinks[h], 3.0 * roundoff(DType::kFloat32) * sizes[h])
            << seed;
      }
      if (HasFailure()) return;
    }
  }
}

/// Rows outside of [starts.front(), starts.back()) are 0.
void expect_zero_outside(const Tensor& gradient, const std::vector<std::int64_t>& starts) {
  for_each_index(gradient.shape(), [&](const Extents& n) {
    if (n[0] < starts.front() || n[0] >= starts.back()) {
      EXPECT_EQ(at(gradient, n), 0.0) << to_string(n);
    }
  });
}

TEST_P(VarlenBackward, RowsOfNoSequenceHaveNoGradient) {
  for (std::uint64_t seed = 401; seed <= 410; ++seed) {
    const PackedCase c(seed, GetParam());
    const Tensor dout = random_normal({c.q.shape()[0], c.q_heads, c.v.shape()[2]}, GetParam(), seed);
    const AttentionGrads grads = run_packed(c, dout);
    expect_zero_outside(grads.dq, c.q_starts);
    expect_zero_outside(grads.dk, c.k_starts);
    expect_zero_outside(grads.dv, c.k_starts);
    for (std::int64_t s = 0; s < c.sequences; ++s) {
      if (c.tokens(s) > 0 && c.keys(s) > 0) continue;
      const std::int64_t first_query = c.q_starts[static_cast<std::size_t>(s)], first_key = c.k_starts[static_cast<std::size_t>(s)];
      EXPECT_EQ(max_abs(slice(grads.dq.view(), 0, first_query, c.tokens(s))), 0.0);
      EXPECT_EQ(max_abs(slice(grads.dk.view(), 0, first_key, c.keys(s))), 0.0);
      EXPECT_EQ(max_abs(slice(grads.dv.view(), 0, first_key, c.keys(s))), 0.0);
    }
  }
}

TEST_P(VarlenBackward, IntoAnyStrides) {
  const PackedCase c(5, GetParam());
  const DType dtype = GetParam();
  const Tensor dout = random_normal({c.q.shape()[0], c.q_heads, c.v.shape()[2]}, dtype, 1);
  const AttentionState state = attention_varlen_state(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
  const AttentionGrads expected = attention_varlen_backward(dout, c.q, c.k, c.v, state, c.q_offsets, c.k_offsets, c.options);
  const auto room = [dtype](const Tensor& like) {  // heads outside of rows
    return random_normal({like.shape()[1], like.shape()[0], like.shape()[2]}, dtype, 9);
  };
  Tensor dq = room(c.q), dk = room(c.k), dv = room(c.v);
  attention_varlen_backward_into(
      {.dq = permute(dq.view(), {1, 0, 2}), .dk = permute(dk.view(), {1, 0, 2}), .dv = permute(dv.view(), {1, 0, 2})}, dout, c.q, c.k, c.v,
      state.out, state.lse, c.q_offsets, c.k_offsets, c.options);
  EXPECT_TRUE(same_values(permute(dq.view(), {1, 0, 2}), expected.dq));
  EXPECT_TRUE(same_values(permute(dk.view(), {1, 0, 2}), expected.dk));
  EXPECT_TRUE(same_values(permute(dv.view(), {1, 0, 2}), expected.dv));
}

std::string type_name(const ::testing::TestParamInfo<DType>& param) { return to_string(param.param); }
INSTANTIATE_TEST_SUITE_P(Types, VarlenBackward, ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64),
                         type_name);

TEST(VarlenBackwardForm, NoSequences) {
  const Tensor q = random_normal({4, 2, 8}, DType::kFloat32, 1), k = random_normal({5, 1, 8}, DType::kFloat32, 2);
  const Tensor start = integers({0}), sinks = random_normal({2}, DType::kFloat32, 3);
  const AttentionOptions options = {.sink_logits = sinks};
  const AttentionGrads grads =
      attention_varlen_backward(q, q, k, k, attention_varlen_state(q, k, k, start, start, options), start, start, options);
  for (const Tensor* gradient : {&grads.dq, &grads.dk, &grads.dv, &grads.dsink_logits}) EXPECT_EQ(max_abs(*gradient), 0.0);
}

TEST(VarlenBackwardForm, Errors) {
  const Tensor q = random_normal({9, 4, 8}, DType::kFloat32, 1), k = random_normal({12, 2, 8}, DType::kFloat32, 2);
  const Tensor q_offsets = integers({0, 4, 9}), k_offsets = integers({0, 7, 12}), wrong = random_normal({8, 4, 8}, DType::kFloat32, 3);
  const AttentionState state = attention_varlen_state(q, k, k, q_offsets, k_offsets);
  const auto error_of = [&](const TensorView& dout, const AttentionState& given, const TensorView& starts) -> std::string {
    try {
      static_cast<void>(attention_varlen_backward(dout, q, k, k, given, starts, k_offsets));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(error_of(q, state, q_offsets), "no error");
  EXPECT_EQ(error_of(wrong, state, q_offsets).rfind("attention_varlen_backward: dout: expected [9, 4, 8]", 0), 0U);
  EXPECT_EQ(error_of(q, {}, q_offsets).rfind("attention_varlen_backward: state.out: expected [9, 4, 8]", 0), 0U);
  EXPECT_EQ(error_of(q, {state.out.clone(), Tensor(DType::kFloat32, {9, 4})}, q_offsets)
                .rfind("attention_varlen_backward: state.lse: expected [4, 9]", 0),
            0U);
  EXPECT_EQ(error_of(q, state, integers({0, 4})).rfind("attention_varlen_backward: k_offsets", 0), 0U);
}

}  // namespace
}  // namespace heed::test
