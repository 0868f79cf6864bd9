// SPDX-License-Identifier: Apache-2.0
// Block formats as formulas in double precision, one value at a time, written from the tables in docs/gguf.md and sharing nothing
// with the library; random blocks to try them on; and products with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <heed/model/gguf.hpp>

namespace heed::test {

inline constexpr model::GgmlType kAllGgmlTypes[] = {
    model::GgmlType::kF32,  model::GgmlType::kF16,  model::GgmlType::kBF16, model::GgmlType::kQ4_0, model::GgmlType::kQ4_1,
    model::GgmlType::kQ5_0, model::GgmlType::kQ8_0, model::GgmlType::kQ4_K, model::GgmlType::kQ5_K, model::GgmlType::kQ6_K};

/// Values and bytes of one block, from the same tables.
struct BlockSize {
  std::int64_t values, bytes;
};
inline BlockSize block_size(model::GgmlType type) {
  using model::GgmlType;
  switch (type) {
    case GgmlType::kF32: return {1, 4};
    case GgmlType::kF16:
    case GgmlType::kBF16: return {1, 2};
    case GgmlType::kQ4_0: return {32, 18};
    case GgmlType::kQ4_1: return {32, 20};
    case GgmlType::kQ5_0: return {32, 22};
    case GgmlType::kQ8_0: return {32, 34};
    case GgmlType::kQ4_K: return {256, 144};
    case GgmlType::kQ5_K: return {256, 176};
    case GgmlType::kQ6_K: return {256, 210};
  }
  return {0, 0};
}

inline unsigned little_endian_16(const std::uint8_t* p) { return p[0] + 256U * p[1]; }

/// (-1)^s * 2^(e - 15) * 1.m, or 2^-14 * 0.m where e is 0.
inline double half_value(const std::uint8_t* p) {
  const unsigned bits = little_endian_16(p);
  const int exponent = static_cast<int>(bits / 1024 % 32);
  const double mantissa = bits % 1024;
  const double sign = bits >= 32768 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline double float_value(const std::uint8_t* p) {
  const unsigned high = little_endian_16(p + 2), low = little_endian_16(p);
  const int exponent = static_cast<int>(high / 128 % 256);
  const double mantissa = std::ldexp(high % 128, 16) + low;
  const double sign = high >= 32768 ? -1.0 : 1.0;
  if (exponent == 255) return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  if (exponent == 0) return sign * std::ldexp(mantissa, -149);
  return sign * std::ldexp(8388608.0 + mantissa, exponent - 150);
}

inline int signed_byte(std::uint8_t byte) { return byte < 128 ? byte : byte - 256; }

/// Value i of one block.
inline double block_value(model::GgmlType type, const std::uint8_t* b, int i) {
  using model::GgmlType;
  const auto low = [](std::uint8_t byte) { return byte % 16; };
  const auto high = [](std::uint8_t byte) { return byte / 16; };
  const auto half_byte = [&](const std::uint8_t* qs) { return i < 16 ? low(qs[i]) : high(qs[i - 16]); };
  switch (type) {
    case GgmlType::kF32: return float_value(b);
    case GgmlType::kF16: return half_value(b);
    case GgmlType::kBF16: {
      const std::uint8_t wide[4] = {0, 0, b[0], b[1]};
      return float_value(wide);
    }
    case GgmlType::kQ4_0: return half_value(b) * (half_byte(b + 2) - 8);
    case GgmlType::kQ4_1: return half_value(b) * half_byte(b + 4) + half_value(b + 2);
    case GgmlType::kQ5_0: {
      const int fifth = b[2 + i / 8] >> (i % 8) & 1;
      return half_value(b) * (half_byte(b + 6) + 16 * fifth - 16);
    }
    case GgmlType::kQ8_0: return half_value(b) * signed_byte(b[2 + i]);
    case GgmlType::kQ4_K:
    case GgmlType::kQ5_K: {
      const int j = i / 32;
      const std::uint8_t* s = b + 4;
      const int scale = j < 4 ? s[j] % 64 : s[j + 4] % 16 + 16 * (s[j - 4] / 64);
      const int minimum = j < 4 ? s[j + 4] % 64 : s[j + 4] / 16 + 16 * (s[j] / 64);
      const std::uint8_t* qs = type == GgmlType::kQ4_K ? b + 16 : b + 48;
      const std::uint8_t byte = qs[32 * (j / 2) + i % 32];
      int q = j % 2 == 0 ? low(byte) : high(byte);
      if (type == GgmlType::kQ5_K) q += 16 * (b[16 + i % 32] >> j & 1);
      return half_value(b) * scale * q - half_value(b + 2) * minimum;
    }
    case GgmlType::kQ6_K: {
      const int n = i / 128, k = i / 32 % 4, r = i % 32;
      const std::uint8_t byte = b[64 * n + 32 * (k % 2) + r];
      const int lower = k < 2 ? low(byte) : high(byte);
      const int upper = b[128 + 32 * n + r] >> (2 * k) & 3;
      return half_value(b + 208) * signed_byte(b[192 + 8 * n + 2 * k + r / 16]) * (lower + 16 * upper - 32);
    }
  }
  return std::nan("");
}

/// All values of `blocks` blocks.
inline std::vector<double> block_values_of(model::GgmlType type, const std::uint8_t* data, std::int64_t blocks) {
  std::vector<double> values;
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (int i = 0; i < block_size(type).values; ++i) values.push_back(block_value(type, data + b * block_size(type).bytes, i));
  }
  return values;
}

/// Random bytes whose float fields are finite and of ordinary size, so that sums over them mean something.
inline std::vector<std::uint8_t> random_blocks(model::GgmlType type, std::int64_t blocks, std::uint64_t seed) {
  using model::GgmlType;
  std::mt19937_64 engine(seed);
  const std::int64_t bytes = block_size(type).bytes;
  std::vector<std::uint8_t> data(static_cast<std::size_t>(blocks * bytes));
  for (std::uint8_t& byte : data) byte = static_cast<std::uint8_t>(engine());
  // Exponent fields are set to about 2^-6 .. 2^1; sign and mantissa stay random.
  const auto tame_half = [&](std::uint8_t* p) { p[1] = static_cast<std::uint8_t>((p[1] & 0x83) | (9 + engine() % 7) << 2); };
  for (std::int64_t b = 0; b < blocks; ++b) {
    std::uint8_t* block = data.data() + b * bytes;
    switch (type) {
      case GgmlType::kF32: block[3] = static_cast<std::uint8_t>((block[3] & 0x80) | 0x3f); break;
      case GgmlType::kBF16: block[1] = static_cast<std::uint8_t>((block[1] & 0x80) | 0x3f); break;
      case GgmlType::kF16:
      case GgmlType::kQ4_0:
      case GgmlType::kQ5_0:
      case GgmlType::kQ8_0: tame_half(block); break;
      case GgmlType::kQ4_1:
      case GgmlType::kQ4_K:
      case GgmlType::kQ5_K:
        tame_half(block);
        tame_half(block + 2);
        break;
      case GgmlType::kQ6_K: tame_half(block + 208); break;
    }
  }
  return data;
}

/// A random matrix in memory of exactly its size, and its values.
struct BlockMatrix {
  model::GgmlType type;
  std::int64_t rows, columns;
  std::vector<std::uint8_t> blocks;
  std::vector<double> values;  // [rows][columns]

