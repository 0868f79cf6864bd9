// SPDX-License-Identifier: Apache-2.0
// Products of float32 rows with matrices stored in blocks of quantized values, and those blocks as float32.
// Every weight is decoded to its exact float32 value first, so a product differs from the real one by the rounding of its sums only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed::kernels {

/// How a matrix is stored. A row is a whole number of blocks.
enum class WeightFormat : std::uint8_t { kF32, kF16, kBF16, kQ4_0, kQ4_1, kQ5_0, kQ8_0, kQ4_K, kQ5_K, kQ6_K };
inline constexpr int kWeightFormats = 10;

/// y[r][i] = dot(x row r, weight row i) + bias[i]
struct LinearProblem {
  const std::byte* weights = nullptr;  ///< [rows][columns], contiguous
  std::int64_t row_bytes = 0;
  std::int64_t columns = 0;
  const float* x = nullptr;  ///< [n][columns]
  std::int64_t x_stride = 0;
  std::int64_t n = 0;
  float* y = nullptr;  ///< [n][rows]
  std::int64_t y_stride = 0;
  const float* bias = nullptr;  ///< [rows] or null
};

struct LinearFormatKernels {
  /// Weight rows [first, last). An output's bits depend on its own rows of x and W, and on n, only.
  void (*dot)(const LinearProblem& problem, std::int64_t first, std::int64_t last) noexcept;
  /// `count` values, whole blocks, as float32.
  void (*dequantize)(float* out, const std::byte* blocks, std::int64_t count) noexcept;
};

struct LinearKernels {
  LinearFormatKernels format[kWeightFormats];  ///< by WeightFormat
};

}  // namespace heed::kernels
