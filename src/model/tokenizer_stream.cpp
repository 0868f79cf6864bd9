// SPDX-License-Identifier: Apache-2.0
// StreamDecoder: bytes arrive token by token, characters leave whole.
#include <heed/model/tokenizer.hpp>

#include "model/tokenizer_utf8.hpp"

namespace heed::model {

namespace {
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
}  // namespace

std::string StreamDecoder::push(Token token) {
  pending_ += tokenizer_->token_bytes(token);
  std::string text;
  std::size_t position = 0;
  while (position < pending_.size()) {
    const Utf8Step step = utf8_step(pending_, position);
    if (step.kind == Utf8Kind::kUnfinished) break;
    text += step.kind == Utf8Kind::kCharacter ? std::string_view(pending_).substr(position, step.length) : kReplacement;
    position += step.length;
  }
  pending_.erase(0, position);
  return text;
}

std::string StreamDecoder::finish() {
  const std::string text(pending_.empty() ? std::string_view() : kReplacement);
  pending_.clear();
  return text;
}

}  // namespace heed::model
