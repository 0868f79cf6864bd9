// SPDX-License-Identifier: Apache-2.0
// Row-wise and element-wise float32 kernels between the matrix products. Same bits for any split over rows or ranges of elements
// that are multiples of 16.
#pragma once

#include <cstdint>

namespace heed::kernels {

struct ElementwiseKernels {
  void (*rms_norm_row)(float* y, const float* x, const float* weight, std::int64_t width, float epsilon) noexcept;
  void (*add)(float* y, const float* x, std::int64_t count) noexcept;
  void (*silu_multiply)(float* gate, const float* up, std::int64_t count) noexcept;
  void (*gelu_tanh_multiply)(float* gate, const float* up, std::int64_t count) noexcept;
};

}  // namespace heed::kernels
