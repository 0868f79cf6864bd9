// SPDX-License-Identifier: Apache-2.0
// The tensor types of GGUF: names and block sizes.
#include "model/gguf_types.hpp"

#include <algorithm>
#include <array>

namespace heed::model {
namespace {

struct TypeInfo {
  GgmlType type;
  const char* name;
  std::int64_t values, bytes;  ///< per block
};

constexpr std::array<TypeInfo, 10> kTypes = {{
    {GgmlType::kF32, "F32", 1, 4},
    {GgmlType::kF16, "F16", 1, 2},
    {GgmlType::kBF16, "BF16", 1, 2},
    {GgmlType::kQ4_0, "Q4_0", 32, 2 + 16},
    {GgmlType::kQ4_1, "Q4_1", 32, 2 + 2 + 16},
    {GgmlType::kQ5_0, "Q5_0", 32, 2 + 4 + 16},
    {GgmlType::kQ8_0, "Q8_0", 32, 2 + 32},
    {GgmlType::kQ4_K, "Q4_K", 256, 2 + 2 + 12 + 128},
    {GgmlType::kQ5_K, "Q5_K", 256, 2 + 2 + 12 + 32 + 128},
    {GgmlType::kQ6_K, "Q6_K", 256, 128 + 64 + 16 + 2},
}};

const TypeInfo* find_type(GgmlType type) noexcept {
  const auto* found = std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& info) { return info.type == type; });
  return found != kTypes.end() ? found : nullptr;
}

/// Every number that files in the wild use, so that an error can name what it met; empty: never used or withdrawn.
constexpr std::array<const char*, 31> kGgmlNames = {"F32",     "F16",    "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
                                                    "Q8_0",    "Q8_1",   "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
                                                    "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
                                                    "I8",      "I16",    "I32",     "I64",   "F64",    "IQ1_M", "BF16"};

}  // namespace

const char* to_string(GgmlType type) noexcept {
  const TypeInfo* info = find_type(type);
  return info != nullptr ? info->name : "?";
}

std::int64_t block_values(GgmlType type) noexcept {
  const TypeInfo* info = find_type(type);
  return info != nullptr ? info->values : 0;
}

std::int64_t block_bytes(GgmlType type) noexcept {
  const TypeInfo* info = find_type(type);
  return info != nullptr ? info->bytes : 0;
}

std::optional<GgmlType> known_type(std::uint32_t number) noexcept {
  const auto type = static_cast<GgmlType>(number);
  return find_type(type) != nullptr ? std::optional<GgmlType>(type) : std::nullopt;
}

std::string describe_type(std::uint32_t number) {
  std::string text = std::to_string(number);
  if (number < kGgmlNames.size() && *kGgmlNames[number] != '\0') text.append(" (").append(kGgmlNames[number]).append(")");
  return text;
}

std::string supported_types() {
  std::string text;
  for (const TypeInfo& info : kTypes) text.append(text.empty() ? "" : " ").append(info.name);
  return text;
}

}  // namespace heed::model
