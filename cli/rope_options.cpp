// SPDX-License-Identifier: Apache-2.0
#include "cli/rope_options.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/context.hpp"
#include "cli/io.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

constexpr double kMostFactor = 1e6;

/// Which modes an option belongs to.
struct Membership {
  const char* option;
  std::vector<std::string> modes;
};

const std::vector<Membership>& memberships() {
  static const std::vector<Membership> kAll = {
      {"--rope-factor", {"linear", "ntk", "dynamic", "yarn", "longrope", "llama3"}},
      {"--rope-original-context", {"linear", "ntk", "dynamic", "yarn", "longrope", "llama3"}},
      {"--yarn-beta-fast", {"yarn"}},
      {"--yarn-beta-slow", {"yarn"}},
      {"--yarn-attention-factor", {"yarn"}},
      {"--longrope-factors", {"longrope"}},
      {"--longrope-attention-factor", {"longrope"}},
      {"--llama3-low-freq", {"llama3"}},
      {"--llama3-high-freq", {"llama3"}},
  };
  return kAll;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i) text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
  return text;
}

void check_usage(const CLI::App& command) {
  const std::string mode = command.count("--rope-scaling") > 0 ? command["--rope-scaling"]->as<std::string>() : "";
  for (const auto& [option, modes] : memberships()) {
    if (command.count(option) == 0 || std::find(modes.begin(), modes.end(), mode) != modes.end()) continue;
    if (mode.empty()) throw CLI::ValidationError(fmt::format("{} needs --rope-scaling {}", option, joined(modes)));
    throw CLI::ValidationError(fmt::format("{} belongs to --rope-scaling {}, not to --rope-scaling {}", option, joined(modes), mode));
  }
  const char* needed = mode == "longrope" ? "--longrope-factors" : "--rope-factor";
  if (!mode.empty() && mode != "none" && command.count(needed) == 0) {
    throw CLI::ValidationError(fmt::format("--rope-scaling {} needs {}", mode, needed));
  }
}

/// The trained length as far as a file's own scaling tells it.
std::int64_t original_length(const model::DecoderConfig& file) {
  const RopeScaling& scaling = file.ropes.front().scaling;
  if (const auto* yarn = std::get_if<RopeYarn>(&scaling)) return yarn->original_length;
  if (const auto* rope = std::get_if<RopeLong>(&scaling)) return rope->original_length;
  if (const auto* linear = std::get_if<RopeLinear>(&scaling)) {
    return std::max<std::int64_t>(1, std::llround(static_cast<double>(file.context_length) / std::max(1.0, linear->factor)));
  }
  return file.context_length;
}

std::vector<double> factor_list(const json& lists, const std::string& path, const char* key) {
  const auto found = lists.find(key);
  if (found == lists.end() || !found->is_array()) throw std::runtime_error(fmt::format("{}: expected a list \"{}\"", path, key));
  std::vector<double> values;
  for (const json& value : *found) {
    if (!value.is_number()) throw std::runtime_error(fmt::format("{}: \"{}\" holds something that is no number", path, key));
    values.push_back(value.get<double>());
  }
  return values;
}

/// {"short_factor": [...], "long_factor": [...]}, d/2 numbers each, named as in a Hugging Face config.
RopeLong read_factors(const std::string& path) {
  const json lists = json::parse(read_text(path), nullptr, false);
  if (!lists.is_object()) throw std::runtime_error(path + ": expected a JSON object with the lists \"short_factor\" and \"long_factor\"");
  for (const auto& item : lists.items()) {
    if (item.key() == "short_factor" || item.key() == "long_factor") continue;
    throw std::runtime_error(
        fmt::format("{}: unknown key \"{}\", only \"short_factor\" and \"long_factor\" belong here", path, item.key()));
  }
  return {.short_factors = factor_list(lists, path, "short_factor"), .long_factors = factor_list(lists, path, "long_factor")};
}

RopeScaling long_scaling(const RopeOptions& options, const model::DecoderConfig& file, std::int64_t trained) {
  RopeLong rope = read_factors(options.factors_file);
  const auto lists = static_cast<std::size_t>(file.ropes.front().rotary_dim / 2);
  for (const auto& [key, list] : {std::pair("short_factor", &rope.short_factors), std::pair("long_factor", &rope.long_factors)}) {
    if (list->size() == lists) continue;
    throw std::runtime_error(
        fmt::format("{}: \"{}\" has {} numbers, this model's rotation has {} pairs", options.factors_file, key, list->size(), lists));
  }
  rope.factor = options.factor.value_or(std::max(1.0, static_cast<double>(file.context_length) / static_cast<double>(trained)));
  rope.original_length = trained;
  rope.attention_factor = options.long_attention_factor;
  return rope;
}

RopeScaling scaling_of(const RopeOptions& options, const model::DecoderConfig& file) {
  const std::int64_t trained = trained_context(options, file);
  const double factor = options.factor.value_or(1.0);
  if (options.scaling == "linear") return RopeLinear{factor};
  if (options.scaling == "ntk") return RopeNtk{factor};
  if (options.scaling == "dynamic") return RopeDynamic{factor, trained};
  if (options.scaling == "yarn") {
    RopeYarn yarn{.factor = factor, .original_length = trained, .attention_factor = options.yarn_attention_factor};
    yarn.beta_fast = options.beta_fast.value_or(yarn.beta_fast);
    yarn.beta_slow = options.beta_slow.value_or(yarn.beta_slow);
    return yarn;
  }
  if (options.scaling == "longrope") return long_scaling(options, file, trained);
  if (options.scaling == "llama3") {
    RopeLlama3 llama{.factor = factor, .original_length = trained};
    llama.low_freq_factor = options.low_freq.value_or(llama.low_freq_factor);
    llama.high_freq_factor = options.high_freq.value_or(llama.high_freq_factor);
    return llama;
  }
  return {};
}

