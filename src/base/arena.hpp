// SPDX-License-Identifier: Apache-2.0
// Scratch memory that is allocated once per calling thread and kept: steady-state calls allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include <heed/export.hpp>

namespace heed::base {

/// A lease on the calling thread's arena: 64-byte-aligned, uninitialised, given back on destruction (last in, first out).
/// Take it before a parallel region and hand parts of it to the tasks. Throws std::bad_alloc.
class HEED_API Scratch {
 public:
  explicit Scratch(std::int64_t bytes);
  ~Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::byte* data_;
  std::int64_t bytes_;
};

/// Rounded up to whole cache lines, so that neighbours never share one.
[[nodiscard]] constexpr std::int64_t round_up_to_line(std::int64_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace heed::base
