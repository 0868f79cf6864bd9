// SPDX-License-Identifier: Apache-2.0
// Rows to 8-bit codes and back.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention/int8_page.hpp"
#include "kv/write_rows.hpp"

namespace heed::kv {

/// To the tokens [row, row + n) of one head's page.
void write_int8_rows(const kernels::Int8PageLayout& layout, std::byte* page, std::int64_t row, const SourceRows& keys,
                     const SourceRows& values) noexcept;

/// Key or value of one token, [D] or [Dv].
void read_int8_key(const kernels::Int8PageLayout& layout, const std::byte* page, std::int64_t row, float* to) noexcept;
void read_int8_value(const kernels::Int8PageLayout& layout, const std::byte* page, std::int64_t row, float* to) noexcept;

}  // namespace heed::kv
