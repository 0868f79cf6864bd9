// SPDX-License-Identifier: Apache-2.0
#include "kv/int8_rows.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

namespace heed::kv {
namespace {

constexpr float kMostCode = 127.0F;

/// Rows of any width pass through here in pieces of it.
constexpr std::int64_t kPiece = 256;
using Piece = std::array<float, kPiece>;

/// Elements [first, first + count) of a row as float32.
void widen(const SourceRows& rows, std::int64_t row, std::int64_t first, std::int64_t count, Piece& to) noexcept {
  const SourceRows part = {.data = rows.data + (row * rows.row_stride + first * rows.dim_stride) * size_bytes(rows.dtype),
                           .dtype = rows.dtype,
                           .row_stride = rows.row_stride,
                           .dim_stride = rows.dim_stride,
                           .rows = 1,
                           .dim = count};
  write_rows(to.data(), DType::kFloat32, part);
}

/// Largest |element|; NaN where one is not a finite number.
float largest_of(const SourceRows& rows, std::int64_t row, Piece& piece) noexcept {
  float largest = 0.0F, poison = 0.0F;
  for (std::int64_t first = 0; first < rows.dim; first += kPiece) {
    const std::int64_t count = std::min(kPiece, rows.dim - first);
    widen(rows, row, first, count, piece);
    for (std::int64_t d = 0; d < count; ++d) {
      const float x = piece[static_cast<std::size_t>(d)];
      largest = std::max(largest, std::abs(x));
      poison += x - x;
    }
  }
  return largest + poison;
}

/// Writes code(d) for every element of a row, and returns the scale.
template <class Place>
float write_row(const SourceRows& rows, std::int64_t row, Place&& code) noexcept {
  Piece piece;
  const float largest = largest_of(rows, row, piece);
  const float inverse = kMostCode / largest;
  const bool is_scaled = std::isfinite(largest) && std::isfinite(inverse);  // neither 0 nor too small to divide by
  for (std::int64_t first = 0; first < rows.dim; first += kPiece) {
    const std::int64_t count = std::min(kPiece, rows.dim - first);
    widen(rows, row, first, count, piece);
    for (std::int64_t d = 0; d < count; ++d) {
      const float x = is_scaled ? piece[static_cast<std::size_t>(d)] * inverse : 0.0F;
      *code(first + d) = static_cast<std::int8_t>(std::nearbyint(x));
    }
  }
  if (!std::isfinite(largest)) return std::numeric_limits<float>::quiet_NaN();
  return is_scaled ? largest / kMostCode : 0.0F;
}

void store_scale(std::byte* scales, std::int64_t token, float scale) noexcept { std::memcpy(scales + token * 4, &scale, sizeof scale); }

float load_scale(const std::byte* scales, std::int64_t token) noexcept {
  float scale = 0.0F;
  std::memcpy(&scale, scales + token * 4, sizeof scale);
  return scale;
}

}  // namespace

void write_int8_rows(const kernels::Int8PageLayout& layout, std::byte* page, std::int64_t row, const SourceRows& keys,
                     const SourceRows& values) noexcept {
  auto* codes = reinterpret_cast<std::int8_t*>(page);
  for (std::int64_t n = 0; n < keys.rows; ++n) {
    const std::int64_t token = row + n;
    store_scale(page + layout.key_scales(), token, write_row(keys, n, [&](std::int64_t d) { return codes + layout.key_code(token, d); }));
    if (layout.head_dim % 2 != 0) codes[layout.key_code(token, layout.head_dim)] = 0;
    store_scale(page + layout.value_scales(), token,
                write_row(values, n, [&](std::int64_t d) { return codes + layout.value_code(token, d); }));
  }
}

void read_int8_key(const kernels::Int8PageLayout& layout, const std::byte* page, std::int64_t row, float* to) noexcept {
  const float scale = load_scale(page + layout.key_scales(), row);
  const auto* codes = reinterpret_cast<const std::int8_t*>(page);
  for (std::int64_t d = 0; d < layout.head_dim; ++d) to[d] = static_cast<float>(codes[layout.key_code(row, d)]) * scale;
}

void read_int8_value(const kernels::Int8PageLayout& layout, const std::byte* page, std::int64_t row, float* to) noexcept {
  const float scale = load_scale(page + layout.value_scales(), row);
  const auto* codes = reinterpret_cast<const std::int8_t*>(page);
  for (std::int64_t d = 0; d < layout.value_dim; ++d) to[d] = static_cast<float>(codes[layout.value_code(row, d)]) * scale;
}

}  // namespace heed::kv
