// SPDX-License-Identifier: Apache-2.0
// heed run: continues a text, token by token.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include <heed/model/decoder.hpp>
#include <heed/model/tokenizer.hpp>

#include "cli/commands.hpp"
#include "cli/context.hpp"
#include "cli/io.hpp"
#include "cli/prompt.hpp"
#include "cli/rope_options.hpp"

namespace heed::cli {
namespace {

using model::Token;

constexpr const char* kFooter = R"(The continuation goes to standard output as it comes, tokens per second to standard error.
Without --temperature the likeliest token is taken each time. The first token's probabilities come with the
prompt, so the line "generation" counts one token less. What a --rope-scaling does, and why: heed rope.

Examples:
  heed run models/smollm2.gguf -p "Once upon a time"
  heed run models/smollm2.gguf --chat -p "Why is the sky blue?" --temperature 0.7 --seed 1
  heed run models/smollm2.gguf --prompt-file long.txt --rope-scaling yarn --rope-factor 4
  git log -1 | heed run models/gemma3.gguf --prompt-file - --max-tokens 40 2>/dev/null)";

// Ctrl-C is looked at between pieces of the prompt; the decoder's own pieces have this length too.
constexpr std::size_t kPromptPiece = 512;

struct RunOptions {
  std::string model, system;
  TextSource source;
  std::int64_t max_tokens = 256, context = 0;
  int threads = 0;
  KvFormat kv_format = KvFormat::kFloat32;
  bool chat = false, print_ids = false, ignore_end = false;
  model::SamplingOptions sampling;
  RopeOptions rope;
};

class Stopwatch {
 public:
  [[nodiscard]] double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
};

std::vector<Token> encode_prompt(const RunOptions& options, const model::GgufFile& file, const model::Tokenizer& tokenizer) {
  std::string text = options.source.read();
  if (options.chat) {
    std::vector<model::ChatMessage> messages;
    if (!options.system.empty()) messages.push_back({"system", options.system});
    messages.push_back({"user", std::move(text)});
    text = model::chat_prompt(file, messages);
  }
  auto tokens = tokenizer.encode(text);
  if (tokens.empty()) throw std::runtime_error("the prompt is empty");
  return tokens;
}

std::int64_t checked_context(const RunOptions& options, const model::DecoderConfig& config, std::size_t prompt) {
  const std::int64_t context = chosen_context(options.context, config);
  if (static_cast<std::int64_t>(prompt) > context) {
    throw std::runtime_error(fmt::format("the prompt has {} tokens, the context holds {}", prompt, context));
  }
  return context;
}

/// One continuation and what it took.
class Generation {
 public:
  Generation(const RunOptions& options, const model::Tokenizer& tokenizer, const RopeScaling& scaling, model::Session& session)
      : options_(options), tokenizer_(tokenizer), session_(session), sampler_(options.sampling), stream_(tokenizer) {
    if (const auto* rope = std::get_if<RopeLong>(&scaling)) rereads_at_ = rope->original_length;
  }

  void run(const std::vector<Token>& prompt, std::int64_t context) {
    history_ = prompt;
    const auto logits = read_prompt();
    if (!interrupted()) generate(logits, context);
    print(options_.print_ids ? std::string("\n") : stream_.finish() + "\n");
  }

  [[nodiscard]] std::string report() const {
    const auto line = [](const char* what, std::int64_t tokens, double seconds) {
      return fmt::format("{} {} token{}, {:.1f} tokens/s\n", what, tokens, tokens == 1 ? "" : "s",
                         seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0);
    };
    std::string text = line("prompt    ", prompt_tokens_, prompt_seconds_) + line("generation", steps_, generation_seconds_);
    if (context_full_) text += fmt::format("the context of {} tokens is full\n", session_.length());
    return text;
  }

 private:
  /// Logits after the whole history, in an empty session.
  std::span<const float> read_history() {
    std::span<const float> logits;
    const std::span<const Token> all(history_);
    session_.expect(static_cast<std::int64_t>(all.size()));
    for (std::size_t at = 0; at < all.size() && !interrupted(); at += kPromptPiece) {
      logits = session_.feed(all.subspan(at, std::min(kPromptPiece, all.size() - at)));
    }
    return logits;
  }

  std::span<const float> read_prompt() {
    const Stopwatch watch;
    const auto logits = read_history();
    prompt_tokens_ = session_.length();
    prompt_seconds_ = watch.seconds();
    return logits;
  }

  /// LongRoPE changes all frequencies once, past length L. Cached keys follow by themselves, but the layers above the first remember what
  /// the short frequencies made of the text: it is read again, as Transformers does.
  std::span<const float> step(const Token& token) {
    if (session_.length() != rereads_at_) return session_.feed(std::span<const Token>(&token, 1));
    session_.truncate(0);
    return read_history();
  }

