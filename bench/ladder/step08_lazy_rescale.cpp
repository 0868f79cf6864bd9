// SPDX-License-Identifier: Apache-2.0
// Step 8: step 7 with references that move only when they must. The row block's work is in row_block.hpp, because step 9 orders it anew.
#include "ladder/row_block.hpp"

namespace ladder::LADDER_ISA {

void step08_lazy_rescale(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim;
  const Buffer panel(D * kWidth), out(D * kWidth), scores(kKeys * kWidth);
  for (std::int64_t i = 0; i < L; i += kWidth) {
    RowBlock block;
    start(p, i, panel.data(), out.data(), block);
    for (std::int64_t j = 0; j < L; j += kKeys) visit(block, p.k + j * D, p.v + j * D, D, scores.data());
    finish(p, block);
  }
}

}  // namespace ladder::LADDER_ISA
