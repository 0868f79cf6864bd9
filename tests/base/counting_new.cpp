// SPDX-License-Identifier: Apache-2.0
// Global replacements of operator new and delete that count: every new of the program, array forms included, ends here. In a file of its
// own, so that no compiler sees through one half of a pair and warns of a mismatch.
#include "counting_new.hpp"

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <new>

namespace heed::test {

std::atomic<std::int64_t> allocations{0};
std::atomic<std::int64_t> largest_allocation{std::numeric_limits<std::int64_t>::max()};

}  // namespace heed::test

namespace {

void* counted_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  heed::test::allocations.fetch_add(1, std::memory_order_relaxed);
  if (bytes > static_cast<std::size_t>(heed::test::largest_allocation.load(std::memory_order_relaxed))) return nullptr;
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* counted(std::size_t bytes, std::size_t alignment) {
  void* memory = counted_or_null(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return counted(bytes, static_cast<std::size_t>(alignment)); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
// The aligned array forms too: a sanitizer's own would not come here.
void* operator new[](std::size_t bytes, std::align_val_t alignment) { return counted(bytes, static_cast<std::size_t>(alignment)); }
void* operator new[](std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return counted_or_null(bytes, static_cast<std::size_t>(alignment));
}
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
