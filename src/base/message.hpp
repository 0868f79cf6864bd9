// SPDX-License-Identifier: Apache-2.0
// One way to word an argument error, "function: argument: expected ..., got ...", and what every argument is checked for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <heed/export.hpp>
#include <heed/tensor.hpp>

namespace heed::base {

[[noreturn]] HEED_API void throw_invalid(std::string_view function, std::string_view argument, const std::string& expected,
                                         const std::string& got);

/// A view must have a stride for each axis; one with elements, memory behind them that addresses can reach.
void require_memory(std::string_view function, std::string_view argument, const TensorView& view);

/// std::to_string would print 1e-300 as 0.000000 and 1e300 as 300 digits.
std::string number(double value);

}  // namespace heed::base
