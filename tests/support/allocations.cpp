// SPDX-License-Identifier: Apache-2.0
// Replaces the program's operator new. In a file of its own: inlined into callers, GCC 12 takes new/free for a mismatch.
#include "support/allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> largest{0};

void* allocate_or_null(std::size_t size) noexcept {
  std::size_t seen = largest.load();
  while (size > seen && !largest.compare_exchange_weak(seen, size)) {
  }
  return std::malloc(size > 0 ? size : 1);
}

void* allocate(std::size_t size) {
  if (void* memory = allocate_or_null(size)) return memory;
  throw std::bad_alloc();
}

}  // namespace

namespace heed::test {

void forget_allocations() { largest = 0; }
std::size_t largest_allocation() { return largest; }

}  // namespace heed::test

void* operator new(std::size_t size) { return allocate(size); }
void* operator new[](std::size_t size) { return allocate(size); }
// std::stable_sort asks for its buffer this way; left to the runtime, AddressSanitizer would see its memory freed by another allocator.
void* operator new(std::size_t size, const std::nothrow_t&) noexcept { return allocate_or_null(size); }
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept { return allocate_or_null(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
