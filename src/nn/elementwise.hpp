// SPDX-License-Identifier: Apache-2.0
// The operations between the matrix products. Float32, over [rows, width] with all threads.
#pragma once

#include <cstdint>

namespace heed::nn {

/// y = x / sqrt(mean(x^2) + epsilon) * weight, for each of `rows` rows of `width` values at stride `width`. y may be x.
/// Source: arXiv 1910.07467.
void rms_norm(float* y, const float* x, const float* weight, std::int64_t rows, std::int64_t width, double epsilon);

/// y += x.
void add(float* y, const float* x, std::int64_t count);

/// gate = silu(gate) * up, silu(x) = x / (1 + exp(-x)). Source: arXiv 2002.05202.
void silu_multiply(float* gate, const float* up, std::int64_t count);

/// gate = gelu(gate) * up, gelu(x) = x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))). Source: arXiv 1606.08415.
void gelu_tanh_multiply(float* gate, const float* up, std::int64_t count);

}  // namespace heed::nn
