// SPDX-License-Identifier: Apache-2.0
// Declarations made from kernels.def: each family's table in each ISA's namespace, and its lookup by ISA.
#pragma once

#include "base/cpu.hpp"
#include "kernels/attention/backward.hpp"
#include "kernels/attention/tables.hpp"
#include "kernels/bench/peak.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/linear/linear.hpp"

namespace heed::kernels {

#define HEED_KERNEL(name, Type, symbol, dtypes) \
  namespace generic {                           \
  extern const Type symbol;                     \
  }                                             \
  namespace neon {                              \
  extern const Type symbol;                     \
  }                                             \
  namespace avx2 {                              \
  extern const Type symbol;                     \
  }                                             \
  namespace avx512 {                            \
  extern const Type symbol;                     \
  }                                             \
  namespace avx512bf16 {                        \
  extern const Type symbol;                     \
  }                                             \
  [[nodiscard]] HEED_API const Type* symbol##_of(base::Isa isa) noexcept;
#include "kernels/kernels.def"
#undef HEED_KERNEL

}  // namespace heed::kernels
