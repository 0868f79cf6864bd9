// SPDX-License-Identifier: Apache-2.0
// Who sees whom. Masks combine with & | ~, and read and print themselves as text.
#include <cstdio>

#include <heed/heed.hpp>

namespace {

void draw(const heed::Mask& mask, std::int64_t queries, std::int64_t keys, heed::Align align) {
  std::printf("%s, Lq %d, Lk %d, %s\n", mask.to_string().c_str(), static_cast<int>(queries), static_cast<int>(keys),
              align == heed::Align::kBottomRight ? "bottom right" : "top left");
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::int64_t position = align == heed::Align::kBottomRight ? i + keys - queries : i;
    for (std::int64_t j = 0; j < keys; ++j) std::printf(" %d", mask.visible(0, 0, i, position, j) ? 1 : 0);
    std::printf("\n");
  }
  std::printf("\n");
}

}  // namespace

int main() {
  using heed::Align;
  using heed::Mask;
  draw(Mask::causal(), 2, 4, Align::kBottomRight);  // generation: the last query sees every key
  draw(Mask::causal(), 2, 4, Align::kTopLeft);      // torch's is_causal
  draw(Mask::sliding_window(2), 4, 4, Align::kBottomRight);
  draw(Mask::causal() & (Mask::sliding_window(2) | Mask::sink_tokens(1)), 4, 4, Align::kBottomRight);  // StreamingLLM
  draw(Mask::parse("prefix_lm 2 & ~window 0 0"), 4, 4, Align::kBottomRight);
}
