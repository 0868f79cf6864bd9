// SPDX-License-Identifier: Apache-2.0
// Scratch memory: alignment, nesting, and no allocation in the steady state. This program counts its own allocations.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <thread>
#include <vector>

#include "base/arena.hpp"
#include "counting_new.hpp"

namespace heed::test {
namespace {

using base::Scratch;

bool aligned(const Scratch& scratch) { return reinterpret_cast<std::uintptr_t>(scratch.data()) % 64 == 0; }

TEST(Scratch, IsAlignedForEverySize) {
  for (const std::int64_t bytes : {0, 1, 63, 64, 65, 4096, 1'000'003}) {
    const Scratch scratch(bytes);
    EXPECT_TRUE(aligned(scratch)) << bytes;
    std::memset(scratch.data(), 1, static_cast<std::size_t>(bytes));
  }
}

/// Nested leases of random sizes never overlap: each is filled with its own byte and still holds it when it ends.
void nest(std::mt19937& engine, int depth) {
  const auto bytes = static_cast<std::int64_t>(engine() % 20'000);
  const Scratch scratch(bytes);
  ASSERT_TRUE(aligned(scratch));
  std::memset(scratch.data(), depth, static_cast<std::size_t>(bytes));
  for (auto i = engine() % 3; depth < 8 && i > 0; --i) nest(engine, depth + 1);
  for (std::int64_t i = 0; i < bytes; ++i) ASSERT_EQ(scratch.data()[i], static_cast<std::byte>(depth));
}

/// A new thread starts with an empty arena, so that leases spread over several blocks before the peak is known.
TEST(Scratch, NestedLeasesDoNotOverlap) {
  std::mt19937 engine(3);
  for (int thread = 0; thread < 50; ++thread) {
    std::thread([&engine] {
      for (int i = 0; i < 3; ++i) nest(engine, 1);
    }).join();
  }
}

void one_step() {
  const Scratch outer(100'000);
  for (const std::int64_t bytes : {5'000, 300'000, 64}) {
    const Scratch inner(bytes);
    const Scratch innermost(2 * bytes);
  }
}

TEST(Scratch, AllocatesNothingInTheSteadyState) {
  one_step();  // learns the peak
  one_step();  // one block of that size
  const std::int64_t before = allocations.load();
  for (int i = 0; i < 100; ++i) one_step();
  EXPECT_EQ(allocations.load(), before);
}

TEST(Scratch, EveryThreadHasItsOwn) {
  const Scratch mine(1000);
  std::memset(mine.data(), 7, 1000);
  std::thread([] {
    const Scratch other(1000);
    std::memset(other.data(), 9, 1000);
  }).join();
  EXPECT_EQ(mine.data()[999], std::byte{7});
}

TEST(Scratch, ImpossibleSizesThrowAndChangeNothing) {
  { const Scratch room(1024); }  // so that what follows fits one block
  const Scratch before(10);
  EXPECT_THROW(const Scratch lease(std::numeric_limits<std::int64_t>::max()), std::bad_alloc);
  const Scratch after(10);
  EXPECT_EQ(after.data() - before.data(), 64);
}

/// Larger allocations fail while it lives.
struct MemoryLimit {
  explicit MemoryLimit(std::int64_t bytes) { largest_allocation = bytes; }
  ~MemoryLimit() { largest_allocation = std::numeric_limits<std::int64_t>::max(); }
};

// After leases of 8 MB at once the next block would have 12: where there are only 6, a lease of 5 gets its 5, and keeps them.
TEST(Scratch, TakesWhatItNeedsWhereTheGenerousSizeFails) {
  constexpr std::int64_t kMega = 1'000'000;
  std::thread([] {
    {
      const Scratch one(4 * kMega);
      const Scratch other(4 * kMega);
    }
    const MemoryLimit limit(6 * kMega);
    EXPECT_THROW(const Scratch lease(7 * kMega), std::bad_alloc);
    EXPECT_NO_THROW(const Scratch lease(5 * kMega));
    const std::int64_t before = allocations.load();
    EXPECT_NO_THROW(const Scratch lease(5 * kMega));
    EXPECT_EQ(allocations.load(), before);
  }).join();
}

TEST(Scratch, RoundsUpToLines) {
  EXPECT_EQ(base::round_up_to_line(0), 0);
  EXPECT_EQ(base::round_up_to_line(1), 64);
  EXPECT_EQ(base::round_up_to_line(64), 64);
  EXPECT_EQ(base::round_up_to_line(65), 128);
}

}  // namespace
}  // namespace heed::test
