// SPDX-License-Identifier: Apache-2.0
// Masks answer row by row, kernels read key by key: a 64 x 64 bit transpose lies between.
#pragma once

#include <cstdint>

namespace heed::mask {

/// In place: bit c of word r moves to bit r of word c. Swaps halves of halves (Warren, "Hacker's Delight", 2nd ed., section 7-3): 6 passes
/// over 64 words instead of 4096 single bits.
inline void transpose_64x64(std::uint64_t* words) noexcept {
  std::uint64_t low = 0x00000000FFFFFFFFU;
  for (int width = 32; width > 0; width /= 2, low ^= low << width) {
    for (int base = 0; base < 64; base += 2 * width) {
      for (int r = base; r < base + width; ++r) {
        const std::uint64_t moved = ((words[r] >> width) ^ words[r + width]) & low;
        words[r] ^= moved << width;
        words[r + width] ^= moved;
      }
    }
  }
}

}  // namespace heed::mask
