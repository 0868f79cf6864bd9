// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_quota.hpp"

#include <charconv>
#include <fstream>
#include <string>

namespace heed::base {

std::optional<int> parse_cpu_max(std::string_view text) noexcept {
  long long quota = 0;
  long long period = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, quota);
  if (first.ec != std::errc() || first.ptr == end || *first.ptr != ' ') return std::nullopt;
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc() || quota <= 0 || period <= 0) return std::nullopt;
  const long long cores = quota / period + (quota % period != 0 ? 1 : 0);
  return cores < 1'000'000 ? std::optional<int>(static_cast<int>(cores)) : std::nullopt;
}

std::optional<int> cpu_quota() {
  static const std::optional<int> quota = []() -> std::optional<int> {
    std::ifstream file("/sys/fs/cgroup/cpu.max");
    std::string line;
    if (!std::getline(file, line)) return std::nullopt;
    return parse_cpu_max(line);
  }();
  return quota;
}

}  // namespace heed::base
