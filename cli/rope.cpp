// SPDX-License-Identifier: Apache-2.0
// heed rope: how a model's positions turn, what a scaling rule does to them, and why. A command of its own and no option of `heed run`,
// as it needs no prompt, takes no weights and leaves standard output to the table.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/model/decoder.hpp>

#include "cli/commands.hpp"
#include "cli/context.hpp"
#include "cli/io.hpp"
#include "cli/rope_bands.hpp"
#include "cli/rope_options.hpp"
#include "cli/tables.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter =
    R"(Without RoPE options: the file's own rotation. A pair of elements turns by one angle per token; its wavelength
is the distance after which it is back, its turns are counted within the trained length. Divided by 4 means
that token 400 turns a pair to where token 100 did in training.

Examples:
  heed rope models/smollm2.gguf
  heed rope models/smollm2.gguf --rope-scaling yarn --rope-factor 4
  heed rope models/gemma3.gguf --rope-scaling dynamic --rope-factor 2 --context 65536 --json)";

struct Options {
  std::string model;
  std::int64_t context = 0;
  bool json = false;
  RopeOptions rope;
};

/// One of the model's rotations.
struct Rotation {
  const RopeConfig& config;
  std::int64_t layers;
  std::optional<std::int64_t> window_tokens;  // where each of these layers has one
  std::int64_t trained_length;
  RopeExplanation explanation;
};

struct Report {
  model::DecoderConfig config;
  std::int64_t context;
  std::vector<Rotation> rotations;
};

/// The rotation of config.ropes[index].
Rotation rotation_of(const Report& report, std::size_t index, std::int64_t trained_length) {
  const RopeConfig& rope = report.config.ropes[index];
  Rotation rotation{rope, 0, 0, trained_length, explain_rope(rope, report.context, trained_length)};
  for (const model::LayerConfig& layer : report.config.layer) {
    if (layer.rope != index) continue;
    ++rotation.layers;
    rotation.window_tokens = layer.window_tokens && rotation.window_tokens
                                 ? std::optional(std::max(*layer.window_tokens, *rotation.window_tokens))
                                 : std::nullopt;
  }
  return rotation;
}

std::string window_text(const Rotation& rotation) {
  if (!rotation.window_tokens) return "";
  return fmt::format(", of which these layers see the last {}: larger distances do not occur", grouped(*rotation.window_tokens));
}

/// "6.28 to 113", or one number.
std::string range(double first, double last) {
  const auto text = [](double value) {
    if (std::isinf(value)) return std::string("-");
    return value >= 1000.0 ? grouped(std::llround(value)) : fmt::format("{:.3g}", value);
  };
  return text(first) == text(last) ? text(first) : text(first) + " to " + text(last);
}

std::string band_pairs(const RopeBand& band) {
  return band.first == band.last ? fmt::format("{}", band.first) : fmt::format("{}-{}", band.first, band.last);
}

std::string bands_text(const Rotation& rotation) {
  std::vector<Row> rows = {{"pairs", "wavelength", "turns", "treatment", "divided by", "why"}};
  const std::vector<RopePair>& pairs = rotation.explanation.pairs;
  for (const RopeBand& band : rotation.explanation.bands) {
    const RopePair &first = pairs[band.first], &last = pairs[band.last];
    rows.push_back({band_pairs(band), range(first.wavelength_tokens, last.wavelength_tokens),
                    range(first.trained_turns, last.trained_turns), to_string(band.treatment), range(first.divisor, last.divisor),
                    band.why});
  }
  return format_table(rows);
}

std::string rule_text(const Rotation& rotation) {
  const std::string name = scaling_name(rotation.config.scaling);
  return name == "none" ? name : fmt::format("{}, factor {:g}", name, rotation.explanation.factor);
}

