// SPDX-License-Identifier: Apache-2.0
#include "base/message.hpp"

#include <cstdio>

#include <heed/error.hpp>

namespace heed {

InvalidArgument::InvalidArgument(const std::string& message) : std::invalid_argument(message) {}
InvalidArgument::~InvalidArgument() = default;
FormatError::FormatError(const std::string& message) : std::runtime_error(message) {}
FormatError::~FormatError() = default;

}  // namespace heed

namespace heed::base {

void throw_invalid(std::string_view function, std::string_view argument, const std::string& expected, const std::string& got) {
  std::string text(function);
  text.append(": ").append(argument).append(": expected ").append(expected).append(", got ").append(got);
  throw InvalidArgument(text);
}

void require_memory(std::string_view function, std::string_view argument, const TensorView& view) {
  if (!view || view.data() != nullptr || element_count(view.shape()) == 0) return;
  throw_invalid(function, argument, "memory for " + to_string(view.shape()), "a null pointer");
}

std::string number(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", value);
  return digits;
}

}  // namespace heed::base
