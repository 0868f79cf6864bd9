// SPDX-License-Identifier: Apache-2.0
// Philox 4x32-10: random numbers as a function of a counter (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cstdint>

namespace heed::base {

using Philox4 = std::array<std::uint32_t, 4>;

[[nodiscard]] Philox4 philox4x32_10(Philox4 counter, std::uint64_t key) noexcept;

/// The draw that decides whether dropout keeps weight (b, h, row, key); see heed::Dropout.
[[nodiscard]] std::uint32_t dropout_draw(std::uint64_t seed, std::int64_t b, std::int64_t h, std::int64_t row, std::int64_t key) noexcept;
/// Smallest draw that is kept: p * 2^32 rounded up.
[[nodiscard]] std::uint64_t dropout_threshold(double p) noexcept;

}  // namespace heed::base
