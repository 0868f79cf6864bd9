// SPDX-License-Identifier: Apache-2.0
#include "base/cpu.hpp"

#include <atomic>
#include <cstdlib>

#if defined(__unix__)
#include <unistd.h>
#endif

#include "base/message.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace heed::base {
namespace {

constexpr int kUndecided = -1;
std::atomic<int> forced{kUndecided};

#if defined(__x86_64__)
/// Clang 14's __builtin_cpu_supports does not know the name. F16C needs the AVX registers, whose saving the caller has asked about.
bool has_f16c() noexcept {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

std::string missing_x86(Isa isa) {
  __builtin_cpu_init();  // asks CPUID and, through XGETBV, whether the system saves the registers
  std::string missing;
  const auto need = [&missing](bool present, const char* name) {
    if (!present) missing += missing.empty() ? std::string("this CPU lacks ") + name : std::string(", ") + name;
  };
  need(__builtin_cpu_supports("avx2"), "avx2");
  need(__builtin_cpu_supports("fma"), "fma");
  need(has_f16c(), "f16c");
  if (isa == Isa::kAvx2) return missing;
  need(__builtin_cpu_supports("avx512f"), "avx512f");
  need(__builtin_cpu_supports("avx512bw"), "avx512bw");
  need(__builtin_cpu_supports("avx512dq"), "avx512dq");
  need(__builtin_cpu_supports("avx512vl"), "avx512vl");
  if (isa == Isa::kAvx512) return missing;
  need(__builtin_cpu_supports("avx512vnni"), "avx512vnni");
  need(__builtin_cpu_supports("avx512bf16"), "avx512bf16");
  return missing;
}
#endif

/// VDPBF16PS has the rate of an FMA on AMD Zen 4 and 5, but half of it on Intel's Sapphire and Emerald Rapids (measured there:
/// 85 against 175 GFLOP/s on one core, docs/decisions/0002), where widening to float32 is faster as well as more exact.
bool bf16_dot_is_fast() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

Isa best_isa() {
  Isa best = Isa::kGeneric;
  for (const Isa isa : kAllIsas) {
    if (isa == Isa::kAvx512Bf16 && !bf16_dot_is_fast()) continue;
    if (runs_here(isa)) best = isa;
  }
  return best;
}

Isa isa_from_environment(const char* name) {
  const std::optional<Isa> isa = parse_isa(name);
  if (!isa) throw_invalid("heed", "HEED_ISA", "generic, neon, avx2, avx512 or avx512bf16", std::string("\"") + name + "\"");
  const std::string missing = missing_for(*isa);
  if (!missing.empty()) throw_invalid("heed", "HEED_ISA", "an ISA that runs here", std::string(name) + " (" + missing + ")");
  return *isa;
}

}  // namespace

const char* to_string(Isa isa) noexcept {
  switch (isa) {
    case Isa::kGeneric: return "generic";
    case Isa::kNeon: return "neon";
    case Isa::kAvx2: return "avx2";
    case Isa::kAvx512: return "avx512";
    case Isa::kAvx512Bf16: return "avx512bf16";
  }
  return "?";
}

std::optional<Isa> parse_isa(std::string_view name) noexcept {
  for (const Isa isa : kAllIsas) {
    if (name == to_string(isa)) return isa;
  }
  return std::nullopt;
}

std::string missing_for(Isa isa) {
  switch (isa) {
    case Isa::kGeneric: return {};
    case Isa::kNeon:
#if defined(HEED_HAVE_NEON)
      return {};
#else
      return "not compiled in";
#endif
    case Isa::kAvx2:
#if !defined(HEED_HAVE_AVX2)
      return "not compiled in";
#endif
      break;
    case Isa::kAvx512:
#if !defined(HEED_HAVE_AVX512)
      return "not compiled in";
#elif defined(HEED_EMULATE_AVX512)
      return {};
#endif
      break;
    case Isa::kAvx512Bf16:
#if !defined(HEED_HAVE_AVX512BF16)
      return "not compiled in";
#elif defined(HEED_EMULATE_AVX512)
      return {};
#endif
      break;
  }
#if defined(__x86_64__)
  return missing_x86(isa);
#else
  return "another architecture";
#endif
}

bool has_vnni() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx512vnni") != 0;
#else
  return false;
#endif
}

const char* isa_wish() noexcept {
  static const char* const name = std::getenv("HEED_ISA");
  return name != nullptr && *name != '\0' ? name : nullptr;
}

Isa active_isa() {
  const int override_isa = forced.load(std::memory_order_relaxed);
  if (override_isa != kUndecided) return static_cast<Isa>(override_isa);
  if (isa_wish() != nullptr) {
    static const Isa chosen = isa_from_environment(isa_wish());
    return chosen;
  }
  static const Isa best = best_isa();
  return best;
}

ForceIsa::ForceIsa(Isa isa) : previous_(forced.exchange(static_cast<int>(isa))) {}
ForceIsa::~ForceIsa() { forced.store(previous_); }

std::int64_t level2_cache_bytes() {
  constexpr std::int64_t kUsual = std::int64_t{1} << 20;
#if defined(_SC_LEVEL2_CACHE_SIZE)
  static const std::int64_t bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? bytes : kUsual;
#else
  return kUsual;
#endif
}

}  // namespace heed::base
