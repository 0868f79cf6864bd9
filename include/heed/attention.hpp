// SPDX-License-Identifier: Apache-2.0
// Scaled dot-product attention. This page is the manual; everything else in heed serves it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <heed/export.hpp>
#include <heed/mask.hpp>
#include <heed/tensor.hpp>

namespace heed {

class KvView;

/// Where query i sits among the keys when Lq and Lk differ.
///              Mask::causal(), Lq=2 Lk=4      Lq=3 Lk=2
///   kBottomRight   1 1 1 0                     0 0        query i sits at i + Lk - Lq: the last query sees every key,
///                  1 1 1 1                     1 0        what generation with a cache needs
///                                              1 1
///   kTopLeft       1 0 0 0                     1 0        query i sits at i: torch's is_causal
///                  1 1 0 0                     1 1
///                                              1 1
enum class Align : std::uint8_t { kBottomRight, kTopLeft };

/// Dropout on the softmax weights, by Philox 4x32-10 with key `seed` and counter (key / 4, row, query head, batch): the same bits
/// in forward and backward, whatever the tiling, the ISA and the number of threads. A weight is kept where its 32-bit draw is
/// >= p * 2^32, and divided by 1 - p.
struct Dropout {
  double p = 0.0;  // in [0, 1)
  std::uint64_t seed = 0;
};

/// Everything that is optional. Use designated initialisers: {.mask = Mask::causal(), .softcap = 30.0}.
/// Scores are made in this order: scale -> softcap -> bias, ALiBi -> mask -> sink -> softmax -> dropout.
struct AttentionOptions {
  Mask mask = {};
  Align align = Align::kBottomRight;
  std::optional<double> scale = {};    ///< 1/sqrt(D) when not given; 0 is a legal value
  std::optional<double> softcap = {};  ///< s <- c * tanh(s / c), c > 0 (Gemma 2)
  /// Added to the scores: up to 4 axes, right-aligned broadcast over [B, Hq, Lq, Lk]; float32 or q's dtype; -inf masks.
  TensorView bias = {};
  TensorView alibi_slopes = {};  ///< float32 (or float64 as q) [Hq] or [B, Hq]: -slope * |p - j| is added
  TensorView sink_logits = {};   ///< float32 (or float64 as q) [Hq]: learned logits that join the denominator only (gpt-oss)
  TensorView query_offset = {};  ///< int64 or int32 [1] or [B]: query i sits at query_offset[b] + i; overrides align
  TensorView kv_lengths = {};    ///< int64 or int32 [B]: keys at and past it do not exist; kBottomRight then means i + kv_lengths[b] - Lq
  std::optional<Dropout> dropout = {};
};

/// Attention over contiguous keys and values.
///
///   out[b,i,h] = sum_j w[j] * v[b,j,h/G]      w = softmax_j(scale * dot(q[b,i,h], k[b,j,h/G]) + bias(b,h,i,j))
///   G = Hq / Hkv query heads share one key/value head: G = 1 is multi-head, Hkv = 1 is multi-query attention.
///
/// Shapes   q [B,Lq,Hq,D]   k [B,Lk,Hkv,D]   v [B,Lk,Hkv,Dv]   out [B,Lq,Hq,Dv]. Any strides. D and Dv from 1 to 1024; Hkv divides Hq;
///          any size of B, Lq, Lk may be 0.
/// Types    float32, bfloat16, float16; k and v alike, and as wide as q or narrower. float64 (all three) runs through the reference.
///          Sums, softmax and lse are float32 (float64 for float64); the result is rounded once, to q's dtype.
/// Mask     A row without a visible key gives out = 0, never NaN. A masked slot never changes a result, whatever it holds.
/// Accuracy Error against float64 at most twice that of a plain implementation in the same dtype; see docs/accuracy.md.
/// Cost     2*B*Hq*Lq*Lk*(D+Dv) flop over the visible tiles. Scratch from the calling thread's arena: O(threads * (D+Dv)), in decode also a
///          partial result (Dv + 3 floats) for each of up to 64 rows of a KV head, per 256 keys; no L x L matrix. Repeated attention_into
///          calls allocate nothing, float64 and mask plans above 64 MB aside.
/// Threads  OpenMP; safe to call from several threads at once. Same bits for any number of threads, batch size and batch neighbours.
/// Throws   InvalidArgument naming the argument, before anything is written; std::bad_alloc.
/// Source   online softmax: arXiv 1805.02867; tiling: arXiv 2307.08691, section 3.
/// Example  examples/01_first_attention.cpp
[[nodiscard]] HEED_API Tensor attention(const TensorView& q, const TensorView& k, const TensorView& v,
                                        const AttentionOptions& options = {});

/// The same over a KV cache: q [B,Lq,Hq,D] are the newest Lq tokens. See kv_cache.hpp.
[[nodiscard]] HEED_API Tensor attention(const TensorView& q, const KvView& cache, const AttentionOptions& options = {});

/// What backward and merging need beside the inputs.
struct AttentionState {
  Tensor out;  ///< [B,Lq,Hq,Dv], q's dtype
  /// [B,Hq,Lq] float32 (float64 for float64): natural log of the whole softmax denominator, scale, bias and sink included.
  /// Without a visible key: the sink logit, else -inf.
  Tensor lse;
};
[[nodiscard]] HEED_API AttentionState attention_state(const TensorView& q, const TensorView& k, const TensorView& v,
                                                      const AttentionOptions& options = {});
[[nodiscard]] HEED_API AttentionState attention_state(const TensorView& q, const KvView& cache, const AttentionOptions& options = {});

/// Where attention_into writes. None of them may overlap an input or each other.
struct AttentionOutputs {
  MutableTensorView out = {};  ///< [B,Lq,Hq,Dv], q's dtype, any strides; required
  MutableTensorView lse = {};  ///< [B,Hq,Lq] float32 (float64 for float64), optional
  /// As lse, optional: the true maximum of the visible scores after scale, softcap and bias; -inf without a visible key.
  MutableTensorView row_max = {};
};
HEED_API void attention_into(const AttentionOutputs& outputs, const TensorView& q, const TensorView& k, const TensorView& v,
                             const AttentionOptions& options = {});
HEED_API void attention_into(const AttentionOutputs& outputs, const TensorView& q, const KvView& cache,
                             const AttentionOptions& options = {});

/// Sequences of different lengths packed behind each other, without padding. Sequence s owns rows [q_offsets[s], q_offsets[s + 1]) of q and
/// [k_offsets[s], k_offsets[s + 1]) of k and v, and means exactly what attention() over those slices means, to the bit.
///
/// Shapes   q [Tq,Hq,D]   k [Tk,Hkv,D]   v [Tk,Hkv,Dv]   q_offsets, k_offsets [S + 1]   out [Tq,Hq,Dv]   lse [Hq,Tq]. Any strides.
///          Offsets never fall, from at least 0 to at most Tq and Tk; sequences without queries or keys are fine. Rows of q that no
///          sequence owns give out = 0 and lse = -inf.
/// Types    As attention(); offsets int32 or int64.
/// Options  B is S and sequence s is batch entry s: for masks, dropout, alibi_slopes [Hq] or [S,Hq], query_offset [1] or [S], and
///          kv_lengths [S], counted from the sequence's first key. Positions count from the sequence's own start. No bias.
/// Throws   InvalidArgument naming the argument, before anything is written; std::bad_alloc.
/// Example  examples/07_packed_sequences.cpp
[[nodiscard]] HEED_API Tensor attention_varlen(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& q_offsets,
                                               const TensorView& k_offsets, const AttentionOptions& options = {});
[[nodiscard]] HEED_API AttentionState attention_varlen_state(const TensorView& q, const TensorView& k, const TensorView& v,
                                                             const TensorView& q_offsets, const TensorView& k_offsets,
                                                             const AttentionOptions& options = {});
/// outputs: out [Tq,Hq,Dv], lse and row_max [Hq,Tq].
HEED_API void attention_varlen_into(const AttentionOutputs& outputs, const TensorView& q, const TensorView& k, const TensorView& v,
                                    const TensorView& q_offsets, const TensorView& k_offsets, const AttentionOptions& options = {});

/// Gradients, each with the shape and dtype of its argument; dbias and dsink_logits are empty where the option was not given.
struct AttentionGrads {
  Tensor dq, dk, dv, dbias, dsink_logits;
};

/// Gradients of sum(out * dout), for every option that has one. `state` is what attention_state returned for the same arguments and options.
///
///   P = exp(S - lse)   dP = dO V^T   dS = P * (dP - delta)   dq = scale * dS K   dk = scale * dS^T q   dv = P^T dO   delta = rowsum(dO * O)
///
/// Shapes   dout as out, [B,Lq,Hq,Dv], any floating type and strides; the gradients as their arguments, in memory in the order of their axes.
/// Types    As attention. Sums are float32, each gradient is rounded once; float64 runs through the reference.
/// Mask     A row without a visible key has zero gradients and gives none to any key. A masked slot never changes a result.
/// Accuracy Error against float64 at most three times that of a plain implementation in the same dtype; see docs/accuracy.md.
/// Cost     2*B*Hq*Lq*Lk*(3*D+2*Dv) flop over the visible tiles. Scratch: G*Lq*D floats for each thread and once more (at most all of
///          dq), 2 floats per row, 1 to 3 MB per thread; for a 16-bit bias with a gradient its size in float32. No L x L matrix.
/// Threads  As attention. Same bits for any number of threads; deterministic: nothing is added in the order of arrival. One thread
///          works alone where a bias is broadcast over keys, or over batch or heads while sequences have different key ranges.
/// Throws   InvalidArgument naming the argument, before anything is written; std::bad_alloc.
/// Source   arXiv 2307.08691, section 3.1.2, algorithm 2.
/// Example  examples/04_gradients.cpp
[[nodiscard]] HEED_API AttentionGrads attention_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                                                         const TensorView& v, const AttentionState& state,
                                                         const AttentionOptions& options = {});

