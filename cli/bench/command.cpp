// SPDX-License-Identifier: Apache-2.0
// heed bench: measures kernels against what the machine can do, and measurements against each other.
#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/kernels.hpp>

#include "cli/bench/bench.hpp"
#include "cli/bench/compare.hpp"
#include "cli/bench/machine.hpp"
#include "cli/bench/report.hpp"
#include "cli/commands.hpp"
#include "cli/io.hpp"
#include "cli/tables.hpp"

namespace heed::cli {
namespace {

using namespace bench;

constexpr const char* kFooter =
    R"(A kernel's speed is a share of what the machine does at the same moment, in the same process: products of its FMA
peak (bfloat16: of its bf16 dot peak, where kernels use one), decode of its read bandwidth, over caches of more than
1 GB together that no last-level cache can hold. Masked-out work is not counted. "ratio" is the median over rounds,
"rounds from - to" its smallest and largest: a busy machine swings. docs/performance.md says more.

Examples:
  heed bench
  heed bench --suite gate --json gate.json
  HEED_ISA=avx2 heed bench --suite forward,causal --threads 1
  heed bench --suite gate --only "forward causal [B,H,L,D] float32"
  heed bench --suite decode --compare old.json
  heed bench --compare old.json new.json)";

struct BenchOptions {
  std::vector<std::string> names;
  std::vector<std::string> compare;
  int threads = 0, rounds = 0;
  bool list = false, quick = false, fail_on_regression = false, fail_below_target = false;
  std::string json, only;
};

std::string list_of_suites() {
  std::vector<Row> table;
  for (const Suite& suite : suites()) table.push_back({suite.name, suite.summary});
  table.push_back({"all", "every one of them"});
  return format_table(table);
}

/// What --suite takes.
std::set<std::string> suite_names() {
  std::set<std::string> names = {"all"};
  for (const Suite& suite : suites()) names.insert(suite.name);
  return names;
}

bool chosen(const BenchOptions& options, const Suite& suite) {
  const auto& names = options.names;
  if (names.empty()) return suite.name == std::string(suites().front().name);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name == "all" || name == suite.name; });
}

Bench prepare(const BenchOptions& options) {
  use_threads(options.threads);
  const std::set<int> threads = options.threads > 0 ? std::set<int>{options.threads} : std::set<int>{1, get_num_threads()};
  return {threads, options.quick ? Size::kQuick : Size::kFull, options.rounds > 0 ? std::optional<int>(options.rounds) : std::nullopt,
          options.only};
}

int finish(const BenchOptions& options, const Comparison& comparison) {
  options.json == "-" ? note(comparison.text) : print(comparison.text);  // standard output is JSON's then
  if (!options.fail_on_regression) return kSuccess;
  // Renamed rows would otherwise leave a check that nothing can fail.
  if (comparison.compared == 0) throw std::runtime_error("--fail-on-regression: the two measurements have no row in common");
  return comparison.slower > 0 ? kFailure : kSuccess;
}

int report(const BenchOptions& options, const Bench& bench, const nlohmann::json& machine, const std::optional<Measurement>& before) {
  const nlohmann::json document = to_json(bench.rows(), machine);
  if (!options.json.empty()) {
    write_text(options.json, document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  }
  const std::string summary =
      options.quick ? "\n--quick: sizes and rounds that show nothing but that it runs.\n" : summary_of_targets(bench.rows());
  if (options.json != "-") print(as_table(bench.rows(), machine, options.quick ? Verdicts::kLeaveOut : Verdicts::kShow) + summary);
  const auto failed = [](const BenchRow& row) { return outcome_of(row) == Outcome::kFail; };
  if (options.fail_below_target && std::any_of(bench.rows().begin(), bench.rows().end(), failed)) return kFailure;
  if (!before) return kSuccess;
  return finish(options, compare(*before, measurement_from(document, "this run")));
}

int run_bench(const BenchOptions& options) {
  if (options.list) {
    print(list_of_suites());
    return kSuccess;
  }
  std::optional<Measurement> before;
  if (!options.compare.empty()) before = read_measurement(options.compare[0]);
  if (options.compare.size() == 2) return finish(options, compare(*before, read_measurement(options.compare[1])));
  if (!options.json.empty()) require_writable(options.json);
  Bench bench = prepare(options);
  const nlohmann::json machine = describe_machine();
  for (const Suite& suite : suites()) {
    if (!chosen(options, suite)) continue;
    bench.begin_suite(suite.name);
    suite.run(bench);
    if (interrupted()) return kInterrupted;
  }
  if (bench.rows().empty()) throw std::runtime_error(fmt::format("no row's name, type and shape contain \"{}\"", options.only));
  return report(options, bench, machine, before);
}

void add_options(CLI::App& command, BenchOptions& options) {
  command.add_option("--suite", options.names, "What to measure, separated by commas; --list says what there is (default: overview)")
      ->delimiter(',')
      ->check(CLI::IsMember(suite_names()))
      ->type_name("NAME");
  command.add_option("--only", options.only, "Only rows whose name, type and shape, as the table shows them, contain this")
      ->type_name("TEXT");
  command.add_flag("--list", options.list, "List the suites");
  add_threads(command, options.threads);
  CLI::Option* rounds =
      command.add_option("--rounds", options.rounds, "Timed rounds (default: as many as fit a time that suits the suite)")
          ->check(CLI::Range(1, 10000))
          ->type_name("N");
  command.add_flag("--quick", options.quick, "Small sizes and one round: shows that everything runs, measures nothing worth keeping")
      ->excludes(rounds);
  command.add_option("--json", options.json, "JSON in place of the table; with a FILE, in addition to it")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("[FILE]");
  CLI::Option* compare = command
                             .add_option("--compare", options.compare,
                                         "Compare with an earlier --json FILE; with two files, compare those and measure nothing")
                             ->expected(1, 2)
                             ->type_name("OLD [NEW]");
  command.add_flag("--fail-on-regression", options.fail_on_regression, "Exit code 1 where --compare finds a row slower")->needs(compare);
  command.add_flag("--fail-below-target", options.fail_below_target, "Exit code 1 where a row misses its target");
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  const auto options = std::make_shared<BenchOptions>();
  CLI::App* command = app.add_subcommand("bench", "Measure kernels against what the machine can do");
  command->footer(kFooter);
  add_options(*command, *options);
  command->callback([options, command, &action] {
    if (command->count("--json") > 0 && options->json.empty()) options->json = "-";
    action = [options] { return run_bench(*options); };
  });
}

}  // namespace heed::cli
