// SPDX-License-Identifier: Apache-2.0
// --rope-scaling and its kin: another rotation than the model file's, for every command that runs a model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include <heed/model/decoder.hpp>

namespace heed::cli {

struct RopeOptions {
  std::string scaling;  // empty: the file's
  std::optional<double> factor, base, beta_fast, beta_slow, yarn_attention_factor, long_attention_factor, low_freq, high_freq;
  std::optional<std::int64_t> original_context;
  std::string factors_file;
};

/// Options that do not fit each other end the parse as wrong usage. `options` must live as long as the command.
void add_rope_options(CLI::App& command, RopeOptions& options);

/// What the options come to for the model with this configuration, and what its user should know about it.
struct ChosenRope {
  model::RopeOverride rope;
  std::string note;  // lines for standard error, or empty
};
/// `asked_context` is the number behind --context, 0 for none. With --rope-scaling it may pass what the scaling is made for: a note says so.
[[nodiscard]] ChosenRope choose_rope(const RopeOptions& options, const model::DecoderConfig& file, std::int64_t asked_context);

/// Tokens that the weights were trained with, before any scaling.
[[nodiscard]] std::int64_t trained_context(const RopeOptions& options, const model::DecoderConfig& file);

/// "linear", ...: the names of --rope-scaling, and "table" and "proportional" for what only files have.
[[nodiscard]] std::string scaling_name(const RopeScaling& scaling);

}  // namespace heed::cli
