// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured beside the kernels: a ratio to it means something on a shared machine, a time does not.
#pragma once

#include <cstdint>

namespace heed::kernels {

struct PeakKernels {
  /// `rounds` rounds of independent FMAs between registers. Returns the flop done, 2 for each lane of an FMA.
  double (*fma)(std::int64_t rounds, float* sink) noexcept;
  /// The same with bfloat16 pair dots, 4 flop for each lane; null on an ISA without them.
  double (*bf16_dot)(std::int64_t rounds, float* sink) noexcept;
  /// Reads `count` floats once and returns the bytes read. `data` on a 64-byte line, count a multiple of 256.
  double (*read)(const float* data, std::int64_t count, float* sink) noexcept;
};

}  // namespace heed::kernels
