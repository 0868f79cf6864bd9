// SPDX-License-Identifier: Apache-2.0
// Boolean combinations. Their answers follow from their parts by three-valued logic, so any expression skips tiles.
#pragma once

#include <vector>

#include "mask/node.hpp"

namespace heed::mask {

enum class Operator : std::uint8_t { kAnd, kOr };

/// parts[0] op parts[1] op ...; at least one part. Parts of the same operator are taken apart, `none` and `~none` are folded away.
[[nodiscard]] NodePointer combine(Operator op, const std::vector<NodePointer>& parts);
[[nodiscard]] NodePointer complement(const NodePointer& part);

[[nodiscard]] bool is_none(const MaskNode& node) noexcept;

}  // namespace heed::mask
