// SPDX-License-Identifier: Apache-2.0
// The largest operator new of the program, for tests that promise small allocations. Link allocations.cpp to use it.
#pragma once

#include <cstddef>

namespace heed::test {

void forget_allocations();
/// Bytes of the largest single allocation since forget_allocations(), by any thread.
std::size_t largest_allocation();

}  // namespace heed::test
