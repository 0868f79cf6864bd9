// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/machine.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <set>
#include <string>
#include <unistd.h>

#include <fmt/format.h>

#include <heed/kernels.hpp>
#include <heed/version.hpp>

namespace heed::cli::bench {
namespace {

using nlohmann::json;

constexpr const char* kCpu0 = "/sys/devices/system/cpu/cpu0/";

/// The first line, or "" where there is no such file.
std::string line_of(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// "48K" as Linux writes it, in bytes; 0 where it is nothing of the kind.
std::int64_t size_of(const std::string& text) {
  char* end = nullptr;
  const std::int64_t number = std::strtoll(text.c_str(), &end, 10);
  switch (*end) {
    case 'K': return number << 10;
    case 'M': return number << 20;
    case 'G': return number << 30;
    default: return number;
  }
}

json caches() {
  json list = json::array();
  for (int i = 0; i < 16; ++i) {
    const std::string folder = fmt::format("{}cache/index{}/", kCpu0, i);
    const std::string size = line_of(folder + "size");
    if (size.empty()) break;
    list.push_back({{"level", size_of(line_of(folder + "level"))}, {"type", line_of(folder + "type")}, {"bytes", size_of(size)}});
  }
  return list;
}

json instruction_sets() {
  std::set<std::string> names;
  for (const KernelInfo& kernel : list_kernels()) {
    if (kernel.available) names.insert(kernel.isa);
  }
  return names;
}

json text_or_null(const std::string& text) { return text.empty() ? json() : json(text); }

json load_average() {
  std::array<double, 3> load{};
  if (getloadavg(load.data(), 3) != 3) return {};
  return load;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

}  // namespace

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown CPU";
}

std::int64_t last_level_cache_bytes() {
  std::int64_t most = 0;
  for (const json& cache : caches()) most = std::max(most, cache.at("bytes").get<std::int64_t>());
  return most;
}

json describe_machine() {
  return {{"cpu", cpu_name()},
          {"isa", active_isa()},
          {"instruction_sets", instruction_sets()},
          {"cores", sysconf(_SC_NPROCESSORS_ONLN)},
          {"threads", get_num_threads()},
          {"caches", caches()},
          {"compiler", HEED_BENCH_COMPILER},
          {"flags", HEED_BENCH_FLAGS},
          {"heed", version()},
          {"date", utc_now()},
          {"governor", text_or_null(line_of(std::string(kCpu0) + "cpufreq/scaling_governor"))},
          {"load_average", load_average()}};
}

}  // namespace heed::cli::bench
