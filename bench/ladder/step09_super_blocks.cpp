// SPDX-License-Identifier: Apache-2.0
// Step 9: several row blocks share one pass over K and V, so each block of keys comes from memory once for about 192 rows rather than once for 48.
#include "ladder/row_block.hpp"

namespace ladder::LADDER_ISA {
namespace {

constexpr int kBlocks = 192 / kWidth;

}  // namespace

void step09_super_blocks(const Problem& p) {
  const std::int64_t L = p.length, D = p.head_dim, size = D * kWidth;
  const Buffer panels(kBlocks * size), outs(kBlocks * size), scores(kKeys * kWidth);
  RowBlock blocks[kBlocks];
  for (std::int64_t i = 0; i < L; i += kBlocks * kWidth) {
    int count = 0;  // fewer than kBlocks at the end
    for (; count < kBlocks && i + count * kWidth < L; ++count) {
      start(p, i + count * kWidth, panels.data() + count * size, outs.data() + count * size, blocks[count]);
    }
    for (std::int64_t j = 0; j < L; j += kKeys) {
      for (int b = 0; b < count; ++b) visit(blocks[b], p.k + j * D, p.v + j * D, D, scores.data());
    }
    for (int b = 0; b < count; ++b) finish(p, blocks[b]);
  }
}

}  // namespace ladder::LADDER_ISA
