// SPDX-License-Identifier: Apache-2.0
// Block formats as formulas in double precision, one value at a time, written from the tables in docs/gguf.md and sharing nothing
// with the library; and random blocks to try them on.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include <heed/model/gguf.hpp>

namespace heed::test {

inline constexpr model::GgmlType kAllGgmlTypes[] = {
    model::GgmlType::kF32,  model::GgmlType::kF16,  model::GgmlType::kBF16, model::GgmlType::kQ4_0, model::GgmlType::kQ4_1,
    model::GgmlType::kQ5_0, model::GgmlType::kQ8_0, model::GgmlType::kQ4_K, model::GgmlType::kQ5_K, model::GgmlType::kQ6_K};

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
    for (int i = 0; i < model::block_values(type); ++i) {
      values.push_back(block_value(type, data + b * model::block_bytes(type), i));
    }
  }
  return values;
}

/// Random bytes whose float fields are finite and of ordinary size, so that sums over them mean something.
inline std::vector<std::uint8_t> random_blocks(model::GgmlType type, std::int64_t blocks, std::uint64_t seed) {
  using model::GgmlType;
  std::mt19937_64 engine(seed);
  const auto bytes = static_cast<std::int64_t>(model::block_bytes(type));
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

}  // namespace heed::test
