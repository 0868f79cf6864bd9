// SPDX-License-Identifier: Apache-2.0
#include "model/bpe.hpp"

#include <algorithm>
#include <bit>

#include "model/tokenizer_utf8.hpp"

namespace heed::model {

namespace {

/// GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes for U+0100, U+0101, ... in rising order.
struct Alphabet {
  std::array<std::uint32_t, 256> to_character{};
  std::array<std::int16_t, 256 + 68> to_byte{};  ///< by code point; -1: stands for no byte

  constexpr Alphabet() {
    to_byte.fill(-1);
    std::uint32_t next = 256;
    for (std::uint32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      to_character[byte] = printable ? byte : next++;
      to_byte[to_character[byte]] = static_cast<std::int16_t>(byte);
    }
  }
};
constexpr Alphabet kAlphabet;

std::uint64_t key_of(Token left, Token right) noexcept {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) | static_cast<std::uint32_t>(right);
}

constexpr std::string_view kMerges = "tokenizer.ggml.merges";

PreSplitter make_splitter(const GgufFile& file) {
  const std::string name = read_pre_splitter_name(file);
  if (!PreSplitter::supports(name)) throw_bad_key(file, "tokenizer.ggml.pre", PreSplitter::supported_names(), '"' + name + '"');
  return PreSplitter(name);
}

}  // namespace

std::string read_pre_splitter_name(const GgufFile& file) { return file.find_string("tokenizer.ggml.pre").value_or("default"); }

// --- MergeTable

MergeTable::MergeTable(std::size_t merges) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(2 * merges, 2));
  slots_.resize(size);
  shift_ = 64 - std::countr_zero(size);
}

std::size_t MergeTable::slot_of(std::uint64_t key) const noexcept {
  return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15u) >> shift_);  // Fibonacci hashing: Knuth, TAOCP 3, section 6.4
}

void MergeTable::insert(Token left, Token right, Merge merge) {
  const std::uint64_t key = key_of(left, right);
  std::size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & (slots_.size() - 1);
  if (slots_[slot].key == kEmpty) slots_[slot] = {key, merge};
}

MergeTable::Merge MergeTable::find(Token left, Token right) const noexcept {
  const std::uint64_t key = key_of(left, right);
  for (std::size_t slot = slot_of(key); slots_[slot].key != kEmpty; slot = (slot + 1) & (slots_.size() - 1)) {
    if (slots_[slot].key == key) return slots_[slot].merge;
  }
  return {};
}

// --- BpeEncoder

BpeEncoder::BpeEncoder(const GgufFile& file, const Vocabulary& vocabulary)
    : vocabulary_(&vocabulary), splitter_(make_splitter(file)), merges_(file.require_strings(kMerges).size()),
      whole_piece_(read_pre_splitter_name(file) == "llama-bpe" ? WholePiece::kLookUp : WholePiece::kMerge) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto value = static_cast<char>(static_cast<unsigned char>(byte));
    byte_tokens_[byte] = find_whole({&value, 1});
  }
  read_merges(file);
}

/// A merge is "left right" and all of left, right and left + right are tokens. One that would make a control token is left out: the file is
/// well-formed, but plain text must not turn into a control token.
void BpeEncoder::read_merges(const GgufFile& file) {
  const std::vector<std::string>& merges = file.require_strings(kMerges);
  std::string joined;
  for (std::size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view text = merges[rank];
    const auto entry = [&] { return "entry " + std::to_string(rank) + ", \"" + merges[rank].substr(0, 80) + '"'; };
    const std::size_t space = text.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == text.size())
      throw_bad_key(file, kMerges, "two texts with a blank between", entry());
    const std::string_view left = text.substr(0, space);
    const std::string_view right = text.substr(space + 1);
    joined.assign(left).append(right);
    const Token left_token = vocabulary_->find(left);
    const Token right_token = vocabulary_->find(right);
    const Token token = vocabulary_->find(joined);
    if (left_token == kNoToken || right_token == kNoToken || token == kNoToken) {
      throw_bad_key(file, kMerges, "texts that are tokens, joined too", entry());
    }
    if (vocabulary_->is_text(token)) merges_.insert(left_token, right_token, {static_cast<std::uint32_t>(rank), token});
  }
}

std::string BpeEncoder::bytes_of(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    const std::string_view character = text.substr(i, step.length);
    const std::uint32_t value = step.kind == Utf8Kind::kCharacter ? utf8_value(character) : ~0u;
    const int byte = value < kAlphabet.to_byte.size() ? kAlphabet.to_byte[value] : -1;
    if (byte >= 0) {
      bytes.push_back(static_cast<char>(static_cast<unsigned char>(byte)));
    } else {
      bytes.append(character);
    }
    i += step.length;
  }
  return bytes;
}

void BpeEncoder::encode(std::string_view text, std::vector<Token>& tokens, WordCache& cache) const {
  Merger<std::uint32_t> merger;
  for (const std::string_view piece : splitter_.split(text)) {
    cache.append(piece, tokens, [&] { encode_piece(piece, tokens, merger); });
  }
}

Token BpeEncoder::find_whole(std::string_view piece) const {
  std::string text;
  for (const char byte : piece) append_utf8(text, kAlphabet.to_character[static_cast<unsigned char>(byte)]);
  const Token token = vocabulary_->find(text);
  return token != kNoToken && vocabulary_->is_text(token) ? token : kNoToken;
}

void BpeEncoder::encode_piece(std::string_view piece, std::vector<Token>& tokens, Merger<std::uint32_t>& merger) const {
  const Token whole = whole_piece_ == WholePiece::kLookUp ? find_whole(piece) : kNoToken;
  if (whole != kNoToken) {
    tokens.push_back(whole);
    return;
  }
  merger.clear();
  for (std::size_t i = 0; i < piece.size(); ++i) {
    merger.add(static_cast<std::int64_t>(i), 1, byte_tokens_[static_cast<unsigned char>(piece[i])]);
  }
  merger.run([&](const MergeSymbol& left, const MergeSymbol& right) -> MergeResult<std::uint32_t> {
    if (left.token == kNoToken || right.token == kNoToken) return {};
    return merges_.find(left.token, right.token);
  });
  // A byte that the vocabulary lacks never merges and is dropped here.
  merger.for_each([&](const MergeSymbol& symbol) {
    if (symbol.token != kNoToken) tokens.push_back(symbol.token);
  });
}

}  // namespace heed::model
