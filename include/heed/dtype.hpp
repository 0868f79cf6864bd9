// SPDX-License-Identifier: Apache-2.0
// Element types, and the two 16-bit floating types that C++20 lacks.
#pragma once

#include <bit>
#include <cstdint>

#include <heed/export.hpp>

namespace heed {

/// Element type of a tensor. float32, bfloat16 and float16 are the fast path; float64 goes through the reference;
/// the others are for masks, ids, positions and lengths.
enum class DType : std::uint8_t { kFloat32, kBFloat16, kFloat16, kFloat64, kBool, kInt32, kInt64 };

/// Bytes of one element.
[[nodiscard]] HEED_API std::int64_t size_bytes(DType dtype) noexcept;

/// "float32", "bfloat16", ...: a static string.
[[nodiscard]] HEED_API const char* to_string(DType dtype) noexcept;

/// True for float32, bfloat16, float16 and float64.
[[nodiscard]] HEED_API bool is_floating(DType dtype) noexcept;

/// The upper half of a float32: 8 exponent bits, 7 mantissa bits.
struct bfloat16 {
  std::uint16_t bits = 0;

  bfloat16() = default;

  /// Rounds to nearest, ties to even; overflow gives infinity, a NaN stays a (quiet) NaN.
  explicit bfloat16(float value) noexcept : bits(round(value)) {}

  /// Exact.
  explicit operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

  static bfloat16 from_bits(std::uint16_t bits) noexcept {
    bfloat16 result;
    result.bits = bits;
    return result;
  }

 private:
  static std::uint16_t round(float value) noexcept {
    const auto u = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
    if (is_nan) return static_cast<std::uint16_t>((u >> 16) | 0x40U);  // keep sign and payload, set the quiet bit
    return static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
  }
};

/// IEEE 754 binary16: 5 exponent bits, 10 mantissa bits, largest finite value 65504.
struct float16 {
  std::uint16_t bits = 0;

  float16() = default;

  /// Rounds to nearest, ties to even, subnormals included; overflow gives infinity, a NaN stays a (quiet) NaN.
  explicit float16(float value) noexcept : bits(round(value)) {}

  /// Exact.
  explicit operator float() const noexcept { return widen(bits); }

  static float16 from_bits(std::uint16_t bits) noexcept {
    float16 result;
    result.bits = bits;
    return result;
  }

 private:
  HEED_API static std::uint16_t round(float value) noexcept;
  HEED_API static float widen(std::uint16_t bits) noexcept;
};

/// DType of a C++ element type: dtype_of<float> == DType::kFloat32. Not defined for other types.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kFloat32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::kFloat64;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::kBFloat16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::kFloat16;
};
template <>
struct DTypeOf<bool> {
  static constexpr DType value = DType::kBool;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kInt32;
};
template <>
struct DTypeOf<std::int64_t> {
  static constexpr DType value = DType::kInt64;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

}  // namespace heed
