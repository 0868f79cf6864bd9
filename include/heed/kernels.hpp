// SPDX-License-Identifier: Apache-2.0
// What runs on this machine, and with how many threads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <heed/export.hpp>

namespace heed {

/// One kernel of the library on one ISA.
struct KernelInfo {
  std::string family;  ///< "attention.wide", "attention.narrow", "linear", ...
  std::string isa;     ///< "generic", "avx2", "avx512", "avx512bf16", "neon"
  std::string dtypes;  ///< "float32 bfloat16 float16"; for "linear" also the block formats of weights
  bool available;      ///< runs on this machine
  bool selected;       ///< is what dispatch picks here
  std::string reason;  ///< why it is not available or not selected; empty when selected
};
[[nodiscard]] HEED_API std::vector<KernelInfo> list_kernels();

/// Name of the ISA that dispatch uses: the best that the machine has, or what HEED_ISA forces.
/// HEED_ISA naming an ISA that is unknown or that the machine lacks makes the first call throw InvalidArgument.
[[nodiscard]] HEED_API std::string active_isa();

/// Threads for the calls of this thread: n >= 1; default what OpenMP would use (OMP_NUM_THREADS, affinity, cgroup limits).
HEED_API void set_num_threads(int n);
[[nodiscard]] HEED_API int get_num_threads();

/// Yardsticks: what this machine can do at most, with the active ISA and get_num_threads() threads. Time them beside a kernel; a ratio
/// to them means something on a shared machine, a time does not. `rounds` rounds of independent operations between registers on every
/// thread; returns the flop done. probe_bf16_dot returns 0 where the ISA has no bfloat16 dot product.
[[nodiscard]] HEED_API double probe_fma(std::int64_t rounds);
[[nodiscard]] HEED_API double probe_bf16_dot(std::int64_t rounds);
/// Reads the memory once, cut over the threads in contiguous parts; returns the bytes read (a tail below 1 KB of each part is left out).
/// The memory must start on a 64-byte line.
[[nodiscard]] HEED_API double probe_read(std::span<const float> memory);

/// "0.1.0", of the library that is linked.
[[nodiscard]] HEED_API const char* version() noexcept;

}  // namespace heed
