// SPDX-License-Identifier: Apache-2.0
// What heed throws. Allocation failure stays std::bad_alloc. Nothing in the library aborts, exits or prints.
#pragma once

#include <stdexcept>
#include <string>

#include <heed/export.hpp>

namespace heed {

/// A bad argument. The text names the function, the argument, what was expected and what came:
///   attention: k: expected last axis 64 (D of q), got 128
/// Thrown before anything is written.
class HEED_API InvalidArgument : public std::invalid_argument {
 public:
  explicit InvalidArgument(const std::string& message);
  ~InvalidArgument() override;
};

/// A file that does not hold what its format promises. The text names the file, the field and the byte offset.
class HEED_API FormatError : public std::runtime_error {
 public:
  explicit FormatError(const std::string& message);
  ~FormatError() override;
};

}  // namespace heed
