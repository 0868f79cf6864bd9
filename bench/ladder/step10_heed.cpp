// SPDX-License-Identifier: Apache-2.0
// Step 10: the library. The same plan as step 9, and what a user needs beyond it: masks, any D and L, strides, grouped heads, 16-bit types, threads.
#include <heed/attention.hpp>

#include "ladder/ladder.hpp"

namespace ladder {

void step10_heed(const Problem& p) {
  const heed::Shape shape = {1, p.length, 1, p.head_dim};  // [B, L, H, D]
  heed::attention_into({.out = heed::MutableTensorView(p.out, shape)}, heed::TensorView(p.q, shape), heed::TensorView(p.k, shape),
                       heed::TensorView(p.v, shape), {.scale = static_cast<double>(p.scale)});
}

}  // namespace ladder
