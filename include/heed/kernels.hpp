// SPDX-License-Identifier: Apache-2.0
// What runs on this machine, and with how many threads.
#pragma once

#include <string>
#include <vector>

#include <heed/export.hpp>

namespace heed {

/// One kernel of the library on one ISA.
struct KernelInfo {
  std::string family;   ///< "attention.wide", "attention.narrow", "linear.q4_1", ...
  std::string isa;      ///< "generic", "avx2", "avx512", "avx512bf16", "neon"
  std::string dtypes;   ///< "float32 bfloat16 float16"
  bool available;       ///< runs on this machine
  bool selected;        ///< is what dispatch picks here
  std::string reason;   ///< why it is not available or not selected; empty when selected
};
[[nodiscard]] HEED_API std::vector<KernelInfo> list_kernels();

/// Name of the ISA that dispatch uses: the best that the machine has, or what HEED_ISA forces.
/// HEED_ISA naming an ISA that is unknown or that the machine lacks makes the first call throw InvalidArgument.
[[nodiscard]] HEED_API std::string active_isa();

/// Threads for the calls of this thread: n >= 1; default what OpenMP would use (OMP_NUM_THREADS, affinity, cgroup limits).
HEED_API void set_num_threads(int n);
[[nodiscard]] HEED_API int get_num_threads();

/// "0.1.0", of the library that is linked.
[[nodiscard]] HEED_API const char* version() noexcept;

}  // namespace heed