/// What the scaling is made for: never less than the file says.
std::int64_t scaled_context(const RopeOptions& options, const model::DecoderConfig& file) {
  const double tokens = options.factor.value_or(1.0) * static_cast<double>(trained_context(options, file));
  return std::max(file.context_length, static_cast<std::int64_t>(std::min(tokens, static_cast<double>(kMostTokens))));
}

std::string note_of(const RopeOptions& options, const model::DecoderConfig& file, std::int64_t asked_context) {
  std::string text;
  const std::string before = scaling_name(file.ropes.front().scaling);
  const std::string factor = options.factor ? fmt::format(", factor {:g}", *options.factor) : "";
  if (before != "none") text += fmt::format("RoPE: {}{} takes the place of the file's own scaling ({})\n", options.scaling, factor, before);
  const std::int64_t scaled = scaled_context(options, file);
  if (scaled > file.context_length) {
    text += fmt::format("RoPE: {}{}: the context is {} tokens, the file's is {}\n", options.scaling, factor, grouped(scaled),
                        grouped(file.context_length));
  }
  if (asked_context > scaled) {
    const std::string what = options.scaling == "none" ? "the model without scaling" : options.scaling + factor;
    text += fmt::format("RoPE: --context asks for {} tokens, {} is made for {}\n", grouped(asked_context), what, grouped(scaled));
  }
  return text;
}

/// CLI::Range lets NaN through.
CLI::Validator number_in(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return good ? std::string() : fmt::format("expected a number from {:g} to {:g}, got {}", least, most, text);
      },
      fmt::format("FLOAT in [{:g} - {:g}]", least, most));
}

void add_number(CLI::App& command, const char* name, std::optional<double>& value, double least, const char* help) {
  command.add_option(name, value, help)->check(number_in(least, kMostFactor))->type_name("X")->group("RoPE");
}

}  // namespace

void add_rope_options(CLI::App& command, RopeOptions& options) {
  const std::string group = "RoPE";
  command
      .add_option("--rope-scaling", options.scaling,
                  "How positions past the trained length turn, in place of what the file says: none, linear, ntk, dynamic, yarn, longrope "
                  "or llama3")
      ->check(CLI::IsMember({"none", "linear", "ntk", "dynamic", "yarn", "longrope", "llama3"}))
      ->type_name("MODE")
      ->group(group);
  add_number(command, "--rope-factor,--rope-scale", options.factor, 1.0, "How many times longer than trained");
  command.add_option("--rope-base,--rope-freq-base", options.base, "The base of the frequencies (default: the file's)")
      ->check(number_in(1.0 + 1e-9, 1e15))
      ->type_name("B")
      ->group(group);
  command
      .add_option("--rope-original-context,--yarn-orig-ctx", options.original_context, "The trained length (default: what the file says)")
      ->check(CLI::Range(std::int64_t{2}, kMostTokens))
      ->type_name("N")
      ->group(group);
  add_number(command, "--yarn-beta-fast", options.beta_fast, 1e-6,
             "Pairs that turn this often within the trained length stay (default: 32)");
  add_number(command, "--yarn-beta-slow", options.beta_slow, 1e-6, "Pairs that turn less often are divided by the factor (default: 1)");
  add_number(command, "--yarn-attention-factor", options.yarn_attention_factor, 1e-6,
             "Final magnitude of cosines and sines (default: 1 + 0.1 ln factor)");
  command
      .add_option("--longrope-factors", options.factors_file, R"(JSON: {"short_factor": [...], "long_factor": [...]}, one number per pair)")
      ->type_name("FILE")
      ->group(group);
  add_number(command, "--longrope-attention-factor", options.long_attention_factor, 1e-6,
             "Final magnitude of cosines and sines (default: sqrt(1 + ln factor / ln trained length))");
  add_number(command, "--llama3-low-freq", options.low_freq, 1e-6, "Pairs that turn less often are divided by the factor (default: 1)");
  add_number(command, "--llama3-high-freq", options.high_freq, 1e-6, "Pairs that turn more often stay (default: 4)");
  command.parse_complete_callback([&command] { check_usage(command); });
}

ChosenRope choose_rope(const RopeOptions& options, const model::DecoderConfig& file, std::int64_t asked_context) {
  ChosenRope chosen;
  chosen.rope.base = options.base;
  if (options.scaling.empty()) return chosen;
  chosen.rope.scaling = scaling_of(options, file);
  chosen.rope.context_length = std::max(scaled_context(options, file), asked_context);
  chosen.note = note_of(options, file, asked_context);
  return chosen;
}

std::int64_t trained_context(const RopeOptions& options, const model::DecoderConfig& file) {
  return options.original_context.value_or(original_length(file));
}

std::string scaling_name(const RopeScaling& scaling) {
  // In the order of the variant.
  static constexpr const char* kNames[] = {"none", "linear", "ntk", "dynamic", "yarn", "longrope", "llama3", "proportional", "table"};
  static_assert(std::size(kNames) == std::variant_size_v<RopeScaling>);
  return kNames[scaling.index()];
}

}  // namespace heed::cli