  BlockMatrix(model::GgmlType matrix_type, std::int64_t row_count, std::int64_t column_count, std::uint64_t seed)
      : type(matrix_type), rows(row_count), columns(column_count) {
    const std::int64_t count = rows * columns / block_size(type).values;
    blocks = random_blocks(type, count, seed);
    values = block_values_of(type, blocks.data(), count);
  }
  [[nodiscard]] const std::byte* data() const { return reinterpret_cast<const std::byte*>(blocks.data()); }
};

inline std::vector<float> random_floats(std::int64_t count, std::uint64_t seed) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(engine);
  return values;
}

/// y[r][i] = dot(x[r], row i) + bias[i] for n inputs, with padding between rows of x and y and a marker in y's.
struct BlockProduct {
  static constexpr float kUntouched = 12345.0F;
  std::int64_t n, x_stride, y_stride;
  std::vector<float> x, bias, y;

  /// `bias_count` is the matrix's rows or 0. Outputs are NaN until written.
  BlockProduct(const BlockMatrix& m, std::int64_t inputs, std::int64_t bias_count)
      : n(inputs), x_stride(m.columns + 3), y_stride(m.rows + 2), x(random_floats((n - 1) * x_stride + m.columns, 5)),
        bias(random_floats(bias_count, 6)) {
    clear(m);
  }
  void clear(const BlockMatrix& m) {
    y.assign(static_cast<std::size_t>(n * y_stride), kUntouched);
    for (std::int64_t r = 0; r < n; ++r) std::fill_n(y.begin() + r * y_stride, m.rows, std::numeric_limits<float>::quiet_NaN());
  }
  [[nodiscard]] const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }

  /// Empty, or the first wrong output. |error| <= columns * 2^-24 * sum |w x| holds for every order of float32 summation; one wrong
  /// weight breaks it.
  [[nodiscard]] std::string first_error(const BlockMatrix& m) const {
    for (std::int64_t r = 0; r < n; ++r) {
      const float* row = y.data() + r * y_stride;
      for (std::int64_t i = 0; i < m.rows; ++i) {
        const double offset = bias.empty() ? 0.0 : static_cast<double>(bias[static_cast<std::size_t>(i)]);
        double sum = offset, magnitude = std::abs(offset);
        for (std::int64_t c = 0; c < m.columns; ++c) {
          const double term =
              m.values[static_cast<std::size_t>(i * m.columns + c)] * static_cast<double>(x[static_cast<std::size_t>(r * x_stride + c)]);
          sum += term;
          magnitude += std::abs(term);
        }
        const double bound = std::ldexp(static_cast<double>(m.columns + 2), -24) * magnitude;
        if (!(std::abs(static_cast<double>(row[i]) - sum) <= bound)) {
          return "y[" + std::to_string(r) + "][" + std::to_string(i) + "] is " + std::to_string(row[i]) + ", expected " +
                 std::to_string(sum) + " (n " + std::to_string(n) + ", matrix " + std::to_string(m.rows) + "x" + std::to_string(m.columns) +
                 ")";
        }
      }
      for (std::int64_t i = m.rows; i < y_stride; ++i) {
        if (row[i] != kUntouched) return "y[" + std::to_string(r) + "] was written past its end";
      }
    }
    return "";
  }
};

}  // namespace heed::test