  /// The first token costs no step of its own: its logits came with the prompt.
  void generate(std::span<const float> logits, std::int64_t context) {
    const Stopwatch watch;
    for (std::int64_t i = 0; i < options_.max_tokens && !interrupted(); ++i) {
      const Token token = sampler_.sample(logits, history_);
      if (tokenizer_.is_end(token) && !options_.ignore_end) break;
      show(token, i == 0);
      history_.push_back(token);
      if (i + 1 == options_.max_tokens) break;
      context_full_ = session_.length() == context;
      if (context_full_) break;
      logits = step(token);
      ++steps_;
    }
    generation_seconds_ = watch.seconds();
  }

  void show(Token token, bool first) {
    const std::string text = options_.print_ids ? fmt::format("{}{}", first ? "" : " ", token) : stream_.push(token);
    if (!text.empty()) print(text);
  }

  const RunOptions& options_;
  const model::Tokenizer& tokenizer_;
  model::Session& session_;
  model::Sampler sampler_;
  model::StreamDecoder stream_;
  std::vector<Token> history_;
  std::int64_t prompt_tokens_ = 0, steps_ = 0;
  std::int64_t rereads_at_ = -1;  // the length at which the text is read again; -1: never
  double prompt_seconds_ = 0, generation_seconds_ = 0;
  bool context_full_ = false;
};

int run(const RunOptions& options) {
  use_threads(options.threads);
  const auto file = model::GgufFile::open(options.model);
  const model::Tokenizer tokenizer(file);
  const auto prompt = encode_prompt(options, file, tokenizer);
  const ChosenRope chosen = choose_rope(options.rope, model::read_config(file), options.context);
  const std::int64_t context = checked_context(options, model::read_config(file, chosen.rope), prompt.size());
  note(chosen.note);
  const model::Decoder decoder(file, chosen.rope);
  // The cache takes what this run can need at most, so that a short answer by a long-context model stays small.
  model::Session session(decoder, std::min(context, static_cast<std::int64_t>(prompt.size()) + options.max_tokens),
                         {.kv_format = options.kv_format});
  Generation generation(options, tokenizer, decoder.config().ropes.front().scaling, session);
  generation.run(prompt, context);
  note(generation.report());
  return interrupted() ? kInterrupted : kSuccess;
}

void add_sampling(CLI::App& command, model::SamplingOptions& sampling) {
  const std::string group = "Sampling";
  command.add_option("--temperature", sampling.temperature, "0: always the likeliest token; higher: more varied (default: 0)")
      ->check(CLI::Range(0.0, 1000.0))
      ->type_name("T")
      ->group(group);
  command.add_option("--seed", sampling.seed, "The same seed gives the same text (default: 0)")->type_name("S")->group(group);
  command.add_option("--top-k", sampling.top_k, "Only the K likeliest tokens (default: 0, all)")
      ->check(CLI::Range(std::int64_t{0}, kMostTokens))
      ->type_name("K")
      ->group(group);
  command.add_option("--top-p", sampling.top_p, "Only the likeliest tokens that make up this share (default: 1, all)")
      ->check(CLI::Range(1e-9, 1.0))
      ->type_name("P")
      ->group(group);
  command
      .add_option("--min-p", sampling.min_p, "Only tokens with at least this share of the likeliest one's probability (default: 0, all)")
      ->check(CLI::Range(0.0, 1.0))
      ->type_name("P")
      ->group(group);
  command.add_option("--repeat-penalty", sampling.repetition_penalty, "Above 1: makes recent tokens less likely (default: 1)")
      ->check(CLI::Range(1e-3, 1e3))
      ->type_name("R")
      ->group(group);
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  const auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Continue a text, or answer it");
  command->footer(kFooter);
  command->add_option("model", options->model, "GGUF file")->required()->type_name("MODEL");
  add_text_source(*command, options->source, "--prompt-file");
  command->add_option("--max-tokens", options->max_tokens, "Stop after this many tokens (default: 256)")
      ->check(CLI::Range(std::int64_t{1}, kMostTokens))
      ->type_name("N");
  command->add_option("--context", options->context, "Most tokens of prompt and continuation together (default: the model's)")
      ->check(CLI::Range(std::int64_t{1}, kMostTokens))
      ->type_name("N");
  CLI::Option* chat = command->add_flag("--chat", options->chat, "Put the prompt into the model's chat template, as the user's message");
  command->add_option("--system", options->system, "The system message, with --chat")->needs(chat)->type_name("TEXT");
  command->add_flag("--print-ids", options->print_ids, "Print the ids of the generated tokens in place of their text");
  command->add_flag("--ignore-end", options->ignore_end, "Go on after the model's end token");
  add_kv_type(*command, options->kv_format);
  add_threads(*command, options->threads);
  add_sampling(*command, options->sampling);
  add_rope_options(*command, options->rope);
  command->callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace heed::cli
