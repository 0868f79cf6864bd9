// SPDX-License-Identifier: Apache-2.0
// Memory that costs nothing until it is touched: address space is reserved at once, pages arrive with the first write to them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heed::kv {

/// Page-aligned where the system has mmap, 64-byte-aligned elsewhere. Throws std::bad_alloc.
class LazyMemory {
 public:
  explicit LazyMemory(std::int64_t bytes);
  ~LazyMemory();
  LazyMemory(const LazyMemory&) = delete;
  LazyMemory& operator=(const LazyMemory&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

}  // namespace heed::kv
