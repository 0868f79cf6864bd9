// SPDX-License-Identifier: Apache-2.0
// heed tokenize: the ids of a text, as the model's own tokenizer cuts it.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <heed/model/tokenizer.hpp>

#include "cli/commands.hpp"
#include "cli/io.hpp"
#include "cli/prompt.hpp"

namespace heed::cli {
namespace {

constexpr const char* kFooter = R"(Prints the token ids on one line, separated by blanks.

Examples:
  heed tokenize models/smollm2.gguf -p "Hello, world"
  heed tokenize models/gemma3.gguf --text-file /usr/share/common-licenses/BSD --json)";

struct TokenizeOptions {
  std::string model;
  TextSource source;
  bool no_special = false, no_bos = false, json = false;
};

std::string as_json(const model::Tokenizer& tokenizer, const std::vector<model::Token>& tokens) {
  nlohmann::json pieces = nlohmann::json::array();
  for (const model::Token token : tokens) pieces.push_back(tokenizer.token_text(token));
  const nlohmann::json result = {{"tokens", tokens}, {"pieces", pieces}};
  // A vocabulary may hold invalid UTF-8, JSON may not.
  return result.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

int tokenize(const TokenizeOptions& options) {
  const auto file = model::GgufFile::open(options.model);
  const model::Tokenizer tokenizer(file);
  const auto tokens = tokenizer.encode(options.source.read(), options.no_special ? model::SpecialText::kPlain : model::SpecialText::kParse,
                                       options.no_bos ? model::AddBos::kNo : model::AddBos::kAsFileSays);
  print(options.json ? as_json(tokenizer, tokens) : fmt::format("{}\n", fmt::join(tokens, " ")));
  return kSuccess;
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  const auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand("tokenize", "Token ids of a text");
  command->footer(kFooter);
  command->add_option("model", options->model, "GGUF file")->required()->type_name("MODEL");
  add_text_source(*command, options->source, "--text-file");
  command->add_flag("--no-special", options->no_special,
                    "Take names of control tokens in the text, such as <|im_start|>, as plain characters");
  command->add_flag("--no-bos", options->no_bos, "Leave out the begin-of-sequence token that the model asks for");
  command->add_flag("--json", options->json, "Print {\"tokens\": [ids], \"pieces\": [vocabulary texts]}");
  command->callback([options, &action] { action = [options] { return tokenize(*options); }; });
}

}  // namespace heed::cli
