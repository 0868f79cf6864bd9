// SPDX-License-Identifier: Apache-2.0
#include "attention/aligned_allocations.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> count{0}, bytes{0};

void* allocate_or_null(std::size_t size, std::align_val_t alignment) noexcept {
  ++count;
  bytes += size;
  const auto unit = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(unit, (size + unit - 1) / unit * unit);
}

void* allocate(std::size_t size, std::align_val_t alignment) {
  if (void* memory = allocate_or_null(size, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

std::size_t heed::test::aligned_allocations() { return count; }

std::size_t heed::test::aligned_bytes() { return bytes; }

void* operator new(std::size_t size, std::align_val_t alignment) { return allocate(size, alignment); }
void* operator new[](std::size_t size, std::align_val_t alignment) { return allocate(size, alignment); }
// Sanitizers replace the forms that do not throw by their own, which would count nothing and not match the deletes below.
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, alignment);
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate_or_null(size, alignment);
}
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
