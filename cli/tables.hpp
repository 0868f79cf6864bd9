// SPDX-License-Identifier: Apache-2.0
// Columns of text for people.
#pragma once

#include <string>
#include <vector>

namespace heed::cli {

using Row = std::vector<std::string>;

/// Cells padded to the widest of their column, two blanks between columns, none at a line's end. Numbers are the caller's to align.
[[nodiscard]] std::string format_table(const std::vector<Row>& rows);

}  // namespace heed::cli
