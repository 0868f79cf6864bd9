// SPDX-License-Identifier: Apache-2.0
// Decode: few packed rows, so K and V are read once and used a few times, and memory is the limit.
//
// A piece of 256 keys goes through three steps, each over the whole piece, so that K and V are two long streams and a row needs one
// maximum and no rescaling:   scores = K q (lanes along D)   ->   weights = exp2(scores - maximum)   ->   out = weights V (lanes along Dv).
// Every score and every element of out is one chain of FMAs in a fixed order, whichever rows and keys share its registers: a row's bits
// do not depend on its neighbours.

#include "kernels/attention/narrow_piece.inl.hpp"
#include "kernels/attention/narrow_scores.inl.hpp"
#include "kernels/attention/narrow_values.inl.hpp"
#include "kernels/attention/dropout.inl.hpp"
#include "kernels/attention/narrow_dropout.inl.hpp"
#include "kernels/attention/narrow_combine.inl.hpp"

namespace decode {

template <class T>
static void run_piece(const ForwardProblem& problem, std::int64_t piece, const PartialState& state, std::byte* scratch) noexcept {
  Piece p = make_piece(problem, piece, scratch, sizeof(T));
  if (p.tile_count > 0) {
    locate_keys(problem, sizeof(T), p);
    pack_queries(problem, p);
    if constexpr (kEvenOdd<T>) deinterleave_rows(p.q, p.q_stride, p.rows, problem.head_dim);
    score_piece<T>(problem, p);
  }
  weigh_rows(p, problem.kv.v_dim_stride == 1 ? problem.value_dim * sizeof(T) : 0, state);
  if (problem.scoring.dropout.factor != 0.0F) drop_weights(problem, p);
  add_values<T>(problem, p, state.out);
}

}  // namespace decode

/// Measured on Emerald Rapids, D 128. The wide path widens 16-bit keys once per row block, so it pays later for them; with 8 lanes it fills its
/// registers with 24 rows.
constexpr std::int32_t kGoodRows = kLanes == 16 ? 23 : 15, kGoodRows16Bit = kLanes == 16 ? 31 : 15;

static constexpr NarrowKernel kNarrowFloat32 = {kGoodRows, decode::scratch_bytes, decode::run_piece<float>, decode::combine};
static constexpr NarrowKernel kNarrowBFloat16 = {kGoodRows16Bit, decode::scratch_bytes, decode::run_piece<bfloat16>, decode::combine};
static constexpr NarrowKernel kNarrowFloat16 = {kGoodRows16Bit, decode::scratch_bytes, decode::run_piece<float16>, decode::combine};
// q and out are converted row by row, so that a kernel depends on the type of k and v only.
extern const NarrowKernels narrow_kernels = {{{&kNarrowFloat32, &kNarrowBFloat16, &kNarrowFloat16},
                                              {nullptr, &kNarrowBFloat16, &kNarrowFloat16},
                                              {nullptr, &kNarrowBFloat16, &kNarrowFloat16}}};
