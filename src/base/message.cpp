// SPDX-License-Identifier: Apache-2.0
#include "base/message.hpp"

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

}  // namespace heed::base
