// SPDX-License-Identifier: Apache-2.0
// Packed sequences: the public calls, and the rows that no sequence owns.
#include <heed/attention.hpp>

#include <cstring>
#include <limits>

#include "attention/forward.hpp"
#include "attention/packed.hpp"

namespace heed {
namespace front {

void add_sequences(const Arguments& a, const Sizes& sizes, Sequences& sequences) {
  for (std::int64_t s = 0; s < sizes.batch; ++s) {
    const std::int64_t first_query = integer(a.q_offsets, s), first_key = integer(a.k_offsets, s);
    const std::int64_t tokens = integer(a.q_offsets, s + 1) - first_query;
    const std::int64_t keys = integer(a.k_offsets, s + 1) - first_key;
    if (tokens > 0) sequences.add(geometry_of(a.options, s, tokens, keys), {0, first_query, first_key, keys});
  }
}

void clear_rows(const MutableTensorView& rows, std::int64_t begin, std::int64_t end) {
  const auto width = static_cast<std::size_t>(size_bytes(rows.dtype()));
  for (std::int64_t i = begin; i < end; ++i) {
    for (std::int64_t h = 0; h < rows.size(2); ++h) {
      for (std::int64_t d = 0; d < rows.size(3); ++d) std::memset(address(rows, 0, i, h, d), 0, width);
    }
  }
}

namespace {

template <class Real>
void fill_minus_infinity(const MutableTensorView& statistics, std::int64_t begin, std::int64_t end) {
  for (std::int64_t h = 0; h < statistics.size(1); ++h) {
    for (std::int64_t i = begin; i < end; ++i) {
      *static_cast<Real*>(address(statistics, 0, h, i)) = -std::numeric_limits<Real>::infinity();
    }
  }
}

void write_empty_rows(const AttentionOutputs& outputs, std::int64_t begin, std::int64_t end) {
  clear_rows(outputs.out, begin, end);
  for (const MutableTensorView& statistics : {outputs.lse, outputs.row_max}) {
    if (!statistics) continue;
    if (statistics.dtype() == DType::kFloat64) {
      fill_minus_infinity<double>(statistics, begin, end);
    } else {
      fill_minus_infinity<float>(statistics, begin, end);
    }
  }
}

/// For checked arguments and outputs.
void run_packed(const Arguments& packed, const Sizes& sizes, const AttentionOutputs& packed_outputs) {
  const TensorView q = rows_as_batch(packed.q), k = rows_as_batch(packed.k), v = rows_as_batch(packed.v);
  const Arguments arguments{packed.function, q, k, v, packed.options};
  const AttentionOutputs outputs = {.out = rows_as_batch(packed_outputs.out),
                                    .lse = statistics_as_batch(packed_outputs.lse),
                                    .row_max = statistics_as_batch(packed_outputs.row_max)};
  Sequences sequences(sizes.batch);
  add_sequences(packed, sizes, sequences);
  if (sequences.count() > 0) run_forward(arguments, sizes, outputs, sequences);
  write_empty_rows(outputs, 0, integer(packed.q_offsets, 0));
  write_empty_rows(outputs, integer(packed.q_offsets, sizes.batch), sizes.q_tokens);
}

}  // namespace
}  // namespace front

Tensor attention_varlen(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& q_offsets,
                        const TensorView& k_offsets, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_varlen", q, k, v, options, q_offsets, k_offsets};
  const front::Sizes sizes = front::check_packed_inputs(arguments);
  Tensor out = front::make_out(arguments, sizes);
  front::run_packed(arguments, sizes, {.out = out});
  return out;
}

AttentionState attention_varlen_state(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& q_offsets,
                                      const TensorView& k_offsets, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_varlen_state", q, k, v, options, q_offsets, k_offsets};
  const front::Sizes s = front::check_packed_inputs(arguments);
  AttentionState state{front::make_out(arguments, s), Tensor(front::statistics_dtype(q.dtype()), front::statistics_shape(arguments, s))};
  front::run_packed(arguments, s, {.out = state.out, .lse = state.lse});
  return state;
}

void attention_varlen_into(const AttentionOutputs& outputs, const TensorView& q, const TensorView& k, const TensorView& v,
                           const TensorView& q_offsets, const TensorView& k_offsets, const AttentionOptions& options) {
  const front::Arguments arguments{"attention_varlen_into", q, k, v, options, q_offsets, k_offsets};
  const front::Sizes sizes = front::check_packed_inputs(arguments);
  front::check_outputs(arguments, sizes, outputs);
  front::run_packed(arguments, sizes, outputs);
}

}  // namespace heed
