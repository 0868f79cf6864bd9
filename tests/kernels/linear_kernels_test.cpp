// SPDX-License-Identifier: Apache-2.0
// The linear kernels of every ISA and block format: few inputs against double precision sums, and decoded values bit by bit.
#include <cstring>

#include <gtest/gtest.h>

#include "base/cpu.hpp"
#include "kernels/registry.hpp"
#include "support/block_formulas.hpp"

namespace heed::kernels {
namespace {

using model::GgmlType;
using test::BlockMatrix;
using test::BlockProduct;

struct Case {
  const char* name;
  GgmlType type;
  WeightFormat format;
  base::Isa isa = base::Isa::kGeneric;
};
void PrintTo(const Case& c, std::ostream* stream) { *stream << c.name << " " << base::to_string(c.isa); }

constexpr Case kFormats[] = {{"F32", GgmlType::kF32, WeightFormat::kF32},    {"F16", GgmlType::kF16, WeightFormat::kF16},
                             {"BF16", GgmlType::kBF16, WeightFormat::kBF16}, {"Q4_0", GgmlType::kQ4_0, WeightFormat::kQ4_0},
                             {"Q4_1", GgmlType::kQ4_1, WeightFormat::kQ4_1}, {"Q5_0", GgmlType::kQ5_0, WeightFormat::kQ5_0},
                             {"Q8_0", GgmlType::kQ8_0, WeightFormat::kQ8_0}, {"Q4_K", GgmlType::kQ4_K, WeightFormat::kQ4_K},
                             {"Q5_K", GgmlType::kQ5_K, WeightFormat::kQ5_K}, {"Q6_K", GgmlType::kQ6_K, WeightFormat::kQ6_K}};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const base::Isa isa : base::kAllIsas) {
    if (!base::runs_here(isa)) continue;
    for (Case c : kFormats) {
      c.isa = isa;
      cases.push_back(c);
    }
  }
  return cases;
}

class LinearKernel : public testing::TestWithParam<Case> {
 protected:
  const LinearFormatKernels& kernels_ = linear_kernels_of(GetParam().isa)->format[static_cast<int>(GetParam().format)];
  test::BlockSize block_ = test::block_size(GetParam().type);

  /// One block, several, more than one chunk of scales; float types also what fills no vector.
  [[nodiscard]] std::vector<std::int64_t> widths() const {
    if (block_.values == 1) return {1, 7, 32, 101, 2100};
    if (block_.values == 32) return {32, 96, 2080};
    return {256, 768, 2304};
  }

  void run(BlockProduct& p, const BlockMatrix& m, std::int64_t first, std::int64_t last) const {
    LinearProblem problem;
    problem.weights = m.data();
    problem.row_bytes = m.columns / block_.values * block_.bytes;
    problem.columns = m.columns;
    problem.x = p.x.data();
    problem.x_stride = p.x_stride;
    problem.n = p.n;
    problem.y = p.y.data();
    problem.y_stride = p.y_stride;
    problem.bias = p.bias_or_null();
    kernels_.dot(problem, first, last);
  }
};

TEST_P(LinearKernel, ProductsMatchDoublePrecision) {
  for (const std::int64_t columns : widths()) {
    const BlockMatrix m(GetParam().type, 5, columns, 11);
    for (const std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 9, 12, 15}) {
      BlockProduct p(m, n, n % 2 == 0 ? m.rows : 0);
      run(p, m, 0, m.rows);
      ASSERT_EQ(p.first_error(m), "");
    }
  }
}

TEST_P(LinearKernel, RangesOfRowsGiveTheSameBits) {
  const BlockMatrix m(GetParam().type, 9, widths()[1], 12);
  BlockProduct whole(m, 6, m.rows);
  run(whole, m, 0, m.rows);
  BlockProduct parts(m, 6, m.rows);
  run(parts, m, 7, 9);
  run(parts, m, 0, 1);
  run(parts, m, 1, 7);
  EXPECT_EQ(std::memcmp(whole.y.data(), parts.y.data(), whole.y.size() * sizeof(float)), 0);
}

TEST_P(LinearKernel, DecodedValuesAreTheFormulaRoundedOnce) {
  for (const std::int64_t columns : widths()) {
    const BlockMatrix m(GetParam().type, 7, columns, 16);
    std::vector<float> out(m.values.size() + 1, BlockProduct::kUntouched);
    kernels_.dequantize(out.data(), m.data(), static_cast<std::int64_t>(m.values.size()));
    for (std::size_t i = 0; i < m.values.size(); ++i) ASSERT_EQ(out[i], static_cast<float>(m.values[i])) << i;
    ASSERT_EQ(out.back(), BlockProduct::kUntouched);
  }
}

INSTANTIATE_TEST_SUITE_P(All, LinearKernel, testing::ValuesIn(all_cases()), [](const testing::TestParamInfo<Case>& test) {
  return std::string(test.param.name) + "_" + base::to_string(test.param.isa);
});

}  // namespace
}  // namespace heed::kernels
