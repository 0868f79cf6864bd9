// SPDX-License-Identifier: Apache-2.0
// How often this program has called operator new; for tests of what must not allocate.
#pragma once

#include <atomic>
#include <cstdint>

namespace heed::test {

extern std::atomic<std::int64_t> allocations;

}  // namespace heed::test
