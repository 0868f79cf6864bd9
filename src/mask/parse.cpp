// SPDX-License-Identifier: Apache-2.0
// Mask::parse: recursive descent over the grammar in mask.hpp. Every error names the column where reading stopped, counted from 1.
#include <array>
#include <charconv>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <heed/error.hpp>

#include "base/message.hpp"
#include "mask/combine.hpp"
#include "mask/random_keys.hpp"

namespace heed {
namespace {

using mask::Operator;

bool is_word(char c) noexcept { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; }
bool is_digit(char c) noexcept { return c >= '0' && c <= '9'; }
bool is_space(char c) noexcept { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Mask whole() {
    Mask result = any_of(0);
    if (!at_end()) fail("'&', '|' or the end");
    return result;
  }

 private:
  struct Name {
    std::string_view name;
    Mask (Parser::*read)(int depth);
  };
  static const std::array<Name, 20> kNames;

  Mask any_of(int depth) { return chain(Operator::kOr, '|', &Parser::all_of, depth); }
  Mask all_of(int depth) { return chain(Operator::kAnd, '&', &Parser::factor, depth); }

  /// part sign part sign ...: gathered first, so that a long chain is one node and costs linear time.
  Mask chain(Operator op, char sign, Mask (Parser::*part)(int), int depth) {
    std::vector<mask::NodePointer> parts = {(this->*part)(depth).node_pointer()};
    while (take(sign)) parts.push_back((this->*part)(depth).node_pointer());
    return built([&] { return Mask(mask::combine(op, parts)); });
  }

  /// Parts that do not fit together are an error of the text as well.
  template <class Build>
  Mask built(Build build) {
    try {
      return build();
    } catch (const InvalidArgument& error) {
      base::throw_invalid("Mask::parse", "text", "parts that fit together before column " + std::to_string(column()), error.what());
    }
  }

  Mask factor(int depth) {
    if (depth >= mask::kMaxDepth) fail("a nesting of at most " + std::to_string(mask::kMaxDepth));
    if (take('~')) {
      const Mask part = factor(depth + 1);
      return built([&] { return ~part; });
    }
    if (next() == '(') return bracketed(depth);
    return named(depth);
  }

  Mask bracketed(int depth) {
    if (!take('(')) fail("'('");
    Mask result = any_of(depth + 1);
    if (!take(')')) fail("')'");
    return result;
  }

  Mask named(int depth) {
    const std::string_view word = peek_word();
    for (const Name& candidate : kNames) {
      if (candidate.name != word) continue;
      at_ += word.size();
      return (this->*candidate.read)(depth);
    }
    fail("a mask name, '~' or '('");
  }

  Mask read_none(int) { return Mask::none(); }
  Mask read_causal(int) { return Mask::causal(); }
  Mask read_window(int) {
    const std::optional<std::int64_t> left = side();
    return Mask::window(left, side());
  }
  Mask read_sliding_window(int) { return Mask::sliding_window(number(1)); }
  Mask read_prefix_lm(int) { return Mask::prefix_lm(number(0)); }
  Mask read_sink_tokens(int) { return Mask::sink_tokens(number(0)); }
  Mask read_global_tokens(int) { return Mask::global_tokens(numbers()); }
  Mask read_columns(int) { return Mask::columns(numbers()); }
  Mask read_diagonals(int) { return Mask::diagonals(numbers()); }
  Mask read_chunked(int) { return Mask::chunked(number(1)); }
  Mask read_strided(int) { return Mask::strided(number(1)); }
  Mask read_dilated(int) {
    const std::int64_t side_tokens = number(0);
    return Mask::dilated(side_tokens, number(1));
  }
  Mask read_fixed(int) {
    FixedPattern pattern = {.stride = number(1), .vertical = number(1)};
    if (is_digit(next())) pattern.rotation = number(1);
    return built([&] { return Mask::fixed(pattern); });
  }
  Mask read_axial(int) {
    const Shape grid = sizes();
    return built([&] { return Mask::axial(grid); });
  }
  Mask read_neighborhood(int) {
    NeighborhoodPattern pattern = {.grid = sizes(), .window = sizes()};
    if (is_digit(next())) pattern.dilation = sizes();
    return built([&] { return Mask::neighborhood(pattern); });
  }
  Mask read_shifted_window(int) {
    ShiftedWindowPattern pattern = {.grid = sizes(), .window = sizes()};
    if (is_digit(next())) pattern.shift = sizes();
    return built([&] { return Mask::shifted_window(pattern); });
  }
  Mask read_in_blocks(int depth) {
    const std::int64_t block = number(1);
    const Mask inner = bracketed(depth);
    return built([&] { return Mask::in_blocks(block, inner); });
  }
  Mask read_random_keys(int) {
    mask::RandomKeysPattern pattern = {.per_row = number(0), .columns = side()};
    pattern.seed = number<std::uint64_t>(0);
    if (take_word("each_head")) pattern.heads = RandomHeads::kEach;
    return mask::random_keys(pattern);
  }
  Mask read_tree(int) {
    std::vector<std::optional<std::int64_t>> parents;
    while (is_digit(next()) || next() == '*') parents.push_back(side());
    return built([&] { return Mask::tree(parents); });
  }
  Mask read_per_head(int depth) {
    std::vector<Mask> masks = {bracketed(depth)};
    while (next() == '(') masks.push_back(bracketed(depth));
    return built([&] { return Mask::per_head(std::move(masks)); });
  }

  std::optional<std::int64_t> side() {
    if (take('*')) return kUnbounded;
    if (!is_digit(next())) fail("a number or '*'");
    return number(0);
  }

  std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> result;
    while (is_digit(next())) result.push_back(number(0));
    return result;
  }

