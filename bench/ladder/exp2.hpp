// SPDX-License-Identifier: Apache-2.0
// Step 7's idea: 2^x for a whole vector in 12 operations and no branch. exp(x) is exp2(x * log2(e)), and that factor hides in the scale.
#pragma once

#include "ladder/lanes.hpp"

namespace ladder::LADDER_ISA {

constexpr float kLog2E = 1.44269504F;

/// For x < 127. x = n + f with n whole and |f| <= 1/2; 2^f is 1 + f * q(f), a Remez fit with relative error 2.6e-9 before rounding, so that 2^0
/// is 1 exactly; n goes straight into the exponent's bits. Below -126 the result stays at 2^-126, which no float32 sum of weights notices.
static inline Vec exp2(Vec x) {
  const Vec clamped = larger(x, broadcast(-126.0F));
  const Vec shifted = clamped + 12582912.0F;  // 1.5 * 2^23: adding it leaves no fraction bits, so n stands in the lowest bits
  const Vec f = clamped - (shifted - 12582912.0F);
  Vec q = broadcast(1.559467759e-4F);
  q = q * f + 1.340664391e-3F;
  q = q * f + 9.617692975e-3F;
  q = q * f + 5.550310551e-2F;
  q = q * f + 2.402265278e-1F;
  q = q * f + 6.931472150e-1F;
  q = q * f + 1.0F;
  return reinterpret_cast<Vec>(reinterpret_cast<IVec>(q) + (reinterpret_cast<IVec>(shifted) << 23));
}

}  // namespace ladder::LADDER_ISA
