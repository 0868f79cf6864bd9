// SPDX-License-Identifier: Apache-2.0
// Counts what tensors and the arena ask for: they alone use operator new with an alignment. Link aligned_allocations.cpp to use it.
#pragma once

#include <cstddef>

namespace heed::test {

/// Aligned allocations of the program so far, by any thread.
std::size_t aligned_allocations();
/// Bytes that they asked for.
std::size_t aligned_bytes();

}  // namespace heed::test