std::string rotation_text(const Report& report, const Rotation& rotation) {
  const RopeExplanation& e = rotation.explanation;
  const bool follows = depends_on_length(rotation.config);
  return format_table({
             {"layers", fmt::format("{} of {}", rotation.layers, report.config.layers)},
             {"scaling",
              rule_text(rotation) + (follows ? fmt::format(", at {} tokens; keys are cached un-rotated", grouped(report.context)) : "")},
             {"base", fmt::format("{:g}", rotation.config.base)},
             {"rotates", fmt::format("{} pairs of a head's {} elements", e.pairs.size(), report.config.head_dim)},
             {"trained", grouped(rotation.trained_length) + " tokens"},
             {"context", grouped(report.context) + " tokens" + window_text(rotation)},
             {"magnitude",
              fmt::format("{:.6g}, the rotated part of a score gains its square {:.6g}", e.magnitude, e.magnitude * e.magnitude)},
         }) +
         "\n" + bands_text(rotation);
}

json number_or_null(double value) { return std::isinf(value) ? json(nullptr) : json(value); }

json rotation_json(const Rotation& rotation) {
  json pairs = json::array(), bands = json::array();
  for (const RopePair& pair : rotation.explanation.pairs) {
    pairs.push_back({{"wavelength_tokens", pair.wavelength_tokens},
                     {"trained_turns", pair.trained_turns},
                     {"divided_by", number_or_null(pair.divisor)},
                     {"treatment", to_string(pair.treatment)}});
  }
  for (const RopeBand& band : rotation.explanation.bands) {
    bands.push_back({{"first", band.first}, {"last", band.last}, {"treatment", to_string(band.treatment)}, {"why", band.why}});
  }
  return {{"layers", rotation.layers},
          {"scaling", scaling_name(rotation.config.scaling)},
          {"factor", rotation.explanation.factor},
          {"base", rotation.config.base},
          {"rotary_dim", rotation.config.rotary_dim},
          {"window_tokens", rotation.window_tokens ? json(*rotation.window_tokens) : json(nullptr)},
          {"trained_tokens", rotation.trained_length},
          {"depends_on_length", depends_on_length(rotation.config)},
          {"magnitude", rotation.explanation.magnitude},
          {"bands", bands},
          {"pairs", pairs}};
}

std::string as_json(const Report& report) {
  json ropes = json::array();
  for (const Rotation& rotation : report.rotations) ropes.push_back(rotation_json(rotation));
  const json result = {{"architecture", report.config.architecture}, {"context", report.context}, {"ropes", ropes}};
  return result.dump(2) + "\n";
}

std::string as_text(const Report& report) {
  std::string text;
  for (const Rotation& rotation : report.rotations) text += (text.empty() ? "" : "\n") + rotation_text(report, rotation);
  return text;
}

int rope(const Options& options) {
  const auto gguf = model::GgufFile::open(options.model);
  const model::DecoderConfig file = model::read_config(gguf);
  const ChosenRope chosen = choose_rope(options.rope, file, options.context);
  Report report{model::read_config(gguf, chosen.rope), 0, {}};
  report.context = chosen_context(options.context, report.config);
  for (std::size_t i = 0; i < report.config.ropes.size(); ++i) {
    // The options are for the first rotation.
    report.rotations.push_back(rotation_of(report, i, trained_context(i == 0 ? options.rope : RopeOptions{}, file)));
  }
  note(chosen.note);
  print(options.json ? as_json(report) : as_text(report));
  return kSuccess;
}

}  // namespace

void add_rope(CLI::App& app, Action& action) {
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("rope", "How a model's positions turn, and what a scaling of them does");
  command->footer(kFooter);
  command->add_option("model", options->model, "GGUF file")->required()->type_name("MODEL");
  command->add_option("--context", options->context, "Length of the sequence, for rules that depend on it (default: the whole context)")
      ->check(CLI::Range(std::int64_t{1}, kMostTokens))
      ->type_name("N");
  command->add_flag("--json", options->json, "Print JSON");
  add_rope_options(*command, options->rope);
  command->callback([options, &action] { action = [options] { return rope(*options); }; });
}

}  // namespace heed::cli
