// SPDX-License-Identifier: Apache-2.0
// Kernel lookup by ISA and element types.
#include "kernels/attention/tables.hpp"
#include "kernels/registry.hpp"

namespace heed::kernels {

namespace avx512vnni {
extern const NarrowKernel narrow_int8_kernels;
}

namespace {

template <class Kernels>
auto find(const Kernels* kernels, DType q, DType kv) noexcept {
  const auto row = static_cast<std::size_t>(q);
  const auto column = static_cast<std::size_t>(kv);
  return kernels != nullptr && row < 3 && column < 3 ? kernels->by_type[row][column] : nullptr;
}

}  // namespace

const WideKernel* wide_kernel(base::Isa isa, DType q, DType kv) noexcept { return find(wide_kernels_of(isa), q, kv); }

const NarrowKernel* narrow_kernel(base::Isa isa, DType q, DType kv) noexcept { return find(narrow_kernels_of(isa), q, kv); }

const NarrowKernel* narrow_int8_kernel(base::Isa isa) noexcept {
#if defined(HEED_HAVE_AVX512VNNI)
  // One instruction in place of two, to the same bits.
  if (isa == base::Isa::kAvx512 && base::has_vnni()) return &avx512vnni::narrow_int8_kernels;
#endif
  return narrow_int8_kernels_of(isa);
}

}  // namespace heed::kernels
