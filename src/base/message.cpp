// SPDX-License-Identifier: Apache-2.0
#include "base/message.hpp"

#include <algorithm>
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

namespace {

bool has_elements(const Shape& shape) { return std::find(shape.begin(), shape.end(), 0) == shape.end(); }

/// Sums of offsets then fit 64 bits, added to an address as well.
bool stays_within_reach(const TensorView& view) {
  constexpr std::int64_t kMostBytes = std::int64_t{1} << 62;
  std::int64_t reach = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    std::int64_t far = 0;
    if (view.size(axis) <= 1) continue;  // its stride is never used
    if (__builtin_mul_overflow(view.size(axis) - 1, view.stride(axis), &far)) return false;
    if (__builtin_mul_overflow(far, size_bytes(view.dtype()), &far) || far <= -kMostBytes || far >= kMostBytes) return false;
    if ((reach += far < 0 ? -far : far) >= kMostBytes) return false;
  }
  return true;
}

}  // namespace

void require_memory(std::string_view function, std::string_view argument, const TensorView& view) {
  if (!view) return;
  if (view.strides().rank() != view.rank()) {
    throw_invalid(function, argument, "a stride for each axis of " + to_string(view.shape()), "strides " + to_string(view.strides()));
  }
  if (!has_elements(view.shape())) return;
  if (view.data() == nullptr) throw_invalid(function, argument, "memory for " + to_string(view.shape()), "a null pointer");
  if (stays_within_reach(view)) return;
  throw_invalid(function, argument, "elements within 2^62 bytes of the first",
                "shape " + to_string(view.shape()) + " with strides " + to_string(view.strides()));
}

std::string number(double value) {
  char digits[32];
  std::snprintf(digits, sizeof digits, "%g", value);
  return digits;
}

}  // namespace heed::base
