// SPDX-License-Identifier: Apache-2.0
#include "kv/lazy_memory.hpp"

#include <algorithm>
#include <new>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#define HEED_HAVE_MMAP 1
#endif

namespace heed::kv {

#if defined(HEED_HAVE_MMAP)

// Not malloc: it may hand out recycled pages that are resident already. No huge-page advice: one touched token of a head would make
// 2 MB resident, and a model has hundreds of heads.
LazyMemory::LazyMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS;
#if defined(MAP_NORESERVE)
  flags |= MAP_NORESERVE;
#endif
  void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<std::byte*>(memory);
}

LazyMemory::~LazyMemory() { munmap(data_, bytes_); }

#else

namespace {
constexpr std::align_val_t kAlignment{64};
}

LazyMemory::LazyMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 1))) {
  data_ = static_cast<std::byte*>(::operator new(bytes_, kAlignment));
}

LazyMemory::~LazyMemory() { ::operator delete(data_, kAlignment); }

#endif

}  // namespace heed::kv
