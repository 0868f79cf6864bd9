// SPDX-License-Identifier: Apache-2.0
// How often this program has called operator new; for tests of what must not allocate, or of what happens when it cannot.
#pragma once

#include <atomic>
#include <cstdint>

namespace heed::test {

extern std::atomic<std::int64_t> allocations;
/// Whatever is larger fails, as if memory had run out.
extern std::atomic<std::int64_t> largest_allocation;

}  // namespace heed::test
