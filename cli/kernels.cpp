// SPDX-License-Identifier: Apache-2.0
// heed kernels: what runs on this machine, and why the rest does not.
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/kernels.hpp>

#include "cli/commands.hpp"
#include "cli/io.hpp"
#include "cli/tables.hpp"

namespace heed::cli {
namespace {

constexpr const char* kFooter = R"(HEED_ISA=generic|avx2|avx512|avx512bf16|neon forces an instruction set.

Examples:
  heed kernels
  HEED_ISA=avx2 heed kernels --json)";

std::string as_json(const std::vector<KernelInfo>& kernels) {
  nlohmann::json list = nlohmann::json::array();
  for (const KernelInfo& kernel : kernels) {
    list.push_back({{"family", kernel.family},
                    {"isa", kernel.isa},
                    {"dtypes", kernel.dtypes},
                    {"available", kernel.available},
                    {"selected", kernel.selected},
                    {"reason", kernel.reason}});
  }
  const nlohmann::json result = {{"version", version()}, {"isa", active_isa()}, {"threads", get_num_threads()}, {"kernels", list}};
  return result.dump(2) + "\n";
}

std::string as_table(const std::vector<KernelInfo>& kernels) {
  std::vector<Row> rows = {{"family", "ISA", "types", "", "why not"}};
  for (const KernelInfo& kernel : kernels) {
    rows.push_back({kernel.family, kernel.isa, kernel.dtypes,
                    kernel.selected    ? "runs"
                    : kernel.available ? "could run"
                                       : "-",
                    kernel.reason});
  }
  return fmt::format("heed {}, instruction set {}, {} threads\n\n", version(), active_isa(), get_num_threads()) + format_table(rows);
}

}  // namespace

void add_kernels(CLI::App& app, Action& action) {
  const auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("kernels", "What runs on this machine, and why the rest does not");
  command->footer(kFooter);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json, &action] {
    action = [json] {
      const auto list = list_kernels();
      print(*json ? as_json(list) : as_table(list));
      return kSuccess;
    };
  });
}

}  // namespace heed::cli
