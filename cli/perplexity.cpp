// SPDX-License-Identifier: Apache-2.0
// heed perplexity: how surprised a model is by a text.
//
// The text's tokens are cut into windows that follow each other without overlap and start afresh: C tokens each for a context of C; where
// the model wants a begin-of-sequence token, every window gets it and holds C - 1 tokens of the text. Every token of a window but its first
// is predicted from all before it, so the text's own first token counts exactly where a begin token precedes it. NLL is the mean over all
// predicted tokens of -log p, in float64 from float32 logits.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/model/decoder.hpp>
#include <heed/model/tokenizer.hpp>

#include "cli/commands.hpp"
#include "cli/context.hpp"
#include "cli/io.hpp"
#include "cli/rope_options.hpp"

namespace heed::cli {
namespace {

using model::Token;

constexpr const char* kFooter = R"(The text is cut into windows of the context length, each read afresh: with a begin-of-sequence token
where the model has one. Every token of a window but the first is predicted from those before it. The
last line on standard output is `nll X ppl Y tokens N`: the mean of -log p over N predictions, and its exponential.

Examples:
  heed perplexity models/smollm2.gguf --text-file /usr/share/common-licenses/BSD
  heed perplexity models/gemma3.gguf --text-file book.txt --context 2048 --max-tokens 20000 --json
  heed perplexity models/smollm2.gguf --text-file book.txt --rope-scaling yarn --rope-factor 2)";

constexpr std::size_t kPieceTokens = 256;  // between two lines of progress and looks at Ctrl-C

struct PerplexityOptions {
  std::string model, text_file;
  std::int64_t max_tokens = 0, context = 0;
  int threads = 0;
  KvFormat kv_format = KvFormat::kFloat32;
  bool json = false;
  RopeOptions rope;
};

using Window = std::vector<Token>;

std::vector<Window> cut_windows(std::span<const Token> text, std::span<const Token> begin, std::int64_t context) {
  const std::size_t room = static_cast<std::size_t>(context) - begin.size();
  std::vector<Window> windows;
  for (std::size_t at = 0; at < text.size(); at += room) {
    const auto part = text.subspan(at, std::min(room, text.size() - at));
    Window window(begin.begin(), begin.end());
    window.insert(window.end(), part.begin(), part.end());
    if (window.size() >= 2) windows.push_back(std::move(window));
  }
  return windows;
}

double negative_log_likelihood(std::span<const float> logits, Token target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<std::size_t>(target)]);
}

struct Score {
  double sum = 0;
  std::int64_t tokens = 0;
  [[nodiscard]] double nll() const { return sum / static_cast<double>(tokens); }
};

/// Adds a window to the score; the last token is a target only. False when interrupted.
bool add_window(model::Session& session, const Window& window, std::int64_t total, Score& score) {
  session.truncate(0);
  const std::span<const Token> inputs(window.data(), window.size() - 1);
  session.expect(static_cast<std::int64_t>(inputs.size()));
  for (std::size_t at = 0; at < inputs.size(); at += kPieceTokens) {
    if (interrupted()) return false;
    session.feed_all(inputs.subspan(at, std::min(kPieceTokens, inputs.size() - at)),
                     [&](std::int64_t index, std::span<const float> logits) {
                       score.sum += negative_log_likelihood(logits, window[at + static_cast<std::size_t>(index) + 1]);
                       ++score.tokens;
                     });
    note(fmt::format("{}/{} tokens, nll {:.4f}\n", score.tokens, total, score.nll()));
  }
  return true;
}

std::int64_t predictions(const std::vector<Window>& windows) {
  std::int64_t count = 0;
  for (const Window& window : windows) count += static_cast<std::int64_t>(window.size()) - 1;
  return count;
}

std::vector<Window> read_windows(const PerplexityOptions& options, const model::Tokenizer& tokenizer, std::int64_t context) {
  auto text = tokenizer.encode(read_text(options.text_file), model::SpecialText::kPlain, model::AddBos::kNo);
  if (options.max_tokens > 0) text.resize(std::min(text.size(), static_cast<std::size_t>(options.max_tokens)));
  const auto begin = tokenizer.encode("");  // the begin token where the model asks for one
  if (static_cast<std::size_t>(context) <= begin.size()) throw std::runtime_error("the model's context has no room for text");
  auto windows = cut_windows(text, begin, context);
  if (windows.empty()) {
    throw std::runtime_error(fmt::format("the text has {} tokens, at least {} are needed to predict one", text.size(), 2 - begin.size()));
  }
  return windows;
}

int perplexity(const PerplexityOptions& options) {
  use_threads(options.threads);
  const auto file = model::GgufFile::open(options.model);
  const model::Tokenizer tokenizer(file);
  const ChosenRope chosen = choose_rope(options.rope, model::read_config(file), options.context);
  const model::DecoderConfig config = model::read_config(file, chosen.rope);
  if (tokenizer.vocabulary_size() > config.vocabulary) {  // a target would have no logit
    throw std::runtime_error(
        fmt::format("the tokenizer knows {} tokens, the model predicts {}", tokenizer.vocabulary_size(), config.vocabulary));
  }
  const std::int64_t context = chosen_context(options.context, config);
  const auto windows = read_windows(options, tokenizer, context);
  note(chosen.note);
  const model::Decoder decoder(file, chosen.rope);
  // The first window is the longest.
  model::Session session(decoder, static_cast<std::int64_t>(windows.front().size()), {.kv_format = options.kv_format});
  Score score;
  for (const Window& window : windows) {
    if (!add_window(session, window, predictions(windows), score)) return kInterrupted;
  }
  const double nll = score.nll();
  if (options.json) {
    const nlohmann::json result = {
        {"nll", nll}, {"ppl", std::exp(nll)}, {"tokens", score.tokens}, {"windows", windows.size()}, {"context", context}};
    print(result.dump() + "\n");
  } else {
    print(fmt::format("nll {:.6f} ppl {:.4f} tokens {}\n", nll, std::exp(nll), score.tokens));
  }
  return kSuccess;
}

}  // namespace

void add_perplexity(CLI::App& app, Action& action) {
  const auto options = std::make_shared<PerplexityOptions>();
  CLI::App* command = app.add_subcommand("perplexity", "How surprised a model is by a text");
  command->footer(kFooter);
  command->add_option("model", options->model, "GGUF file")->required()->type_name("MODEL");
  command->add_option("--text-file", options->text_file, "The text, - for standard input")->required()->type_name("FILE");
  command->add_option("--max-tokens", options->max_tokens, "Read only the first N tokens of the text (default: all)")
      ->check(CLI::Range(std::int64_t{1}, kMostTokens))
      ->type_name("N");
  command->add_option("--context", options->context, "Tokens of a window (default: the model's context)")
      ->check(CLI::Range(std::int64_t{2}, kMostTokens))
      ->type_name("N");
  command->add_flag("--json", options->json, "Print JSON");
  add_kv_type(*command, options->kv_format);
  add_threads(*command, options->threads);
  add_rope_options(*command, options->rope);
  command->callback([options, &action] { action = [options] { return perplexity(*options); }; });
}

}  // namespace heed::cli
