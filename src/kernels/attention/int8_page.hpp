// SPDX-License-Identifier: Apache-2.0
// How one head's keys and values of 8 bits lie in a page of kPieceKeys tokens. Products run over pairs of integers, so a key's elements lie in
// pairs beside those of 15 other keys, and a value's elements beside those of the next token:
//
//   keys    [kPieceKeys / 16][(D + 1) / 2][16 keys][2 elements] int8, an odd D's last element paired with 0
//   scales  [kPieceKeys] float32 of the keys
//   values  [Dv / 16, rounded up][kPieceKeys / 2][16 elements][2 tokens] int8
//   scales  [kPieceKeys] float32 of the values
//
// An element is code * scale of its token; a NaN scale is a token with an element that is not a finite number.
#pragma once

#include <cstdint>

#include "kernels/attention/forward.hpp"

namespace heed::kernels {

struct Int8PageLayout {
  std::int64_t head_dim = 0, value_dim = 0;

  [[nodiscard]] constexpr std::int64_t dim_pairs() const noexcept { return (head_dim + 1) / 2; }
  [[nodiscard]] constexpr std::int64_t key_scales() const noexcept { return kPieceKeys * 2 * dim_pairs(); }
  [[nodiscard]] constexpr std::int64_t values() const noexcept { return key_scales() + kPieceKeys * 4; }
  [[nodiscard]] constexpr std::int64_t value_scales() const noexcept { return values() + kPieceKeys * ((value_dim + 15) / 16 * 16); }
  [[nodiscard]] constexpr std::int64_t bytes() const noexcept { return value_scales() + kPieceKeys * 4; }

  /// Byte of element d of a token's key and value.
  [[nodiscard]] constexpr std::int64_t key_code(std::int64_t token, std::int64_t d) const noexcept {
    return ((token / 16 * dim_pairs() + d / 2) * 16 + token % 16) * 2 + d % 2;
  }
  [[nodiscard]] constexpr std::int64_t value_code(std::int64_t token, std::int64_t d) const noexcept {
    return values() + ((d / 16 * (kPieceKeys / 2) + token / 2) * 16 + d % 16) * 2 + token % 2;
  }
};

}  // namespace heed::kernels
