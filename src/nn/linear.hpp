// SPDX-License-Identifier: Apache-2.0
// y = W x for weights as the file stores them; float32 activations, no rounding of x.
// One to a few rows: our own kernels straight from the blocks. Many rows: blocks of dequantized rows through oneDNN's GEMM.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <heed/model/gguf.hpp>

namespace heed::nn {

/// A [rows, columns] = [out, in] matrix inside a mapped file. Non-owning.
struct WeightMatrix {
  model::GgmlType type = model::GgmlType::kF32;
  const std::byte* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Throws FormatError when the tensor is not a matrix of this size (out or in -1: any) or columns is not a multiple of its block.
[[nodiscard]] WeightMatrix weight_matrix(const model::GgufTensor& tensor, std::int64_t rows, std::int64_t columns);

/// Rows [first, first + count) as float32 into out [count, columns]. Values are the exact meaning of the blocks.
void dequantize_rows(const WeightMatrix& w, std::int64_t first, std::int64_t count, float* out);

/// y [n, w.rows] (row stride y_stride) = x [n, w.columns] (row stride x_stride) times W transposed, plus bias [w.rows] if not null.
/// Float32 accumulation. Uses all threads. Same bits for any thread count.
void linear(float* y, std::int64_t y_stride, const float* x, std::int64_t x_stride, std::int64_t n, const WeightMatrix& w,
            const float* bias = nullptr);

}  // namespace heed::nn
