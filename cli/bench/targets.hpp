// SPDX-License-Identifier: Apache-2.0
// The shares of the machine's own peak that kernels must reach, by instruction set. None where nobody has set one (portable kernels, NEON).
#pragma once

#include <cstdint>
#include <optional>

#include <heed/dtype.hpp>

namespace heed::cli::bench {

enum class Pass { kForward, kCausal, kDecode, kBackward };

/// kCausal is the forward pass, by useful flop; kBackward a causal one.
[[nodiscard]] std::optional<double> target_of(Pass pass, DType dtype, std::int64_t head_dim);

}  // namespace heed::cli::bench
