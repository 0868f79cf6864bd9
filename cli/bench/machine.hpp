// SPDX-License-Identifier: Apache-2.0
// What a measurement must say about where it was made.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json.hpp>

namespace heed::cli::bench {

[[nodiscard]] std::string cpu_name();
/// 0 where the system does not say.
[[nodiscard]] std::int64_t last_level_cache_bytes();
/// CPU, instruction sets, cores, caches, compiler and flags, version, date, clock governor, load. What is not known is null.
[[nodiscard]] nlohmann::json describe_machine();

}  // namespace heed::cli::bench