/// Where attention_backward_into writes: shapes and types of the arguments, any strides. None of them may overlap an input or each
/// other.
struct AttentionGradOutputs {
  MutableTensorView dq = {}, dk = {}, dv = {};  ///< required
  MutableTensorView dbias = {};                 ///< optional, where a bias is given
  MutableTensorView dsink_logits = {};          ///< optional, where sink logits are given
};
/// out [B,Lq,Hq,Dv] and lse [B,Hq,Lq]: what attention_state returned.
HEED_API void attention_backward_into(const AttentionGradOutputs& gradients, const TensorView& dout, const TensorView& q,
                                      const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse,
                                      const AttentionOptions& options = {});

/// Gradients of packed sequences: of each what attention_backward gives for its slices, to the bit; `state` is what attention_varlen_state
/// returned. dsink_logits is summed over all of them. Rows of q, k and v that no sequence owns have zero gradients.
///
/// Shapes   dout, out [Tq,Hq,Dv]   lse [Hq,Tq]   dq, dk, dv as q, k, v   offsets [S + 1], as attention_varlen. No bias, so no dbias.
/// Throws   InvalidArgument naming the argument, before anything is written; std::bad_alloc.
[[nodiscard]] HEED_API AttentionGrads attention_varlen_backward(const TensorView& dout, const TensorView& q, const TensorView& k,
                                                                const TensorView& v, const AttentionState& state,
                                                                const TensorView& q_offsets, const TensorView& k_offsets,
                                                                const AttentionOptions& options = {});
HEED_API void attention_varlen_backward_into(const AttentionGradOutputs& gradients, const TensorView& dout, const TensorView& q,
                                             const TensorView& k, const TensorView& v, const TensorView& out, const TensorView& lse,
                                             const TensorView& q_offsets, const TensorView& k_offsets,
                                             const AttentionOptions& options = {});

/// Joins attention over disjoint sets of keys into attention over their union, exactly: out = sum_i exp(lse_i - lse) * out_i,
/// lse = log sum_i exp(lse_i). States of one shape and dtype; a sink logit may have been part of one of them only.
/// Throws   InvalidArgument naming the state and its part; std::bad_alloc.
/// Source   arXiv 2501.01005, section 2.2.
[[nodiscard]] HEED_API AttentionState merge_states(std::span<const AttentionState> states);

/// Which kernel a call with these shapes would run, on which ISA, and why a faster one does not apply. For people; the wording may change.
[[nodiscard]] HEED_API std::string explain(const Shape& q, const Shape& k, DType dtype, const AttentionOptions& options = {});

}  // namespace heed
