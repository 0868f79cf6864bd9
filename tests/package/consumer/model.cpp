// SPDX-License-Identifier: Apache-2.0
// Uses the installed heed::model: links oneDNN and PCRE2 through the package, and sees an untrusted file refused.
#include <array>
#include <cstddef>
#include <cstdio>

#include <heed/error.hpp>
#include <heed/model/decoder.hpp>
#include <heed/model/tokenizer.hpp>

int main() {
  const std::array<std::byte, 24> not_a_model{};
  try {
    const auto file = heed::model::GgufFile::parse(not_a_model, "zeros.gguf");
    const heed::model::Decoder decoder(file);
    const heed::model::Tokenizer tokenizer(file);
    return std::puts("24 zero bytes passed for a model"), 1;
  } catch (const heed::FormatError& error) {
    std::printf("refused: %s\n", error.what());
  }
  heed::model::Sampler sampler({});
  const std::array<float, 3> logits = {0.5F, 2.0F, 1.0F};
  return sampler.sample(logits, {}) == 1 ? 0 : 1;
}
