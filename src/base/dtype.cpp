// SPDX-License-Identifier: Apache-2.0
#include <heed/dtype.hpp>

#include <bit>

namespace heed {

std::int64_t size_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kBFloat16:
    case DType::kFloat16: return 2;
    case DType::kBool: return 1;
  }
  return 0;
}

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32: return "float32";
    case DType::kBFloat16: return "bfloat16";
    case DType::kFloat16: return "float16";
    case DType::kFloat64: return "float64";
    case DType::kBool: return "bool";
    case DType::kInt32: return "int32";
    case DType::kInt64: return "int64";
  }
  return "?";
}

bool is_floating(DType dtype) noexcept {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16 || dtype == DType::kFloat64;
}

float float16::widen(std::uint16_t bits) noexcept {
  const std::uint32_t sign = (bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  std::uint32_t mantissa = bits & 0x3FFU;
  if (exponent == 0x1FU) {  // infinity; a NaN keeps its payload and becomes quiet
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | quiet | (mantissa << 13));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  const int shift = std::countl_zero(mantissa) - 21;  // a subnormal: move its leading one to bit 10
  mantissa = (mantissa << shift) & 0x3FFU;
  return std::bit_cast<float>(sign | (static_cast<std::uint32_t>(113 - shift) << 23) | (mantissa << 13));
}

std::uint16_t float16::round(float value) noexcept {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
  const std::uint32_t magnitude = u & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  if (magnitude >= 0x47800000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // 65536 and above
  if (magnitude < 0x33000000U) return sign;                                         // below half of the smallest subnormal, 2^-25
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  const std::uint32_t significand = (magnitude & 0x7FFFFFU) | 0x800000U;
  // Bits to drop: 13 for normal numbers, more where the result is subnormal.
  const int drop = exponent >= -14 ? 13 : -1 - exponent;
  std::uint32_t rounded = significand >> drop;
  const std::uint32_t rest = significand & ((1U << drop) - 1U);
  const std::uint32_t half = 1U << (drop - 1);
  if (rest > half || (rest == half && (rounded & 1U) != 0)) ++rounded;
  // The implicit bit of a normal number carries into the exponent field; so does a rounding carry, up to infinity.
  if (exponent >= -14) rounded += static_cast<std::uint32_t>(exponent + 14) << 10;
  return static_cast<std::uint16_t>(sign | rounded);
}

}  // namespace heed
