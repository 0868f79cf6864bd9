// SPDX-License-Identifier: Apache-2.0
// Packed sequences: each means, to the bit, what attention() over its own slices means; nothing leaks between them.
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <heed/attention.hpp>
#include <heed/error.hpp>

#include "attention/packed_case.hpp"
#include "base/parallel.hpp"

namespace heed::test {
namespace {

constexpr double kMinusInfinity = -kInfinity;

Forward run_varlen(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& q_offsets, const TensorView& k_offsets,
                   const AttentionOptions& options) {
  const DType statistics = q.dtype() == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  Forward result{Tensor(q.dtype(), {q.size(0), q.size(1), v.size(2)}), Tensor(statistics, {q.size(1), q.size(0)}),
                 Tensor(statistics, {q.size(1), q.size(0)})};
  attention_varlen_into({.out = result.out, .lse = result.lse, .row_max = result.row_max}, q, k, v, q_offsets, k_offsets, options);
  return result;
}

/// Sequence s of packed results, as a batch of one.
Forward sequence_of(const PackedCase& c, const Forward& packed, std::int64_t s) {
  const std::int64_t first = c.q_starts[static_cast<std::size_t>(s)];
  const auto cut = [&](const Tensor& tensor, int axis) {
    const TensorView part = slice(tensor.view(), axis, first, c.tokens(s));
    return convert(TensorView(part.data(), part.dtype(), {1, part.size(0), part.size(1), part.rank() == 3 ? part.size(2) : 1},
                              {0, part.stride(0), part.stride(1), part.rank() == 3 ? part.stride(2) : 0}),
                   part.dtype());
  };
  return {cut(packed.out, 0), cut(packed.lse, 1), cut(packed.row_max, 1)};
}

/// Entry b of batched results, in the same form.
Forward entry_of(const Forward& batched, std::int64_t b) {
  const auto cut = [b](const Tensor& tensor) {
    const TensorView part = slice(tensor.view(), 0, b, 1);
    return convert(TensorView(part.data(), part.dtype(), {1, part.size(1), part.size(2), part.rank() == 4 ? part.size(3) : 1},
                              {0, part.stride(1), part.stride(2), part.rank() == 4 ? part.stride(3) : 0}),
                   part.dtype());
  };
  return {cut(batched.out), cut(batched.lse), cut(batched.row_max)};
}

void expect_same(const Forward& a, const Forward& b, const std::string& where) {
  EXPECT_TRUE(same_values(a.out, b.out)) << where;
  EXPECT_TRUE(same_values(a.lse, b.lse)) << where;
  EXPECT_TRUE(same_values(a.row_max, b.row_max)) << where;
}

class Varlen : public ::testing::TestWithParam<DType> {};

TEST_P(Varlen, SameBitsAsSeparateCalls) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    const PackedCase c(seed, GetParam());
    for (const base::Isa isa : isas_here()) {
      const base::ForceIsa forced(isa);
      const Forward packed = run_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
      for (std::int64_t s = 0; s < c.sequences; ++s) {
        const std::string where = "seed " + std::to_string(seed) + ", sequence " + std::to_string(s) + ", " + c.options.mask.to_string();
        expect_same(sequence_of(c, packed, s), entry_of(c.separately(s, run_forward), s), where);
      }
      if (HasFailure()) return;  // one case is enough to look at
    }
  }
}

class VarlenAccuracy : public ::testing::TestWithParam<DType> {};

TEST_P(VarlenAccuracy, AgreesWithTheReference) {
  const auto plain_run = [](const TensorView& q, const TensorView& k, const TensorView& v, const AttentionOptions& options) {
    return plain_attention<float>(q, k, v, options, q.dtype());
  };
  for (std::uint64_t seed = 101; seed <= 112; ++seed) {
    const PackedCase c(seed, GetParam());
    const Forward packed = run_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
    for (std::int64_t s = 0; s < c.sequences; ++s) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", sequence " + std::to_string(s) + ", " + c.options.mask.to_string());
      expect_accurate(sequence_of(c, packed, s), entry_of(c.separately(s, run_exact), s), entry_of(c.separately(s, plain_run), s));
    }
  }
}

