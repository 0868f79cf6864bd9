// SPDX-License-Identifier: Apache-2.0
// --context N: a smaller context than the model's own.
#pragma once

#include <cstdint>
#include <stdexcept>

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

}  // namespace heed::cli
