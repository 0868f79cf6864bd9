// SPDX-License-Identifier: Apache-2.0
// The heed program: parses the arguments, runs the chosen subcommand, turns what it throws into an exit code.
#include <exception>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <heed/heed.hpp>

#include "cli/commands.hpp"
#include "cli/io.hpp"

namespace heed::cli {
namespace {

constexpr const char* kFooter = R"(Examples:
  heed run models/smollm2.gguf -p "Once upon a time"
  heed info models/smollm2.gguf
  heed kernels
Every command has its own --help.
Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted.)";

std::string chosen_commands(const CLI::App& app) {
  std::string path = app.get_name();
  for (const CLI::App* at : app.get_subcommands()) path += " " + chosen_commands(*at);
  return path;
}

/// Help and version go to standard output with code 0, mistakes to standard error with kUsage.
int explain_usage(const CLI::App& app, const CLI::ParseError& error) {
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) return app.exit(error);
  const std::vector<std::string> words = app.remaining();
  const bool unknown = app.get_subcommands().empty() && !words.empty();  // CLI11 would say that a subcommand is required
  note(fmt::format("heed: {}\nTry `{} --help`.\n", unknown ? fmt::format("there is no command \"{}\"", words.front()) : error.what(),
                   chosen_commands(app)));
  return kUsage;
}

int fail(const std::string& message) {
  note(fmt::format("heed: error: {}\n", message));
  return kFailure;
}

int run_guarded(const Action& action) {
  try {
    return action();
  } catch (const ReaderLeft&) {
    return kSuccess;
  } catch (const std::bad_alloc&) {
    return fail("not enough memory");
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::interrupted && interrupted()) return kInterrupted;  // Ctrl-C while a pipe was waited for
    return fail(error.what());
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

}  // namespace

void add_threads(CLI::App& command, int& threads) {
  command.add_option("--threads", threads, "Threads to compute with (default: what OpenMP would use)")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
}

void use_threads(int threads) {
  if (threads > 0) set_num_threads(threads);
}

}  // namespace heed::cli

int main(int argc, char** argv) {
  using namespace heed::cli;
  catch_signals();
  CLI::App app("Exact attention for CPUs: runs GGUF models and measures its own kernels.", "heed");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("heed ") + heed::version());
  Action action;
  add_run(app, action);
  add_info(app, action);
  add_tokenize(app, action);
  add_perplexity(app, action);
  add_rope(app, action);
  add_mask(app, action);
  add_kernels(app, action);
  add_bench(app, action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return explain_usage(app, error);
  }
  return run_guarded(action);
}
