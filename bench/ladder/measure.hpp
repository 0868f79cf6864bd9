// SPDX-License-Identifier: Apache-2.0
// Times steps in turn with the machine's own peak, so that a busy neighbour slows both.
#pragma once

#include <string>
#include <vector>

#include "ladder/ladder.hpp"

namespace ladder {

struct Rung {
  const char* name;  ///< of its file
  Step step;
};

struct Result {
  std::string name;
  double speed, peak;                ///< flop/s, medians of the rounds
  double ratio, ratio_q1, ratio_q3;  ///< of speed / peak: median and quartiles
};

/// Rounds over all steps, on one thread; a probe of the FMA peak before and after each.
std::vector<Result> measure(const std::vector<Rung>& rungs, const Problem& problem, int rounds);

}  // namespace ladder
