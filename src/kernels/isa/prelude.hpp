// SPDX-License-Identifier: Apache-2.0
// Everything the texts use from outside, included before an ISA region opens: inside of it, an inline function of a shared header would be
// compiled for that ISA and might be the copy that the linker keeps for everybody.
#pragma once

#include <cstddef>
#include <cstdint>

#include <heed/dtype.hpp>

#include "kernels/registry.hpp"

/// Functions of the texts that must be part of their caller. Internal linkage: every text is its own translation unit.
#define HEED_INLINE __attribute__((always_inline)) static inline

/// Before a loop over an array of accumulators: it must disappear, or the array lives in memory. GCC stops by itself at 16 rounds.
#if defined(__clang__)
#define HEED_UNROLL _Pragma("clang loop unroll(full)")
#define HEED_UNROLL_4 _Pragma("clang loop unroll_count(4)")
#else
#define HEED_UNROLL _Pragma("GCC unroll 64")
#define HEED_UNROLL_4 _Pragma("GCC unroll 4")
#endif
/// The same for static members of the texts' own structs.
#define HEED_INLINE_MEMBER __attribute__((always_inline)) static inline
