// SPDX-License-Identifier: Apache-2.0
// Expressions run one after the other, each on the pieces that the one before left: matches and the gaps between them become pieces.
#include "model/pre_splitter.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#include "base/message.hpp"
#include "model/tokenizer_utf8.hpp"

namespace heed::model {

namespace {

// The tokenizers' \s is Unicode's White_Space; PCRE2's \s has U+180E besides (10.42), so the set is spelled out.
constexpr std::string_view kWhiteSpace =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

/// \s in `expression` becomes the set above, with brackets around it outside of a class; so does \S.
std::string expand(std::string_view expression) {
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < expression.size(); ++i) {
    const std::string_view two = expression.substr(i, 2);
    if (two == "\\s" || two == "\\S") {
      if (!in_class) out += two == "\\S" ? "[^" : "[";
      out += kWhiteSpace;
      if (!in_class) out += ']';
      ++i;
      continue;
    }
    if (expression[i] == '[') in_class = true;
    if (expression[i] == ']') in_class = false;
    out += expression[i];
  }
  return out;
}

/// GPT-2 (openai/gpt-2, encoder.py). A run of blanks leaves its last one to the word that follows.
constexpr const char* kGpt2 = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
/// Llama 3 (tokenizer.json): any case, numbers of at most three digits, newlines stay with what is before them.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
/// Qwen 2 (tokenizer.json): the same with single digits.
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The expressions of one name, null-terminated.
struct Family {
  std::string_view name;
  std::array<const char*, 5> stages;
};
constexpr std::array<Family, 5> kFamilies = {{
    // Every number character alone, then GPT-2 on the rest; its look-ahead ends where the piece ends.
    {"smollm", {R"(\p{N})", kGpt2}},
    {"llama-bpe", {kLlama3}},
    {"qwen2", {kQwen2}},
    {"gpt-2", {kGpt2}},
    // What llama.cpp does for files that name no pre-splitter, and what such files were therefore made to work with.
    {"default", {R"([\p{P}$+<=>^~|]+)", kGpt2, R"(\p{N}+)", "[0-9][0-9][0-9]"}},
}};

const Family* find_family(std::string_view name) noexcept {
  for (const Family& family : kFamilies) {
    if (family.name == name) return &family;
  }
  return nullptr;
}

struct FreeCode {
  void operator()(pcre2_code* code) const noexcept { pcre2_code_free(code); }
};
struct FreeMatch {
  void operator()(pcre2_match_data* data) const noexcept { pcre2_match_data_free(data); }
};
struct FreeContext {
  void operator()(pcre2_match_context* context) const noexcept { pcre2_match_context_free(context); }
};
using Code = std::unique_ptr<pcre2_code, FreeCode>;
using MatchData = std::unique_ptr<pcre2_match_data, FreeMatch>;
using MatchContext = std::unique_ptr<pcre2_match_context, FreeContext>;

std::runtime_error pcre2_error(const char* what, int code) {
  std::array<PCRE2_UCHAR8, 256> message{};
  pcre2_get_error_message(code, message.data(), message.size());
  return std::runtime_error(std::string("PreSplitter: ") + what + ": " + reinterpret_cast<const char*>(message.data()));
}

Code compile(const std::string& expression) {
  int error = 0;
  std::size_t offset = 0;
  Code code(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(), PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr));
  if (!code) throw pcre2_error("pcre2_compile", error);
  // Without the just-in-time compiler the interpreter matches the same, slower: a failure here is not one.
  static_cast<void>(pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE));
  return code;
}

/// The same text with every byte that is not UTF-8 replaced by one that is a symbol too, so that offsets stay; empty when there is none.
std::string without_invalid_bytes(std::string_view text) {
  constexpr char kSymbol = '\x7F';  // no expression names it
  std::string clean;
  for (std::size_t i = 0; i < text.size();) {
    const Utf8Step step = utf8_step(text, i);
    if (step.kind != Utf8Kind::kCharacter) {
      if (clean.empty()) clean = text;
      std::fill_n(clean.begin() + static_cast<std::ptrdiff_t>(i), step.length, kSymbol);
    }
    i += step.length;
  }
  return clean;
}

/// Half-open range of bytes.
struct Range {
  std::size_t begin, end;
};

/// Appends the pieces that one expression makes of `range`.
void split_range(const pcre2_code* code, pcre2_match_data* data, pcre2_match_context* context, std::string_view text, Range range,
                 std::vector<Range>& pieces) {
  const std::string_view subject = text.substr(range.begin, range.end - range.begin);  // so that look-ahead ends with the piece
  const std::size_t* found = pcre2_get_ovector_pointer(data);
  std::size_t position = 0;
  while (position < subject.size()) {
    const int result =
        pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(subject.data()), subject.size(), position, PCRE2_NO_UTF_CHECK, data, context);
    if (result == PCRE2_ERROR_NOMATCH) break;
    if (result == PCRE2_ERROR_NOMEMORY) throw std::bad_alloc();
    if (result < 0) throw pcre2_error("pcre2_match", result);
    if (found[0] > position) pieces.push_back({range.begin + position, range.begin + found[0]});
    pieces.push_back({range.begin + found[0], range.begin + found[1]});
    position = found[1];
  }
  if (position < subject.size()) pieces.push_back({range.begin + position, range.end});
}

}  // namespace

struct PreSplitter::State {
  std::vector<Code> stages;
};

PreSplitter::PreSplitter(std::string_view name) {
  auto state = std::make_unique<State>();
  const Family* family = find_family(name);
  if (family == nullptr) base::throw_invalid("PreSplitter", "name", std::string(supported_names()), std::string(name));
  for (const char* expression : family->stages) {
    if (expression != nullptr) state->stages.push_back(compile(expand(expression)));
  }
  state_ = std::move(state);
}
PreSplitter::PreSplitter(PreSplitter&&) noexcept = default;
PreSplitter& PreSplitter::operator=(PreSplitter&&) noexcept = default;
PreSplitter::~PreSplitter() = default;

bool PreSplitter::supports(std::string_view name) noexcept { return find_family(name) != nullptr; }
std::string_view PreSplitter::supported_names() noexcept { return "smollm, llama-bpe, qwen2, gpt-2 or default"; }

std::vector<std::string_view> PreSplitter::split(std::string_view text) const {
  const std::string clean = without_invalid_bytes(text);
  const std::string_view subject = clean.empty() ? text : std::string_view(clean);
  const MatchData data(pcre2_match_data_create(1, nullptr));
  const MatchContext context(pcre2_match_context_create(nullptr));
  if (!data || !context) throw std::bad_alloc();
  // The expressions backtrack at most once over a run; the limit would stop them in runs of ten million blanks.
  pcre2_set_match_limit(context.get(), std::numeric_limits<std::uint32_t>::max());

  std::vector<Range> ranges, next;
  if (!subject.empty()) ranges.push_back({0, subject.size()});
  for (const Code& stage : state_->stages) {
    next.clear();
    for (const Range& range : ranges) split_range(stage.get(), data.get(), context.get(), subject, range, next);
    ranges.swap(next);
  }
  std::vector<std::string_view> pieces;
  pieces.reserve(ranges.size());
  for (const Range& range : ranges) pieces.push_back(text.substr(range.begin, range.end - range.begin));
  return pieces;
}

}  // namespace heed::model
