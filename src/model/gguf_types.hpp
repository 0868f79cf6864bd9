// SPDX-License-Identifier: Apache-2.0
// Tensor type numbers as they come from a file, before anybody has checked them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <heed/model/gguf.hpp>

namespace heed::model {

/// The type with this number, if heed reads it.
[[nodiscard]] std::optional<GgmlType> known_type(std::uint32_t number) noexcept;
/// "10 (Q2_K)", or the bare number when nobody uses it.
[[nodiscard]] std::string describe_type(std::uint32_t number);
/// "F32 F16 ...": what an error lists.
[[nodiscard]] std::string supported_types();

}  // namespace heed::model
