// SPDX-License-Identifier: Apache-2.0
// --context N, a smaller context than the model's own; --kv-type, how its keys and values are kept.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <heed/model/decoder.hpp>

namespace heed::cli {

/// Most tokens that a count on the command line may name; far above any model, far below an overflow.
inline constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;

/// The model's context, or what --context asks for (0: nothing).
inline std::int64_t chosen_context(std::int64_t asked, const model::DecoderConfig& config) {
  if (asked > config.context_length) {
    throw std::runtime_error(fmt::format("--context asks for {} tokens, the model was made for {}", asked, config.context_length));
  }
  return asked > 0 ? asked : config.context_length;
}

inline void add_kv_type(CLI::App& command, KvFormat& format) {
  static const std::map<std::string, KvFormat> formats = {
      {"float32", KvFormat::kFloat32}, {"bfloat16", KvFormat::kBFloat16}, {"float16", KvFormat::kFloat16}, {"int8", KvFormat::kInt8}};
  command
      .add_option_function<std::string>(
          "--kv-type", [&format](const std::string& name) { format = formats.at(name); },
          "How keys and values are kept: float32, bfloat16, float16 or int8 (default: float32)")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8"}))
      ->type_name("TYPE");
}

}  // namespace heed::cli
