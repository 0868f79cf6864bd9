// SPDX-License-Identifier: Apache-2.0
#include "model/spm.hpp"

#include <algorithm>

#include "model/tokenizer_utf8.hpp"

namespace heed::model {

namespace {

int hex_digit(char c) noexcept {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

bool mark_at(std::string_view text, std::size_t position) noexcept { return text.substr(position, kBlankMark.size()) == kBlankMark; }

std::string mark_blanks(std::string_view text) {
  std::string marked;
  marked.reserve(text.size() + text.size() / 2);
  for (const char c : text) {
    if (c == ' ') {
      marked += kBlankMark;
    } else {
      marked += c;
    }
  }
  return marked;
}

}  // namespace

int SpmEncoder::byte_of(std::string_view text) noexcept {
  if (text.size() != 6 || text.substr(0, 3) != "<0x" || text[5] != '>') return -1;
  const int high = hex_digit(text[3]);
  const int low = hex_digit(text[4]);
  return high >= 0 && low >= 0 ? high * 16 + low : -1;
}

std::string SpmEncoder::bytes_of(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const bool blank = mark_at(text, i);
    bytes += blank ? ' ' : text[i];
    i += blank ? kBlankMark.size() : 1;
  }
  return bytes;
}

SpmEncoder::SpmEncoder(const GgufFile& file, const Vocabulary& vocabulary)
    : vocabulary_(&vocabulary), scores_(read_scores(file, vocabulary.size())),
      adds_blank_prefix_(file.find_bool("tokenizer.ggml.add_space_prefix").value_or(true)) {
  byte_tokens_.fill(kNoToken);
  for (Token token = 0; token < vocabulary.size(); ++token) {
    const std::string& text = vocabulary.texts[static_cast<std::size_t>(token)];
    const int byte = byte_of(text);
    if (vocabulary.kind(token) == TokenKind::kByte && byte >= 0) byte_tokens_[static_cast<std::size_t>(byte)] = token;
    if (!vocabulary.is_text(token)) continue;
    longest_ = std::max(longest_, text.size());
    note_inner_marks(text);
  }
}

void SpmEncoder::note_inner_marks(std::string_view text) {
  for (std::size_t i = text.find(kBlankMark, 1); i != std::string_view::npos; i = text.find(kBlankMark, i + 1)) {
    joins_mark_[static_cast<unsigned char>(text[i - 1])] = true;
  }
}

/// A U+2581 after a byte that no token holds before it can never merge to the left: the text before and after merge apart. Chunks of a
/// word each keep the heap small; Gemma 3 has one token, ">U+2581</", that goes over such a place.
bool SpmEncoder::is_chunk_start(std::string_view marked, std::size_t position) const noexcept {
  return position > 0 && mark_at(marked, position) && !joins_mark_[static_cast<unsigned char>(marked[position - 1])];
}

void SpmEncoder::encode(std::string_view text, std::vector<Token>& tokens, WordCache& cache) const {
  const std::string marked = mark_blanks(text);
  Merger<double> merger;
  std::size_t begin = 0;
  for (std::size_t i = 1; i <= marked.size(); ++i) {
    if (i < marked.size() && !is_chunk_start(marked, i)) continue;
    const std::string_view chunk = std::string_view(marked).substr(begin, i - begin);
    cache.append(chunk, tokens, [&] { encode_chunk(chunk, tokens, merger); });
    begin = i;
  }
}

Token SpmEncoder::find_text(std::string_view text) const {
  if (text.size() > longest_) return kNoToken;
  const Token token = vocabulary_->find(text);
  return token != kNoToken && vocabulary_->is_text(token) ? token : kNoToken;
}

/// Starts from characters; a byte that is not part of valid UTF-8 is a symbol of its own.
void SpmEncoder::encode_chunk(std::string_view chunk, std::vector<Token>& tokens, Merger<double>& merger) const {
  merger.clear();
  for (std::size_t i = 0; i < chunk.size();) {
    const Utf8Step step = utf8_step(chunk, i);
    const std::size_t size = step.kind == Utf8Kind::kCharacter ? step.length : 1;
    merger.add(static_cast<std::int64_t>(i), static_cast<std::int64_t>(size), find_text(chunk.substr(i, size)));
    i += size;
  }
  const auto text_of = [&](std::int64_t begin, std::int64_t size) {
    return chunk.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
  };
  merger.run([&](const MergeSymbol& left, const MergeSymbol& right) -> MergeResult<double> {
    const Token token = find_text(text_of(left.begin, left.size + right.size));
    return token != kNoToken ? MergeResult<double>{-scores_[static_cast<std::size_t>(token)], token} : MergeResult<double>{};
  });
  merger.for_each([&](const MergeSymbol& symbol) {
    if (symbol.token != kNoToken) return tokens.push_back(symbol.token);
    for (const char byte : text_of(symbol.begin, symbol.size)) {
      const Token token = byte_tokens_[static_cast<unsigned char>(byte)];
      if (token != kNoToken) tokens.push_back(token);
    }
  });
}

}  // namespace heed::model
