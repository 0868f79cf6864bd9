// SPDX-License-Identifier: Apache-2.0
// The tables behind kernels.def: lookup by ISA, and the list that heed::list_kernels() returns.
#include "kernels/registry.hpp"

#include <string>

#include <heed/kernels.hpp>

#if defined(HEED_HAVE_NEON)
#define HEED_IF_NEON(pointer) pointer
#else
#define HEED_IF_NEON(pointer) nullptr
#endif
#if defined(HEED_HAVE_AVX2)
#define HEED_IF_AVX2(pointer) pointer
#else
#define HEED_IF_AVX2(pointer) nullptr
#endif
#if defined(HEED_HAVE_AVX512)
#define HEED_IF_AVX512(pointer) pointer
#else
#define HEED_IF_AVX512(pointer) nullptr
#endif
#if defined(HEED_HAVE_AVX512BF16)
#define HEED_IF_AVX512BF16(pointer) pointer
#else
#define HEED_IF_AVX512BF16(pointer) nullptr
#endif

namespace heed::kernels {

#define HEED_KERNEL(name, Type, symbol, dtypes)                                    \
  const Type* symbol##_of(base::Isa isa) noexcept {                                \
    switch (isa) {                                                                 \
      case base::Isa::kGeneric: return &generic::symbol;                           \
      case base::Isa::kNeon: return HEED_IF_NEON(&neon::symbol);                   \
      case base::Isa::kAvx2: return HEED_IF_AVX2(&avx2::symbol);                   \
      case base::Isa::kAvx512: return HEED_IF_AVX512(&avx512::symbol);             \
      case base::Isa::kAvx512Bf16: return HEED_IF_AVX512BF16(&avx512bf16::symbol); \
    }                                                                              \
    return nullptr;                                                                \
  }
#include "kernels/kernels.def"
#undef HEED_KERNEL

namespace {

struct Family {
  const char* name;
  const char* dtypes;
};
constexpr Family kFamilies[] = {
#define HEED_KERNEL(name, Type, symbol, dtypes) {name, dtypes},
#include "kernels/kernels.def"
#undef HEED_KERNEL
};

/// Why dispatch passes over an ISA that runs here. By itself it takes the last one, but for a bf16 dot that is slow on this CPU.
std::string not_selected_because(base::Isa isa, base::Isa active) {
  const std::string name = base::to_string(active);
  if (isa < active) return "slower than " + name;
  return base::isa_wish() != nullptr ? "HEED_ISA chose " + name : "its bf16 dot is slower than " + name + " on this CPU";
}

}  // namespace
}  // namespace heed::kernels

namespace heed {

std::vector<KernelInfo> list_kernels() {
  const base::Isa active = base::active_isa();
  std::vector<KernelInfo> list;
  for (const kernels::Family& family : kernels::kFamilies) {
    for (const base::Isa isa : base::kAllIsas) {
      KernelInfo info{family.name, base::to_string(isa), family.dtypes, true, isa == active, base::missing_for(isa)};
      info.available = info.reason.empty();
      if (info.available && !info.selected) info.reason = kernels::not_selected_because(isa, active);
      list.push_back(info);
    }
  }
  return list;
}

std::string active_isa() { return base::to_string(base::active_isa()); }

}  // namespace heed
