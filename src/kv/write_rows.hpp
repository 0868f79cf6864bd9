// SPDX-License-Identifier: Apache-2.0
// Writes rows of a caller's tensor into a cache, rounded to the cache's type.
#pragma once

#include <cstddef>
#include <cstdint>

#include <heed/tensor.hpp>

namespace heed::kv {

/// The rows of one head in a caller's tensor: float32, bfloat16 or float16.
struct SourceRows {
  const std::byte* data = nullptr;
  DType dtype = DType::kFloat32;
  std::int64_t row_stride = 0, dim_stride = 1;  ///< elements
  std::int64_t rows = 0, dim = 0;
};

/// Rows [first, first + count) of batch entry b, head h of `source` [B, n, H, dim].
[[nodiscard]] SourceRows rows_of(const TensorView& source, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count);

/// Threads that are worth waking to copy as much as `source`.
[[nodiscard]] int writing_threads(const TensorView& source);

/// To compact rows of float32, bfloat16 or float16.
void write_rows(void* to, DType dtype, const SourceRows& from) noexcept;

}  // namespace heed::kv