TEST_P(Varlen, RowsOfNoSequenceAreEmpty) {
  const PackedCase c(7, GetParam());
  const std::int64_t rows = c.q.shape()[0];
  ASSERT_GT(rows, 3);
  // A sequence without queries, then row 2 alone without keys, then row 3 with 5 of them.
  const Forward got = run_varlen(c.q, c.k, c.v, integers({2, 2, 3, 4}), integers({0, 5, 5, 10}), {});
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      EXPECT_EQ(element(got.lse, {h, i}) == kMinusInfinity, i != 3) << i;
      EXPECT_EQ(element(got.row_max, {h, i}) == kMinusInfinity, i != 3) << i;
      EXPECT_EQ(element(got.out, {i, h, 1}) == 0.0, i != 3) << i;
    }
  }
}

std::string type_name(const ::testing::TestParamInfo<DType>& param) { return to_string(param.param); }
INSTANTIATE_TEST_SUITE_P(Types, VarlenAccuracy, ::testing::ValuesIn(fast_dtypes()), type_name);
INSTANTIATE_TEST_SUITE_P(Types, Varlen, ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16, DType::kFloat64), type_name);

TEST(VarlenForm, ThreeCallsAgree) {
  const PackedCase c(3, DType::kBFloat16);
  const Forward all = run_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
  const AttentionState state = attention_varlen_state(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
  EXPECT_TRUE(same_values(attention_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options), all.out));
  EXPECT_TRUE(same_values(state.out, all.out) && same_values(state.lse, all.lse));
}

TEST(VarlenForm, NoSequencesAndNoRows) {
  const Tensor q = random_normal({4, 2, 8}, DType::kFloat32, 1), k = random_normal({5, 1, 8}, DType::kFloat32, 2), start = integers({0});
  EXPECT_EQ(max_abs(attention_varlen(q, k, k, start, start)), 0.0);
  const Tensor nothing(DType::kFloat32, {0, 2, 8}), zeros = integers({0, 0, 0});
  EXPECT_EQ(attention_varlen(nothing, k, k, zeros, zeros).shape(), (Shape{0, 2, 8}));
}

// Whatever another sequence's rows hold, and those of none.
TEST(VarlenForm, NothingLeaksBetweenSequences) {
  for (const base::Isa isa : isas_here()) {
    const base::ForceIsa forced(isa);
    for (const DType dtype : fast_dtypes()) {
      Tensor q = random_normal({70, 4, 16}, dtype, 1), k = random_normal({150, 2, 16}, dtype, 2), v = random_normal({150, 2, 16}, dtype, 3);
      const Tensor q_offsets = integers({1, 31, 34, 69}), k_offsets = integers({2, 80, 100, 148});
      const Tensor before = attention_varlen(q, k, v, q_offsets, k_offsets, {.mask = Mask::causal()});
      const auto poison = [](Tensor& tensor, std::int64_t begin, std::int64_t end) {
        const std::int64_t row = tensor.strides()[0];
        Tensor nan = Tensor(DType::kFloat32, {1});
        nan.data_as<float>()[0] = std::numeric_limits<float>::quiet_NaN();
        nan = convert(nan, tensor.dtype());
        const auto width = static_cast<std::size_t>(size_bytes(tensor.dtype()));
        for (std::int64_t n = begin * row; n < end * row; ++n) {
          std::memcpy(static_cast<std::byte*>(tensor.data()) + static_cast<std::size_t>(n) * width, nan.data(), width);
        }
      };
      for (Tensor* tensor : {&k, &v}) {
        poison(*tensor, 0, 2);
        poison(*tensor, 80, 100);
        poison(*tensor, 148, 150);
      }
      poison(q, 31, 34);
      const Tensor after = attention_varlen(q, k, v, q_offsets, k_offsets, {.mask = Mask::causal()});
      EXPECT_TRUE(same_values(slice(after.view(), 0, 0, 31), slice(before.view(), 0, 0, 31))) << to_string(dtype);
      EXPECT_TRUE(same_values(slice(after.view(), 0, 34, 36), slice(before.view(), 0, 34, 36))) << to_string(dtype);
    }
  }
}

