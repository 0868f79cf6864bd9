// SPDX-License-Identifier: Apache-2.0
// Numbers for the ladder, and the float64 truth that its steps are compared with.
#pragma once

#include <vector>

#include "ladder/ladder.hpp"

namespace ladder {

enum class Keys {
  kAlike,   ///< a row's scores are spread like normal ones of standard deviation 2
  kRising,  ///< they also grow along the sequence, so that a row's maximum keeps moving
};

/// A problem with memory of its own.
class Example {
 public:
  Example(std::int64_t length, std::int64_t head_dim, Keys keys);
  [[nodiscard]] Problem problem() const;
  [[nodiscard]] const float* out() const { return out_.data(); }
  void forget() const;  ///< fills the output with NaN

 private:
  std::int64_t length_, head_dim_;
  Buffer q_, k_, v_, out_;
};

/// The result by the definition in float64, [L][D].
std::vector<double> exact_rows(const Problem& problem);
/// The largest distance of the problem's output from it; NaN when the output has one.
double largest_error(const Problem& problem, const std::vector<double>& exact);
/// What a float32 result may be off by at most, in whatever order it adds: D roundings of the terms of a score, which shift a weight's exponent,
/// and L of the sums over keys, in numerator and denominator.
double float32_bound(const Problem& problem);

}  // namespace ladder
