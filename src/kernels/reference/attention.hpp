// SPDX-License-Identifier: Apache-2.0
// Attention as the formulas read, in float64, one score at a time: the truth that every fast kernel is tested against.
//
// Letters: B batch, Lq and Lk tokens, Hq and Hkv heads, D head dim of q and k, Dv head dim of v. Strides are in elements.
// Nothing here allocates, throws or checks; the caller owns every buffer.
#pragma once

#include <array>
#include <cstdint>

namespace heed::kernels::reference {

/// Four axes over T; a stride of 0 repeats an axis. Null data: not given.
template <class T>
struct Array4 {
  T* data = nullptr;
  std::array<std::int64_t, 4> strides{};

  [[nodiscard]] explicit operator bool() const noexcept { return data != nullptr; }
  [[nodiscard]] T& operator()(std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) const noexcept {
    return data[a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3]];
  }
};

/// May query index i at position p of query head h in batch b attend key j?
using Visible = bool (*)(const void* mask, std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t p, std::int64_t j);

struct Problem {
  std::int64_t kv_tokens = 0;  ///< Lk
  std::int64_t group = 1;      ///< Hq / Hkv
  std::int64_t head_dim = 0, value_dim = 0;
  Array4<const double> q, k, v;  ///< [B, Lq, Hq, D], [B, Lk, Hkv, D], [B, Lk, Hkv, Dv]
  double scale = 1.0;
  double softcap = 0.0;                         ///< 0: off
  Array4<const double> bias;                    ///< [B, Hq, Lq, Lk]; -inf masks
  Array4<const double> slopes;                  ///< [B, Hq, 1, 1]
  Array4<const double> sinks;                   ///< [1, Hq, 1, 1]
  const std::int64_t* query_offsets = nullptr;  ///< [B]: position of query 0
  const std::int64_t* kv_lengths = nullptr;     ///< [B]: keys that exist
  Visible visible = nullptr;
  const void* mask = nullptr;
  std::uint64_t dropout_seed = 0;
  std::uint64_t dropout_threshold = 0;  ///< a weight is kept where its draw is at least this; 0: no dropout
  double dropout_scale = 1.0;           ///< 1 / (1 - p)
};

/// One query of one head.
struct Row {
  std::int64_t b, h, i;
};

struct Outputs {
  Array4<double> out;      ///< [B, Lq, Hq, Dv]
  Array4<double> lse;      ///< [B, Hq, Lq, 1], may be null
  Array4<double> row_max;  ///< [B, Hq, Lq, 1], may be null
};

/// Writes one row of every output. weights: scratch of Lk.
void forward_row(const Problem& problem, const Row& row, const Outputs& outputs, double* weights) noexcept;

/// Everything is added to, so it starts as zeros; axes that were broadcast have stride 0 and sum up by themselves.
struct Gradients {
  Array4<double> dq, dk, dv;  ///< as q, k, v
  Array4<double> dbias;       ///< [B, Hq, Lq, Lk], may be null
  Array4<double> dsinks;      ///< [B, Hq, 1, 1], may be null
};

/// Adds one row's share of the gradients of sum(out * dout); dout [B, Lq, Hq, Dv]. weights: scratch of Lk.
void backward_row(const Problem& problem, const Row& row, const Array4<const double>& dout, const Gradients& gradients,
                  double* weights) noexcept;

}  // namespace heed::kernels::reference
