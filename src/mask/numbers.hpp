// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic of positions: divisions that round down, sums that stop at the last number, checks of parameters.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/message.hpp"

namespace heed::mask {

inline constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min();
inline constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

/// p + distance, or the last number where that does not fit; distance >= 0.
[[nodiscard]] constexpr std::int64_t forward(std::int64_t p, std::int64_t distance) noexcept {
  return p > kLast - distance ? kLast : p + distance;
}
[[nodiscard]] constexpr std::int64_t backward(std::int64_t p, std::int64_t distance) noexcept {
  return p < kFirst + distance ? kFirst : p - distance;
}

/// p - j, or the nearest number.
[[nodiscard]] inline std::int64_t difference(std::int64_t p, std::int64_t j) noexcept {
  std::int64_t result = 0;
  if (!__builtin_sub_overflow(p, j, &result)) return result;
  return p < j ? kFirst : kLast;
}

/// Rounded down, also below 0; divisor >= 1.
[[nodiscard]] constexpr std::int64_t floor_divide(std::int64_t a, std::int64_t divisor) noexcept {
  return a >= 0 ? a / divisor : -1 - (-1 - a) / divisor;
}
/// In [0, divisor).
[[nodiscard]] constexpr std::int64_t floor_modulo(std::int64_t a, std::int64_t divisor) noexcept {
  return a >= 0 ? a % divisor : divisor - 1 - (-1 - a) % divisor;
}

/// [first, last] holds a multiple of step; first <= last, step >= 1.
[[nodiscard]] constexpr bool holds_multiple(std::int64_t first, std::int64_t last, std::int64_t step) noexcept {
  return static_cast<std::uint64_t>(last) - static_cast<std::uint64_t>(first) >= static_cast<std::uint64_t>(floor_modulo(last, step));
}

/// Bits phase, phase + step, ...; 0 <= phase, 1 <= step.
[[nodiscard]] constexpr std::uint64_t bits_of_steps(std::int64_t phase, std::int64_t step) noexcept {
  if (phase >= 64) return 0;
  std::uint64_t word = 1;
  for (std::int64_t shift = step; shift < 64; shift *= 2) word |= word << shift;
  return word << phase;
}

inline void require_at_least(std::int64_t least, const char* function, const char* argument, std::int64_t value) {
  if (value >= least) return;
  base::throw_invalid(function, argument, "at least " + std::to_string(least), std::to_string(value));
}

/// Rising, each once. Throws InvalidArgument for a number below 0.
[[nodiscard]] std::vector<std::int64_t> sorted_numbers(const char* function, const char* argument, std::span<const std::int64_t> numbers);
/// How many of the sorted numbers lie in [begin, end).
[[nodiscard]] std::int64_t count_in(const std::vector<std::int64_t>& sorted, std::int64_t begin, std::int64_t end) noexcept;

/// " 0 5 9"
void append_numbers(std::string& out, const std::vector<std::int64_t>& numbers);
/// "0, 5 or 9", of a long list the first eight.
[[nodiscard]] std::string listed(const std::vector<std::int64_t>& numbers, const char* last_word);

}  // namespace heed::mask
