// SPDX-License-Identifier: Apache-2.0
// Operations of the SIMD layer as functions over arrays, one table per ISA; simd_ops.inl.hpp defines them, simd_test.cpp checks them.
#pragma once

#include <cstdint>

#include <heed/dtype.hpp>

#include "kernels/attention/forward.hpp"

namespace heed::test {

/// Rows and keys to draw for.
struct DropoutBlock {
  std::int64_t first_row;
  int rows;
  std::int32_t group;
  std::int64_t first_key;
  int keys;
};

struct SimdOps {
  int lanes;
  /// Of n floats; n a multiple of lanes.
  void (*exp2)(const float* x, float* y, int n);
  void (*tanh)(const float* x, float* y, int n);
  void (*widen_bfloat16)(const bfloat16* x, float* y, int n);
  void (*widen_float16)(const float16* x, float* y, int n);
  void (*narrow_bfloat16)(const float* x, bfloat16* y, int n);
  void (*narrow_float16)(const float* x, float16* y, int n);
  /// Of one vector.
  void (*load_partial)(const float* x, int n, float* y);
  void (*load_partial_bfloat16)(const bfloat16* x, int n, float* y);
  void (*load_partial_float16)(const float16* x, int n, float* y);
  void (*store_partial)(const float* x, int n, float* y);
  void (*store_partial_bfloat16)(const float* x, int n, bfloat16* y);
  void (*store_partial_float16)(const float* x, int n, float16* y);
  void (*select_bits)(std::uint64_t bits, const float* a, const float* b, float* y);
  std::uint64_t (*less)(const float* a, const float* b);
  float (*reduce_add)(const float* x);
  float (*reduce_max)(const float* x);
  void (*transpose)(float* square);
  void (*load_columns)(const float* square, int stride, float* columns);
  void (*bytes)(const std::uint8_t* x, float* as_unsigned, float* as_signed, float* low, float* high);
  void (*lookup)(const float* table, const std::uint8_t* index, float* y);
  /// Of unsigned lanes.
  std::uint64_t (*greater_unsigned)(const std::uint32_t* a, const std::uint32_t* b);
  void (*bit_xor)(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* y);
  void (*multiply_even)(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* y);
  void (*odd_lanes)(const std::uint32_t* a, std::uint32_t* y);
  void (*join_lanes)(const std::uint32_t* even, const std::uint32_t* odd, std::uint32_t* y);
  /// Of kernels/attention/dropout.inl.hpp: `count` keys for rows [first_row, first_row + rows).
  void (*kept_rows)(const kernels::DropoutRule& rule, const DropoutBlock& block, std::uint64_t* kept);
  void (*dot_bf16)(const float* a_low, const float* a_high, const float* b_low, const float* b_high, float* y);
};

}  // namespace heed::test

#define HEED_DECLARE_SIMD_OPS(isa)           \
  namespace heed::kernels::isa {             \
  extern const heed::test::SimdOps simd_ops; \
  }
HEED_DECLARE_SIMD_OPS(generic)
HEED_DECLARE_SIMD_OPS(neon)
HEED_DECLARE_SIMD_OPS(avx2)
HEED_DECLARE_SIMD_OPS(avx512)
HEED_DECLARE_SIMD_OPS(avx512bf16)
#undef HEED_DECLARE_SIMD_OPS
