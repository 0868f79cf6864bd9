// SPDX-License-Identifier: Apache-2.0
// heed bench: measures kernels against what the machine can do.
#include "cli/commands.hpp"

namespace heed::cli {

void add_bench(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("bench", "Measure kernels against what the machine can do");
  command->require_subcommand(1);
  add_bench_attention(*command, action);
}

}  // namespace heed::cli