// [H, T, D] in memory on both sides; the gaps between an output's elements keep what they held.
TEST(VarlenForm, AnyStrides) {
  const PackedCase c(11, DType::kFloat32);
  const Forward compact = run_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
  const auto heads_first = [](const Tensor& x) { return convert(permute(x.view(), {1, 0, 2}), x.dtype()); };
  const Tensor q = heads_first(c.q), k = heads_first(c.k), v = heads_first(c.v);
  const auto back = [](const Tensor& x) { return permute(x.view(), {1, 0, 2}); };
  const std::int64_t rows = c.q.shape()[0], dim = c.v.shape()[2];
  Tensor memory = random_normal({c.q_heads, rows, 2 * dim}, DType::kFloat32, 5);
  const Tensor held = memory.clone();
  const MutableTensorView out(memory.data(), DType::kFloat32, {rows, c.q_heads, dim}, {2 * dim, rows * 2 * dim, 2});
  attention_varlen_into({.out = out}, back(q), back(k), back(v), c.q_offsets, c.k_offsets, c.options);
  EXPECT_TRUE(same_values(out, compact.out));
  for_each_index(memory.shape(), [&](const Extents& n) {
    if (n[2] % 2 == 1) {
      EXPECT_EQ(at(memory, n), at(held, n));
    }
  });
  EXPECT_EQ(attention_varlen(back(q), back(k), back(v), c.q_offsets, c.k_offsets).strides(), (Strides{dim, rows * dim, 1}));
}

TEST(VarlenForm, SameBitsForAnyNumberOfThreads) {
  const int before = base::num_threads();
  for (std::uint64_t seed = 201; seed <= 210; ++seed) {
    const PackedCase c(seed, DType::kFloat32);
    base::set_num_threads(1);
    const Forward one = run_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options);
    base::set_num_threads(4);
    expect_same(run_varlen(c.q, c.k, c.v, c.q_offsets, c.k_offsets, c.options), one, "seed " + std::to_string(seed));
  }
  base::set_num_threads(before);
}

/// A good call, for one thing to be wrong in.
struct BadCall {
  Tensor q = random_normal({9, 4, 8}, DType::kFloat32, 1), k = random_normal({12, 2, 8}, DType::kFloat32, 2),
         v = random_normal({12, 2, 6}, DType::kFloat32, 3);
  Tensor q_offsets = integers({0, 4, 9}), k_offsets = integers({0, 7, 12});
  AttentionOptions options = {};

  void expect(const std::string& argument, const std::string& detail) {
    Tensor out = random_normal({9, 4, 6}, DType::kFloat32, 4);
    const Tensor before = out.clone();
    try {
      attention_varlen_into({.out = out}, q, k, v, q_offsets, k_offsets, options);
      ADD_FAILURE() << "no error, expected one about " << argument;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_EQ(text.rfind("attention_varlen_into: " + argument + ": expected ", 0), 0U) << text;
      EXPECT_NE(text.find(detail), std::string::npos) << text << "\n  lacks " << detail;
    }
    EXPECT_TRUE(same_values(out, before));
  }
};

