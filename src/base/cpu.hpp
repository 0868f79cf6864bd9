// SPDX-License-Identifier: Apache-2.0
// Which instruction sets kernels are compiled for, what this machine has, and which one dispatch uses.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <heed/export.hpp>

namespace heed::base {

/// In rising order of preference on its own architecture. Every ISA includes the ones of its architecture before it.
enum class Isa : unsigned char { kGeneric, kNeon, kAvx2, kAvx512, kAvx512Bf16 };
inline constexpr std::array<Isa, 5> kAllIsas = {Isa::kGeneric, Isa::kNeon, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16};

/// "generic", "neon", "avx2", "avx512", "avx512bf16".
[[nodiscard]] const char* to_string(Isa isa) noexcept;
[[nodiscard]] std::optional<Isa> parse_isa(std::string_view name) noexcept;

/// Why kernels of this ISA cannot run here: not compiled in, CPU bits missing, registers not saved by the system. Empty when they can.
/// In a build that emulates an ISA (SIMDe), that ISA counts as present.
[[nodiscard]] std::string missing_for(Isa isa);
[[nodiscard]] inline bool runs_here(Isa isa) { return missing_for(isa).empty(); }

/// What HEED_ISA names; null where nobody chose. Read once.
[[nodiscard]] const char* isa_wish() noexcept;

/// Whether this CPU multiplies pairs of 16-bit integers and adds them in one instruction of AVX-512.
[[nodiscard]] bool has_vnni() noexcept;

/// The best ISA that runs here, or what HEED_ISA names; decided once. Throws InvalidArgument for a bad HEED_ISA, on every call.
[[nodiscard]] HEED_API Isa active_isa();

/// Of one core; 1 MB where the system does not say.
[[nodiscard]] std::int64_t level2_cache_bytes();

/// Replaces the choice until destroyed; for tests that walk over every ISA. Not for concurrent use.
class ForceIsa {
 public:
  explicit ForceIsa(Isa isa);
  ~ForceIsa();
  ForceIsa(const ForceIsa&) = delete;
  ForceIsa& operator=(const ForceIsa&) = delete;

 private:
  int previous_;
};

}  // namespace heed::base
