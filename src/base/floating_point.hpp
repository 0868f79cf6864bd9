// SPDX-License-Identifier: Apache-2.0
// A framework may have set flush-to-zero or another rounding mode; results here never depend on that.
#pragma once

#include <cfenv>

namespace heed::base {

/// Round to nearest, no flush-to-zero, no denormals-are-zero (MXCSR, FPCR) while it lives; then the caller's settings again.
class DefaultFloatingPoint {
 public:
  DefaultFloatingPoint() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPoint() { std::fesetenv(&saved_); }
  DefaultFloatingPoint(const DefaultFloatingPoint&) = delete;
  DefaultFloatingPoint& operator=(const DefaultFloatingPoint&) = delete;

 private:
  std::fenv_t saved_{};
};

}  // namespace heed::base
