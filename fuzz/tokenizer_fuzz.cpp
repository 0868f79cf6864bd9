// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the tokenizers: the input's first part makes a vocabulary, the rest is text. Any vocabulary gives a tokenizer or a
// FormatError; the tokens of any text decode, and streaming gives whole characters.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <heed/error.hpp>
#include <heed/model/tokenizer.hpp>

#include "support/gguf_builder.hpp"

namespace {

/// Takes the input apart; zeros once it is used up.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  unsigned byte() { return position_ < size_ ? data_[position_++] : 0; }
  std::string text(std::size_t longest) {
    const std::size_t length = std::min(byte() % (longest + 1), size_ - position_);
    std::string out(reinterpret_cast<const char*>(data_ + position_), length);
    position_ += length;
    return out;
  }
  std::string rest() { return {reinterpret_cast<const char*>(data_ + position_), size_ - position_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_, position_ = 0;
};

std::vector<std::byte> make_file(Input& input) {
  constexpr const char* kSplitters[] = {"smollm", "llama-bpe", "qwen2", "gpt-2", "default", "other"};
  const unsigned flags = input.byte();
  std::vector<std::string> texts, merges;
  std::vector<std::int32_t> kinds;
  std::vector<float> scores;
  for (unsigned i = 0, count = input.byte() % 64; i < count; ++i) {
    texts.push_back(input.text(8));
    kinds.push_back(static_cast<std::int32_t>(input.byte() % 7));
    scores.push_back(static_cast<float>(input.byte()) - 128);
  }
  for (unsigned i = 0, count = texts.empty() ? 0 : input.byte() % 16; i < count; ++i) {
    const std::string& left = texts[input.byte() % texts.size()];
    const std::string& right = texts[input.byte() % texts.size()];
    merges.push_back(left + " " + right);
    if (input.byte() % 4 != 0) {  // mostly a merge that the vocabulary can hold
      texts.push_back(left + right);
      kinds.push_back(1);
      scores.push_back(0);
    }
  }
  heed::test::GgufBuilder file;
  file.string("tokenizer.ggml.model", (flags & 1) != 0 ? "gpt2" : "llama").string("tokenizer.ggml.pre", kSplitters[input.byte() % 6]);
  file.strings("tokenizer.ggml.tokens", texts).array("tokenizer.ggml.token_type", kinds).array("tokenizer.ggml.scores", scores);
  file.strings("tokenizer.ggml.merges", merges).scalar("tokenizer.ggml.add_space_prefix", (flags & 2) != 0);
  if ((flags & 4) != 0) file.scalar("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(input.byte()));
  return file.finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const heed::test::AlignedBytes bytes(make_file(input));
  try {
    const heed::model::Tokenizer tokenizer(heed::model::GgufFile::parse(bytes.span(), "fuzz"));
    const std::string text = input.rest();
    for (const auto special : {heed::model::SpecialText::kParse, heed::model::SpecialText::kPlain}) {
      const std::vector<heed::model::Token> tokens = tokenizer.encode(text, special);
      static_cast<void>(tokenizer.decode(tokens));
      heed::model::StreamDecoder stream(tokenizer);
      for (const heed::model::Token token : tokens) static_cast<void>(stream.push(token));
      static_cast<void>(stream.finish());
    }
  } catch (const heed::FormatError&) {
  }
  return 0;
}
