// SPDX-License-Identifier: Apache-2.0
// Matrix products from quantized blocks: every type on every ISA against double precision sums of independently decoded values.
#include "nn/linear.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include <heed/error.hpp>

#include "base/cpu.hpp"
#include "base/parallel.hpp"
#include "support/block_formulas.hpp"

namespace heed::nn {
namespace {

using model::GgmlType;

/// A random matrix in memory of exactly its size, and its values.
struct Matrix {
  std::vector<std::uint8_t> blocks;
  std::vector<double> values;  // [rows][columns]
  WeightMatrix weights;

  Matrix(GgmlType type, std::int64_t rows, std::int64_t columns, std::uint64_t seed) {
    const std::int64_t count = rows * columns / model::block_values(type);
    blocks = test::random_blocks(type, count, seed);
    values = test::block_values_of(type, blocks.data(), count);
    weights = {type, reinterpret_cast<const std::byte*>(blocks.data()), rows, columns};
  }
};

std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

constexpr float kUntouched = 12345.0F;

/// One product with padded strides and all outputs first set to NaN, and the padding to a marker.
struct Trial {
  std::int64_t n, x_stride, y_stride;
  std::vector<float> x, bias, y;

  Trial(const Matrix& m, std::int64_t inputs, bool with_bias)
      : n(inputs), x_stride(m.weights.columns + 3), y_stride(m.weights.rows + 2),
        x(random_floats((n - 1) * x_stride + m.weights.columns, 5)),
        bias(with_bias ? random_floats(m.weights.rows, 6) : std::vector<float>()) {
    compute(m);
  }

  void compute(const Matrix& m) {
    y.assign(static_cast<std::size_t>(n * y_stride), kUntouched);
    for (std::int64_t r = 0; r < n; ++r) {
      std::fill_n(y.begin() + r * y_stride, m.weights.rows, std::numeric_limits<float>::quiet_NaN());
    }
    linear(y.data(), y_stride, x.data(), x_stride, n, m.weights, bias.empty() ? nullptr : bias.data());
  }

  /// |error| <= columns * 2^-24 * sum |w x| holds for every order of float32 summation; one wrong weight breaks it.
  void expect_right(const Matrix& m) const {
    const std::int64_t rows = m.weights.rows, columns = m.weights.columns;
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t i = 0; i < rows; ++i) {
        const double offset = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(i)]);
        double sum = offset, magnitude = std::abs(offset);
        for (std::int64_t c = 0; c < columns; ++c) {
          const double term = m.values[static_cast<std::size_t>(i * columns + c)] * static_cast<double>(x[static_cast<std::size_t>(r * x_stride + c)]);
          sum += term;
          magnitude += std::abs(term);
        }
        const double bound = std::ldexp(static_cast<double>(columns + 2), -24) * magnitude;
        ASSERT_LE(std::abs(static_cast<double>(y[static_cast<std::size_t>(r * y_stride + i)]) - sum), bound)
            << model::to_string(m.weights.type) << " " << rows << "x" << columns << " n " << n << " input " << r << " row " << i;
      }
      for (std::int64_t i = rows; i < y_stride; ++i) ASSERT_EQ(y[static_cast<std::size_t>(r * y_stride + i)], kUntouched);
    }
  }
};

struct Case {
  GgmlType type;
  base::Isa isa;
};
void PrintTo(const Case& c, std::ostream* stream) { *stream << model::to_string(c.type) << "_" << base::to_string(c.isa); }

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

  /// Widths: one block, several, more than one chunk of scales; float types also what fills no vector.
  static std::vector<std::int64_t> widths() {
    const std::int64_t block = model::block_values(GetParam().type);
    if (block == 1) return {1, 7, 32, 101, 2100};
    if (block == 32) return {32, 96, 2080};
    return {256, 768, 2304};
  }
};

TEST_P(Linear, FewInputsMatchDoublePrecision) {
  for (const std::int64_t columns : widths()) {
    const Matrix m(GetParam().type, 5, columns, 11);
    for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15}) Trial(m, n, n % 2 == 0).expect_right(m);
  }
}

TEST_P(Linear, OddRowCountsMatchDoublePrecision) {
  const std::int64_t columns = widths()[1];
  for (const std::int64_t rows : {1, 2, 15, 16, 17, 33, 131}) {
    const Matrix m(GetParam().type, rows, columns, 12);
    Trial(m, 1, true).expect_right(m);
    Trial(m, 3, false).expect_right(m);
  }
}

TEST_P(Linear, ManyInputsMatchDoublePrecision) {
  const Matrix wide(GetParam().type, 3, widths()[1], 13);
  for (const std::int64_t n : {16, 23, 24, 25, 31, 32, 70}) Trial(wide, n, n % 2 == 0).expect_right(wide);
  const Matrix high(GetParam().type, 131, widths()[0], 13);  // more rows than a tile
  for (const std::int64_t n : {16, 24, 37}) Trial(high, n, n % 2 == 0).expect_right(high);
}

TEST_P(Linear, InputsOfSeveralTilesMatchDoublePrecision) {
  const Matrix m(GetParam().type, 9, widths()[0], 14);
  Trial(m, 301, true).expect_right(m);
}

TEST_P(Linear, SameBitsForAnyThreadCount) {
  const int before = base::num_threads();
  const Matrix m(GetParam().type, 261, widths()[1], 15);
  for (const std::int64_t n : {1, 5, 40, 300}) {
    base::set_num_threads(1);
    Trial run(m, n, true);
    const std::vector<float> alone = run.y;
    for (const int threads : {2, 3, 5}) {
      base::set_num_threads(threads);
      run.compute(m);
      EXPECT_EQ(std::memcmp(alone.data(), run.y.data(), alone.size() * sizeof(float)), 0) << threads << " threads, n " << n;
    }
  }
  base::set_num_threads(before);
}

TEST_P(Linear, DequantizedRowsAreExact) {
  for (const std::int64_t columns : widths()) {
    const Matrix m(GetParam().type, 6, columns, 16);
    std::vector<float> out(static_cast<std::size_t>(3 * columns + 1), kUntouched);
    dequantize_rows(m.weights, 2, 3, out.data());
    for (std::int64_t i = 0; i < 3 * columns; ++i) {
      const auto expected = static_cast<float>(m.values[static_cast<std::size_t>(2 * columns + i)]);
      ASSERT_EQ(out[static_cast<std::size_t>(i)], expected) << "value " << i << " of " << 3 * columns;
    }
    EXPECT_EQ(out.back(), kUntouched);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Linear, testing::ValuesIn(all_cases()), [](const testing::TestParamInfo<Case>& test) {
  return std::string(model::to_string(test.param.type)) + "_" + base::to_string(test.param.isa);
});

TEST(LinearEmpty, NothingToDo) {
  const Matrix m(GgmlType::kF32, 2, 4, 17);
  float y = kUntouched;
  linear(&y, 2, nullptr, 4, 0, m.weights);
  EXPECT_EQ(y, kUntouched);
  const WeightMatrix no_rows{GgmlType::kF32, nullptr, 0, 4};
  linear(&y, 0, nullptr, 4, 1, no_rows);
  EXPECT_EQ(y, kUntouched);
}

TEST(LinearEmpty, NoColumnsGiveTheBias) {
  const WeightMatrix no_columns{GgmlType::kF32, nullptr, 2, 0};
  const std::vector<float> bias = {1.5F, -2.0F};
  for (const std::int64_t n : {1, 40}) {
    std::vector<float> y(static_cast<std::size_t>(2 * n), kUntouched);
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
