// SPDX-License-Identifier: Apache-2.0
// Text compiled once per ISA, like a kernel.
#include "kernels/attention/dropout.inl.hpp"

static void ops_exp2(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes) storeu(y + i, exp2(loadu(x + i)));
}
static void ops_tanh(const float* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes) storeu(y + i, tanh(loadu(x + i)));
}
template <class From, class To>
static void ops_convert(const From* x, To* y, int n) {
  for (int i = 0; i < n; i += kLanes) storeu(y + i, loadu(x + i));
}
template <class From>
static void ops_load_partial(const From* x, int n, float* y) {
  storeu(y, load_partial(x, n));
}
template <class To>
static void ops_store_partial(const float* x, int n, To* y) {
  store_partial(y, loadu(x), n);
}
static void ops_select(std::uint64_t bits, const float* a, const float* b, float* y) {
  storeu(y, select(mask_from_bits(bits), loadu(a), loadu(b)));
}
static std::uint64_t ops_less(const float* a, const float* b) { return mask_bits(cmp_lt(loadu(a), loadu(b))); }
static float ops_reduce_add(const float* x) { return reduce_add(loadu(x)); }
static float ops_reduce_max(const float* x) { return reduce_max(loadu(x)); }
static void ops_transpose(float* square) {
  Vec rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = loadu(square + i * kLanes);
  transpose(rows);
  for (int i = 0; i < kLanes; ++i) storeu(square + i * kLanes, rows[i]);
}
static void ops_load_columns(const float* square, int stride, float* columns) {
  const float* rows[kLanes];
  for (int i = 0; i < kLanes; ++i) rows[i] = square + i * stride;
  Vec loaded[kLanes];
  load_columns(rows, loaded);
  for (int i = 0; i < kLanes; ++i) storeu(columns + i * kLanes, loaded[i]);
}
static void ops_bytes(const std::uint8_t* x, float* as_unsigned, float* as_signed, float* low, float* high) {
  storeu(as_unsigned, loadu(x));
  storeu(as_signed, loadu(reinterpret_cast<const std::int8_t*>(x)));
  storeu(low, low_nibbles(x));
  storeu(high, high_nibbles(x));
}
static void ops_lookup(const float* table, const std::uint8_t* index, float* y) { storeu(y, lookup(table16(table), iload_bytes(index))); }
static std::uint64_t ops_greater_unsigned(const std::uint32_t* a, const std::uint32_t* b) {
  return mask_bits(cmp_gt_unsigned(iload(a), iload(b)));
}
static void ops_bit_xor(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* y) { istore(y, ixor(iload(a), iload(b))); }
static void ops_multiply_even(const std::uint32_t* a, const std::uint32_t* b, std::uint32_t* y) {
  istore(y, multiply_even(iload(a), iload(b)));
}
static void ops_odd_lanes(const std::uint32_t* a, std::uint32_t* y) { istore(y, odd_lanes(iload(a))); }
static void ops_join_lanes(const std::uint32_t* even, const std::uint32_t* odd, std::uint32_t* y) {
  istore(y, join_lanes(iload(even), iload(odd)));
}
static void ops_kept_rows(const DropoutRule& rule, const heed::test::DropoutBlock& block, std::uint64_t* kept) {
  kept_rows(rule, {block.first_row, block.rows, block.group}, block.first_key, block.keys, kept);
}
static void ops_dot_bf16(const float* a_low, const float* a_high, const float* b_low, const float* b_high, float* y) {
  const IVec a = pack_bf16_pairs(loadu(a_low), loadu(a_high));
  const IVec b = pack_bf16_pairs(loadu(b_low), loadu(b_high));
  storeu(y, dot_bf16(loadu(y), a, b));
}

extern const heed::test::SimdOps simd_ops = {
    kLanes,
    ops_exp2,
    ops_tanh,
    ops_convert<bfloat16, float>,
    ops_convert<float16, float>,
    ops_convert<float, bfloat16>,
    ops_convert<float, float16>,
    ops_load_partial<float>,
    ops_load_partial<bfloat16>,
    ops_load_partial<float16>,
    ops_store_partial<float>,
    ops_store_partial<bfloat16>,
    ops_store_partial<float16>,
    ops_select,
    ops_less,
    ops_reduce_add,
    ops_reduce_max,
    ops_transpose,
    ops_load_columns,
    ops_bytes,
    ops_lookup,
    ops_greater_unsigned,
    ops_bit_xor,
    ops_multiply_even,
    ops_odd_lanes,
    ops_join_lanes,
    ops_kept_rows,
    ops_dot_bf16,
};
