// SPDX-License-Identifier: Apache-2.0
// A container's CPU quota. OpenMP sees affinity, but not that `--cpus=2` lets its 64 threads run for 2 cores' worth of time only.
#pragma once

#include <optional>
#include <string_view>

namespace heed::base {

/// Cores that the text of a control group's `cpu.max` ("200000 100000": microseconds per period; "max 100000") grants, rounded up;
/// nullopt for no limit or a text of another form. Source: the kernel's cgroup-v2 documentation.
[[nodiscard]] std::optional<int> parse_cpu_max(std::string_view text) noexcept;

/// The quota of the control group that this process sees as its root, read once.
[[nodiscard]] std::optional<int> cpu_quota();

}  // namespace heed::base
