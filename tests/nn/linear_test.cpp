// SPDX-License-Identifier: Apache-2.0
// Matrix products whichever way they go (from the blocks, or through oneDNN in tiles): every type on every ISA against double precision
// sums of independently decoded values, and the same bits for any number of threads.
#include "nn/linear.hpp"

#include <cstring>

#include <gtest/gtest.h>

#include <heed/error.hpp>

#include "base/cpu.hpp"
#include "base/parallel.hpp"
#include "support/block_formulas.hpp"

namespace heed::nn {
namespace {

using model::GgmlType;
using test::BlockMatrix;
using test::BlockProduct;

WeightMatrix weights_of(const BlockMatrix& m) { return {m.type, m.data(), m.rows, m.columns}; }

void compute(BlockProduct& p, const BlockMatrix& m) {
  p.clear(m);
  linear(p.y.data(), p.y_stride, p.x.data(), p.x_stride, p.n, weights_of(m), p.bias_or_null());
}

/// Every second product has a bias.
void expect_right(const BlockMatrix& m, std::int64_t n) {
  BlockProduct p(m, n, n % 2 == 0 ? m.rows : 0);
  compute(p, m);
  EXPECT_EQ(p.first_error(m), "");
}

struct Case {
  GgmlType type;
  base::Isa isa;
};
void PrintTo(const Case& c, std::ostream* stream) { *stream << model::to_string(c.type) << " " << base::to_string(c.isa); }

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const base::Isa isa : base::kAllIsas) {
    for (const GgmlType type : test::kAllGgmlTypes) {
      if (base::runs_here(isa)) cases.push_back({type, isa});
    }
  }
  return cases;
}

class Linear : public testing::TestWithParam<Case> {
 protected:
  base::ForceIsa force_{GetParam().isa};
  /// The narrowest width of this type, and one of three blocks; float types fill no block.
  std::int64_t narrow_ = test::block_size(GetParam().type).values == 1 ? 37 : test::block_size(GetParam().type).values;
  std::int64_t wide_ = 3 * narrow_;
};

TEST_P(Linear, AnyRowCount) {
  for (const std::int64_t rows : {1, 2, 15, 16, 17, 33, 131}) {
    const BlockMatrix m(GetParam().type, rows, wide_, 12);
    expect_right(m, 1);
    expect_right(m, 6);
  }
}

TEST_P(Linear, ManyInputs) {
  const BlockMatrix wide(GetParam().type, 3, wide_, 13);
  for (const std::int64_t n : {16, 23, 24, 25, 31, 32, 70}) expect_right(wide, n);
  const BlockMatrix high(GetParam().type, 131, narrow_, 13);  // more rows than a tile
  for (const std::int64_t n : {16, 24, 37}) expect_right(high, n);
}

TEST_P(Linear, InputsOfSeveralTiles) { expect_right(BlockMatrix(GetParam().type, 9, narrow_, 14), 302); }

TEST_P(Linear, SameBitsForAnyThreadCount) {
  const int before = base::num_threads();
  const BlockMatrix m(GetParam().type, 261, wide_, 15);
  for (const std::int64_t n : {1, 5, 40, 300}) {
    base::set_num_threads(1);
    BlockProduct p(m, n, m.rows);
    compute(p, m);
    const std::vector<float> alone = p.y;
    for (const int threads : {2, 3, 5}) {
      base::set_num_threads(threads);
      compute(p, m);
      EXPECT_EQ(std::memcmp(alone.data(), p.y.data(), alone.size() * sizeof(float)), 0) << threads << " threads, n " << n;
    }
  }
  base::set_num_threads(before);
}

TEST_P(Linear, RowsDequantize) {
  const BlockMatrix m(GetParam().type, 6, wide_, 16);
  std::vector<float> out(static_cast<std::size_t>(3 * wide_ + 1), BlockProduct::kUntouched);
  dequantize_rows(weights_of(m), 2, 3, out.data());
  for (std::int64_t i = 0; i < 3 * wide_; ++i) {
    ASSERT_EQ(out[static_cast<std::size_t>(i)], static_cast<float>(m.values[static_cast<std::size_t>(2 * wide_ + i)])) << i;
  }
  EXPECT_EQ(out.back(), BlockProduct::kUntouched);
}

INSTANTIATE_TEST_SUITE_P(All, Linear, testing::ValuesIn(all_cases()), [](const testing::TestParamInfo<Case>& test) {
  return std::string(model::to_string(test.param.type)) + "_" + base::to_string(test.param.isa);
});

// A tile of 128 such rows would take 16 MiB of decoded weights.
TEST(LinearTiles, WideMatricesHaveFewerRowsPerTile) {
  const BlockMatrix m(GgmlType::kQ4_0, 40, 32'768, 18);
  expect_right(m, 24);
}

TEST(LinearEmpty, NothingToDo) {
  const BlockMatrix m(GgmlType::kF32, 2, 4, 17);
  float y = 7.0F;
  linear(&y, 2, nullptr, 4, 0, weights_of(m));
  EXPECT_EQ(y, 7.0F);
  const WeightMatrix no_rows{GgmlType::kF32, nullptr, 0, 4};
  linear(&y, 0, nullptr, 4, 1, no_rows);
  EXPECT_EQ(y, 7.0F);
}

TEST(LinearEmpty, NoColumnsGiveTheBias) {
  const WeightMatrix no_columns{GgmlType::kF32, nullptr, 2, 0};
  const std::vector<float> bias = {1.5F, -2.0F};
  for (const std::int64_t n : {1, 40}) {
    std::vector<float> y(static_cast<std::size_t>(2 * n), 7.0F);
    linear(y.data(), 2, y.data(), 0, n, no_columns, bias.data());
    for (std::size_t i = 0; i < y.size(); ++i) EXPECT_EQ(y[i], bias[i % 2]);
  }
}

TEST(WeightMatrixOf, ChecksTheShape) {
  const std::vector<std::byte> data(4 * 34 * 2);
  const model::GgufTensor tensor{"w", GgmlType::kQ8_0, Shape{4, 64}, data.data(), static_cast<std::int64_t>(data.size())};
  const WeightMatrix w = weight_matrix(tensor, 4, 64);
  EXPECT_EQ(w.rows, 4);
  EXPECT_EQ(w.columns, 64);
  EXPECT_EQ(w.data, data.data());
  EXPECT_EQ(weight_matrix(tensor, -1, 64).rows, 4);
  EXPECT_EQ(weight_matrix(tensor, 4, -1).columns, 64);
  EXPECT_THROW(static_cast<void>(weight_matrix(tensor, 5, 64)), FormatError);
  EXPECT_THROW(static_cast<void>(weight_matrix(tensor, 4, 32)), FormatError);
  const model::GgufTensor vector{"v", GgmlType::kF32, Shape{64}, data.data(), 256};
  EXPECT_THROW(static_cast<void>(weight_matrix(vector, -1, -1)), FormatError);
  const model::GgufTensor cut{"c", GgmlType::kQ8_0, Shape{4, 60}, data.data(), 256};
  EXPECT_THROW(static_cast<void>(weight_matrix(cut, -1, -1)), FormatError);
}

}  // namespace
}  // namespace heed::nn
