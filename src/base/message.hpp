// SPDX-License-Identifier: Apache-2.0
// One way to word an argument error: "function: argument: expected ..., got ...".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace heed::base {

[[noreturn]] void throw_invalid(std::string_view function, std::string_view argument, const std::string& expected, const std::string& got);

}  // namespace heed::base
