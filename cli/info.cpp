// SPDX-License-Identifier: Apache-2.0
// heed info: what a model file holds and what running it takes.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/model/decoder.hpp>

#include "cli/commands.hpp"
#include "cli/io.hpp"
#include "cli/tables.hpp"

namespace heed::cli {
namespace {

using nlohmann::json;

constexpr const char* kFooter = R"(Examples:
  heed info models/gemma3.gguf
  heed info models/gemma3.gguf --json | jq .kv_cache.bytes_per_token)";

struct TypeShare {
  std::int64_t tensors = 0, bytes = 0, parameters = 0;
};

std::map<std::string, TypeShare> shares_by_type(const model::GgufFile& file) {
  std::map<std::string, TypeShare> shares;
  for (const model::GgufTensor& tensor : file.tensors()) {
    TypeShare& share = shares[model::to_string(tensor.type)];
    ++share.tensors;
    share.bytes += tensor.size_bytes;
    share.parameters += element_count(tensor.shape);
  }
  return shares;
}

std::string head_layout(const model::DecoderConfig& config) {
  if (config.kv_heads == config.query_heads) return "MHA";
  return config.kv_heads == 1 ? "MQA" : fmt::format("GQA {}", config.query_heads / config.kv_heads);
}

std::int64_t windowed_layers(const model::DecoderConfig& config) {
  return std::count_if(config.layer.begin(), config.layer.end(), [](const auto& layer) { return layer.window_tokens.has_value(); });
}

std::string windows_text(const model::DecoderConfig& config) {
  const std::int64_t windowed = windowed_layers(config);
  if (windowed == 0) return "every layer sees all earlier tokens";
  const auto first =
      std::find_if(config.layer.begin(), config.layer.end(), [](const auto& layer) { return layer.window_tokens.has_value(); });
  return fmt::format("{} of {} layers see the last {} tokens, the others all", windowed, config.layers, *first->window_tokens);
}

std::string ropes_text(const model::DecoderConfig& config) {
  std::string text;
  for (const RopeConfig& rope : config.ropes) text += fmt::format("{}{:.0f}", text.empty() ? "" : " and ", rope.base);
  return text + (config.pairing == RopePairing::kInterleaved ? ", interleaved pairs" : ", half pairs");
}

std::int64_t total_parameters(const model::ModelInfo& info) {
  return info.embedding_parameters + info.attention_parameters + info.ffn_parameters + info.norm_parameters + info.output_parameters;
}

/// A file may claim any sizes: what does not fit 64 bits stays at the largest number.
std::int64_t bytes_at_full_context(const model::DecoderConfig& config, const model::ModelInfo& info) {
  std::int64_t bytes = 0;
  const bool overflow = __builtin_mul_overflow(info.kv_bytes_per_token, config.context_length, &bytes);
  return overflow ? std::numeric_limits<std::int64_t>::max() : bytes;
}

std::string as_json(const model::GgufFile& file, const model::DecoderConfig& config, const model::ModelInfo& info) {
  json types = json::object();
  for (const auto& [name, share] : shares_by_type(file)) {
    types[name] = {{"tensors", share.tensors}, {"bytes", share.bytes}, {"parameters", share.parameters}};
  }
  json windows = json::array();
  for (const auto& layer : config.layer) windows.push_back(layer.window_tokens ? json(*layer.window_tokens) : json(nullptr));
  const json result = {{"name", file.find_string("general.name").value_or("")},
                       {"architecture", config.architecture},
                       {"layers", config.layers},
                       {"width", config.width},
                       {"ffn_width", config.ffn_width},
                       {"vocabulary", config.vocabulary},
                       {"context_length", config.context_length},
                       {"attention",
                        {{"layout", head_layout(config)},
                         {"query_heads", config.query_heads},
                         {"kv_heads", config.kv_heads},
                         {"head_dim", config.head_dim},
                         {"value_dim", config.value_dim},
                         {"window_tokens_by_layer", windows}}},
                       {"parameters",
                        {{"total", total_parameters(info)},
                         {"embedding", info.embedding_parameters},
                         {"attention", info.attention_parameters},
                         {"ffn", info.ffn_parameters},
                         {"norm", info.norm_parameters},
                         {"output", info.output_parameters}}},
                       {"kv_cache",
                        {{"format", "float32"},
                         {"bytes_per_token", info.kv_bytes_per_token},
                         {"bytes_at_full_context", bytes_at_full_context(config, info)}}},
                       {"weight_bytes", info.weight_bytes},
                       {"file_bytes", file.file_bytes()},
                       {"types", types}};
  return result.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string as_text(const model::GgufFile& file, const model::DecoderConfig& config, const model::ModelInfo& info) {
  const std::string output = info.output_parameters == 0 ? "none of its own: the embedding again" : grouped(info.output_parameters);
  std::vector<Row> rows = {
      {"name", file.find_string("general.name").value_or("-")},
      {"architecture", fmt::format("{}: {} layers, width {}, FFN {}, vocabulary {}", config.architecture, config.layers, config.width,
                                   config.ffn_width, grouped(config.vocabulary))},
      {"attention",
       fmt::format("{}: {} query heads on {} KV heads of {}", head_layout(config), config.query_heads, config.kv_heads, config.head_dim)},
      {"windows", windows_text(config)},
      {"RoPE base", ropes_text(config)},
      {"context", grouped(config.context_length) + " tokens"},
      {"parameters", grouped(total_parameters(info))},
      {"  embedding", grouped(info.embedding_parameters)},
      {"  attention", grouped(info.attention_parameters)},
      {"  FFN", grouped(info.ffn_parameters)},
      {"  norms", grouped(info.norm_parameters)},
      {"  output", output},
      {"KV cache", fmt::format("{} bytes a token (float32), {} at full context", grouped(info.kv_bytes_per_token),
                               bytes_text(bytes_at_full_context(config, info)))},
      {"weights",
       fmt::format("{}, {:.2f} bits a parameter", bytes_text(info.weight_bytes),
                   8.0 * static_cast<double>(info.weight_bytes) / static_cast<double>(std::max<std::int64_t>(1, total_parameters(info))))},
  };
  for (const auto& [name, share] : shares_by_type(file)) {
    rows.push_back({"  " + name, fmt::format("{} tensor{}, {}", share.tensors, share.tensors == 1 ? "" : "s", bytes_text(share.bytes))});
  }
  return format_table(rows);
}

}  // namespace

void add_info(CLI::App& app, Action& action) {
  struct Options {
    std::string model;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand("info", "What a model file holds and what running it takes");
  command->footer(kFooter);
  command->add_option("model", options->model, "GGUF file")->required()->type_name("MODEL");
  command->add_flag("--json", options->json, "Print JSON");
  command->callback([options, &action] {
    action = [options] {
      const auto file = model::GgufFile::open(options->model);
      const auto config = model::read_config(file);
      const auto info = model::model_info(file);
      print(options->json ? as_json(file, config, info) : as_text(file, config, info));
      return kSuccess;
    };
  });
}

}  // namespace heed::cli