TEST(VarlenErrors, Tensors) {
  BadCall{.q = random_normal({1, 9, 4, 8}, DType::kFloat32, 1)}.expect("q", "3 axes [Tq, Hq, D]");
  BadCall{.k = random_normal({12, 3, 8}, DType::kFloat32, 1)}.expect("k", "divides the 4 of q");
  BadCall{.k = random_normal({12, 2, 9}, DType::kFloat32, 1)}.expect("k", "8 (D of q) on axis 2");
  BadCall{.v = random_normal({11, 2, 6}, DType::kFloat32, 1)}.expect("v", "12 (Tk of k) on axis 0");
  BadCall{.v = random_normal({12, 2, 6}, DType::kFloat16, 1)}.expect("v", "k's type, float32");
  BadCall{.v = Tensor()}.expect("v", "none");
}

TEST(VarlenErrors, Offsets) {
  BadCall{.q_offsets = Tensor()}.expect("q_offsets", "a tensor [S + 1]");
  BadCall{.q_offsets = Tensor::zeros(DType::kFloat32, {3})}.expect("q_offsets", "int64 or int32");
  BadCall{.q_offsets = integers({})}.expect("q_offsets", "[S + 1] for S sequences");
  BadCall{.q_offsets = integers({0, 10, 9})}.expect("q_offsets", "10 at index 1");
  BadCall{.q_offsets = integers({0, 5, 4})}.expect("q_offsets", "4 at index 2");
  BadCall{.q_offsets = integers({-1, 5, 9})}.expect("q_offsets", "-1 at index 0");
  BadCall{.k_offsets = integers({0, 7, 13}, DType::kInt32)}.expect("k_offsets", "from 0 to 12");
  BadCall{.k_offsets = integers({0, 12})}.expect("k_offsets", "as many as q_offsets, [3]");
}

TEST(VarlenErrors, Options) {
  const Tensor bias = random_normal({1, 1}, DType::kFloat32, 1), slopes = random_normal({3, 4}, DType::kFloat32, 1);
  const Tensor lengths = integers({7, 6}), three = integers({1, 2, 3}), ids = Tensor::zeros(DType::kInt32, {3, 20});
  BadCall{.options = {.bias = bias}}.expect("bias", "call attention() for each");
  BadCall{.options = {.alibi_slopes = slopes}}.expect("alibi_slopes", "[3, 4]");
  BadCall{.options = {.query_offset = three}}.expect("query_offset", "[B] = [2]");
  BadCall{.options = {.kv_lengths = three}}.expect("kv_lengths", "[B] = [2]");
  BadCall{.options = {.kv_lengths = lengths}}.expect("kv_lengths", "values from 0 to Lk = 5, got 6 in batch entry 1");
  BadCall{.options = {.mask = Mask::documents(ids)}}.expect("mask", "a batch of 2");
  BadCall{.options = {.dropout = Dropout{1.5, 0}}}.expect("dropout.p", "0 <= p < 1");
}

TEST(VarlenErrors, Outputs) {
  BadCall c;
  Tensor wrong(DType::kFloat32, {9, 4, 8}), out(DType::kFloat32, {9, 4, 6}), lse(DType::kFloat32, {9, 4});
  const auto error_of = [&](const AttentionOutputs& outputs) -> std::string {
    try {
      attention_varlen_into(outputs, c.q, c.k, c.v, c.q_offsets, c.k_offsets);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(error_of({.out = wrong}).find("out: expected [9, 4, 6]"), std::string::npos) << error_of({.out = wrong});
  EXPECT_NE(error_of({}).find("out: expected a tensor [Tq, Hq, Dv]"), std::string::npos) << error_of({});
  EXPECT_NE(error_of({.out = out, .lse = lse}).find("lse: expected [4, 9]"), std::string::npos);
  const MutableTensorView over_offsets(c.q_offsets.data(), DType::kFloat32, {9, 4, 6}, {0, 0, 0});
  EXPECT_NE(error_of({.out = over_offsets}), "no error");
  EXPECT_EQ(error_of({.out = out}), "no error");
}

}  // namespace
}  // namespace heed::test