  /// "8x8x4"
  Shape sizes() {
    std::string_view word = peek_word();
    std::array<std::int64_t, kMaxRank> values{};
    std::size_t rank = 0;
    const auto bad = [&] { fail("1 to " + std::to_string(kMaxRank) + " numbers joined by 'x'"); };
    for (bool more = true; more; ++rank) {
      if (rank == values.size()) bad();
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), values[rank]);
      if (error != std::errc()) bad();
      word.remove_prefix(static_cast<std::size_t>(end - word.data()));
      more = word.substr(0, 1) == "x";
      if (more) word.remove_prefix(1);
    }
    if (!word.empty()) bad();
    at_ += peek_word().size();
    return Shape(std::span<const std::int64_t>(values.data(), rank));
  }

  template <class Number = std::int64_t>
  Number number(std::type_identity_t<Number> least) {
    const std::string_view word = peek_word();
    Number value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error == std::errc::result_out_of_range) {
      fail("a number of at most " + std::to_string(std::numeric_limits<Number>::max()));
    }
    if (error != std::errc() || end != word.data() + word.size()) fail("a number");
    if (value < least) fail("a number of at least " + std::to_string(least));
    at_ += word.size();
    return value;
  }

  void skip_space() noexcept {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
  }
  bool at_end() noexcept {
    skip_space();
    return at_ == text_.size();
  }
  /// The next character that is no space; 0 at the end.
  char next() noexcept { return at_end() ? '\0' : text_[at_]; }
  bool take(char c) noexcept {
    if (at_end() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) noexcept {
    if (peek_word() != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view peek_word() noexcept {
    skip_space();
    std::size_t end = at_;
    while (end < text_.size() && is_word(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }

  [[noreturn]] void fail(const std::string& expected) {
    base::throw_invalid("Mask::parse", "text", expected + " at column " + std::to_string(column()), found());
  }
  /// Every look-ahead has skipped the spaces by now.
  [[nodiscard]] std::size_t column() const noexcept { return at_ + 1; }
  std::string found() {
    constexpr std::size_t kMostShown = 40;
    if (at_end()) return "the end";
    const std::string_view word = peek_word();
    if (!word.empty()) return "'" + std::string(word.substr(0, kMostShown)) + (word.size() > kMostShown ? "...'" : "'");
    const char c = text_[at_];
    if (c > ' ' && c < '\x7f') return std::string("'") + c + "'";
    return "byte " + std::to_string(static_cast<unsigned char>(c));
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

constexpr std::array<Parser::Name, 20> Parser::kNames = {{
    {"none", &Parser::read_none},
    {"causal", &Parser::read_causal},
    {"window", &Parser::read_window},
    {"sliding_window", &Parser::read_sliding_window},
    {"prefix_lm", &Parser::read_prefix_lm},
    {"sink_tokens", &Parser::read_sink_tokens},
    {"global_tokens", &Parser::read_global_tokens},
    {"per_head", &Parser::read_per_head},
    {"dilated", &Parser::read_dilated},
    {"strided", &Parser::read_strided},
    {"fixed", &Parser::read_fixed},
    {"chunked", &Parser::read_chunked},
    {"axial", &Parser::read_axial},
    {"neighborhood", &Parser::read_neighborhood},
    {"shifted_window", &Parser::read_shifted_window},
    {"in_blocks", &Parser::read_in_blocks},
    {"random_keys", &Parser::read_random_keys},
    {"columns", &Parser::read_columns},
    {"diagonals", &Parser::read_diagonals},
    {"tree", &Parser::read_tree},
}};

}  // namespace

Mask Mask::parse(std::string_view text) { return Parser(text).whole(); }

}  // namespace heed
