// SPDX-License-Identifier: Apache-2.0
// Chooses a path for every sequence of a checked call, and runs it.
#include "attention/forward.hpp"

#include <algorithm>

#include "attention/elements.hpp"
#include "attention/reference.hpp"

namespace heed::front {
namespace {

void run_reference(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs, const Sequences& sequences) {
  const ReferenceForward result = reference_forward(arguments, sizes, sequences);
  round_into(outputs.out, result.out);
  if (outputs.lse) round_into(outputs.lse, result.lse);
  if (outputs.row_max) round_into(outputs.row_max, result.row_max);
}

/// The same call with integers widened: many rows of queries pay for a copy of the keys and values, [B, Lk, Hkv, D] and [.., Dv] floats.
struct Dequantized {
  Dequantized(const Arguments& a, Storage storage)
      : keys(storage == Storage::kInt8 ? kv::copy_keys(*a.rows) : Tensor()),
        values(storage == Storage::kInt8 ? kv::copy_values(*a.rows) : Tensor()), k(storage == Storage::kInt8 ? keys.view() : a.k),
        v(storage == Storage::kInt8 ? values.view() : a.v), arguments{a.function,  a.q,
                                                                      k,           v,
                                                                      a.options,   a.q_offsets,
                                                                      a.k_offsets, storage == Storage::kInt8 ? nullptr : a.rows} {}
  const Tensor keys, values;
  TensorView k, v;
  Arguments arguments;
};

std::int64_t longest_rows(const Sequences& sequences, std::int64_t group) {
  std::int64_t rows = 0;
  for (const mask::Geometry& geometry : sequences.geometry()) rows = std::max(rows, geometry.tokens * group);
  return rows;
}

}  // namespace

// Two even blocks of two thirds: 64 rows as 32 + 32, not 48 + 16, are 8 % faster at 64 keys.
std::int32_t rows_per_block(const kernels::WideKernel& kernel, std::int64_t longest_rows) {
  const std::int32_t all = kernel.block_rows;
  return longest_rows > all && longest_rows <= all / 3 * 4 ? all / 3 * 2 : all;
}

bool is_narrow(const kernels::NarrowKernel& kernel, std::int64_t tokens, std::int64_t group, std::int64_t keys) {
  constexpr std::int64_t kFewRows = 15, kManyKeys = 512;  // 16 rows over 16 keys are a third slower on the narrow path
  if (tokens == 1) return group <= kernels::kMostNarrowRows;
  return tokens * group <= (keys < kManyKeys ? kFewRows : kernel.good_rows);
}

Choice choose(const Sizes& sizes, DType q, DType kv, Storage storage) {
  Choice choice;
  choice.isa = base::active_isa();
  if (q == DType::kFloat64) return choice;
  const bool is_int8 = storage == Storage::kInt8;
  // The wide path meets integers as float32; kernels convert q and out row by row, so any type of q will do.
  choice.wide = is_int8 ? kernels::wide_kernel(choice.isa, DType::kFloat32, DType::kFloat32) : kernels::wide_kernel(choice.isa, q, kv);
  choice.narrow = is_int8 ? kernels::narrow_int8_kernel(choice.isa) : kernels::narrow_kernel(choice.isa, q, kv);
  if (choice.wide == nullptr || choice.narrow == nullptr) return choice;
  choice.path = is_narrow(*choice.narrow, sizes.q_tokens, sizes.group, sizes.kv_tokens) ? Path::kNarrow : Path::kWide;
  return choice;
}

Tensor make_out(const Arguments& a, const Sizes& s) { return Tensor::with_order_of(a.q.dtype(), out_shape(a, s), a.q.strides()); }

void run_forward(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs, const Sequences& sequences) {
  const Storage storage = arguments.rows != nullptr && arguments.rows->is_quantized() ? Storage::kInt8 : Storage::kTensor;
  const Choice choice = choose(sizes, arguments.q.dtype(), arguments.k.dtype(), storage);
  if (choice.path == Path::kReference) return run_reference(arguments, sizes, outputs, sequences);
  Sequences narrow(sequences.count()), wide(sequences.count());
  for (std::size_t n = 0; n < sequences.geometry().size(); ++n) {
    const mask::Geometry& geometry = sequences.geometry()[n];
    if (geometry.tokens == 0) continue;
    const bool is_few = is_narrow(*choice.narrow, geometry.tokens, sizes.group, geometry.keys);
    (is_few ? narrow : wide).add(geometry, sequences.places()[n]);
  }
  if (wide.count() > 0) {
    const std::int32_t block_rows = rows_per_block(*choice.wide, longest_rows(wide, sizes.group));
    const Dequantized dense(arguments, storage);
    run_wide(*choice.wide, KernelCall(dense.arguments, sizes, outputs, wide, block_rows));
  }
  if (narrow.count() > 0) run_narrow(*choice.narrow, KernelCall(arguments, sizes, outputs, narrow, kernels::kMostNarrowRows));
}

}  // namespace heed::front
