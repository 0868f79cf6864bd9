// SPDX-License-Identifier: Apache-2.0
// One function per subcommand: adds it to the program's arguments and, when it is chosen, puts its work into `action`.
// The work returns the exit code, and throws for a failure.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

namespace heed::cli {

using Action = std::function<int()>;

/// What the program returns to the shell.
inline constexpr int kSuccess = 0, kFailure = 1, kUsage = 2, kInterrupted = 130;

void add_run(CLI::App& app, Action& action);
void add_info(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_perplexity(CLI::App& app, Action& action);
void add_rope(CLI::App& app, Action& action);
void add_mask(CLI::App& app, Action& action);
void add_kernels(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);

/// --threads N, for commands that compute. Takes effect by use_threads().
void add_threads(CLI::App& command, int& threads);
/// 0: leave the default.
void use_threads(int threads);

}  // namespace heed::cli
