// SPDX-License-Identifier: Apache-2.0
// The operations between the matrix products, on every ISA, against the formulas in double precision.
#include "nn/elementwise.hpp"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/cpu.hpp"
#include "base/parallel.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

std::vector<float> normal(std::int64_t count, std::uint64_t seed, double scale) {
  const Tensor values = test::random_normal({count}, DType::kFloat32, seed, scale);
  return {values.data_as<float>(), values.data_as<float>() + count};
}

std::vector<base::Isa> isas_here() {
  std::vector<base::Isa> list;
  for (const base::Isa isa : base::kAllIsas) {
    if (base::runs_here(isa)) list.push_back(isa);
  }
  return list;
}

double silu(double x) { return x / (1.0 + std::exp(-x)); }
double gelu_tanh(double x) { return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x))); }

class Elementwise : public ::testing::TestWithParam<base::Isa> {
 protected:
  base::ForceIsa force_{GetParam()};
};

/// |got - expected| <= 4 ulp of the largest intermediate: |x * up| for the gated forms.
void check_gated(void (*run)(float*, const float*, std::int64_t), double (*activation)(double)) {
  for (const std::int64_t count : {1, 7, 16, 33, 1000, 40000}) {
    for (const double scale : {0.1, 3.0, 60.0}) {
      const std::vector<float> x = normal(count, 1, scale);
      const std::vector<float> up = normal(count, 2, 1.0);
      std::vector<float> gate = x;
      run(gate.data(), up.data(), count);
      for (std::size_t i = 0; i < gate.size(); ++i) {
        const double expected = activation(x[i]) * double{up[i]};
        EXPECT_NEAR(gate[i], expected, 5e-7 * std::abs(double{x[i]} * double{up[i]}) + 1e-37) << "x " << x[i];
      }
    }
  }
}

TEST_P(Elementwise, SiluMultiply) { check_gated(nn::silu_multiply, silu); }
TEST_P(Elementwise, GeluTanhMultiply) { check_gated(nn::gelu_tanh_multiply, gelu_tanh); }

TEST_P(Elementwise, GatedActivationsAtTheEnds) {
  std::vector<float> gate = {0.0F, 1000.0F, -1000.0F, 1e30F};
  const std::vector<float> up(4, 2.0F);
  std::vector<float> gelu = gate;
  nn::silu_multiply(gate.data(), up.data(), 4);
  nn::gelu_tanh_multiply(gelu.data(), up.data(), 4);
  const std::vector<float> expected = {0.0F, 2000.0F, 0.0F, 2e30F};
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(gate[i], expected[i]) << i;
    EXPECT_EQ(gelu[i], expected[i]) << i;
  }
}

TEST_P(Elementwise, RmsNorm) {
  for (const std::int64_t width : {1, 3, 64, 65, 576, 640, 4097}) {
    const std::int64_t rows = 5;
    const std::vector<float> x = normal(rows * width, 3, 100.0);
    const std::vector<float> weight = normal(width, 4, 1.0);
    std::vector<float> y(x.size());
    const double epsilon = 1e-5;
    nn::rms_norm(y.data(), x.data(), weight.data(), rows, width, epsilon);
    for (std::int64_t r = 0; r < rows; ++r) {
      double squares = 0.0;
      for (std::int64_t i = 0; i < width; ++i) squares += std::pow(x[static_cast<std::size_t>(r * width + i)], 2);
      const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon);
      for (std::int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<std::size_t>(r * width + i);
        const double expected = x[at] * inverse * weight[static_cast<std::size_t>(i)];
        EXPECT_NEAR(y[at], expected, 1e-6 * std::abs(expected)) << "width " << width;
      }
    }
  }
}

TEST_P(Elementwise, RmsNormCountsEpsilon) {
  const std::vector<float> x(8, 1e-3F);
  const std::vector<float> weight(8, 1.0F);
  std::vector<float> y(8);
  nn::rms_norm(y.data(), x.data(), weight.data(), 1, 8, 3e-6);  // mean of squares 1e-6: 1e-3 / sqrt(4e-6) = 0.5
  for (const float value : y) EXPECT_NEAR(value, 0.5, 1e-6);
}

TEST_P(Elementwise, Add) {
  const std::vector<float> x = normal(33333, 5, 1.0);
  std::vector<float> y = normal(33333, 6, 1.0);
  const std::vector<float> before = y;
  nn::add(y.data(), x.data(), 33333);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], before[i] + x[i]);
}

TEST_P(Elementwise, SameBitsForAnyThreadCount) {
  const std::int64_t rows = 70;
  const std::int64_t width = 1000;
  const std::vector<float> x = normal(rows * width, 7, 2.0);
  const std::vector<float> weight = normal(rows * width, 8, 1.0);
  const int before = base::num_threads();
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    base::set_num_threads(threads);
    std::vector<float> y(x.size());
    nn::rms_norm(y.data(), x.data(), weight.data(), rows, width, 1e-6);
    nn::gelu_tanh_multiply(y.data(), weight.data(), rows * width);
    nn::silu_multiply(y.data(), weight.data(), rows * width);
    results.push_back(y);
  }
  base::set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Isas, Elementwise, ::testing::ValuesIn(isas_here()),
                         [](const auto& isa) { return std::string(base::to_string(isa.param)); });

}  // namespace
}  // namespace heed
