// SPDX-License-Identifier: Apache-2.0
// Attention problems of random values, as cases to be measured.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <heed/heed.hpp>

#include "cli/bench/measure.hpp"

namespace heed::cli::bench {

/// How q, k, v and out lie in memory; the logical axes stay [B, L, H, D].
enum class Layout {
  kHeadsFirst,  ///< [B, H, L, D] compact: PyTorch's own
  kTokensFirst  ///< [B, L, H, D] compact: what a projection writes
};
[[nodiscard]] const char* to_string(Layout layout) noexcept;

struct Problem {
  std::int64_t batch = 1, q_heads = 8, kv_heads = 8, q_tokens = 2048, keys = 2048, head_dim = 128;
  DType dtype = DType::kFloat32;
  Layout layout = Layout::kHeadsFirst;
  Mask mask = {};
};
/// L queries and as many keys.
[[nodiscard]] Problem self_attention(DType dtype, std::int64_t length, std::int64_t head_dim);
/// "B1 Hq8 Hkv8 L2048 D128"
[[nodiscard]] std::string shape_text(const Problem& problem);

/// Values in [-1, 1), the same for the same seed.
[[nodiscard]] Tensor random_tensor(DType dtype, const Shape& shape, std::uint32_t seed);

/// Owns q, k, v and out.
struct Inputs {
  explicit Inputs(const Problem& problem);
  Tensor q_memory, k_memory, v_memory, out_memory;
  TensorView q, k, v;     ///< [B, L, H, D]
  MutableTensorView out;  ///< [B, Lq, Hq, D]
};

/// Flop of a forward pass without a mask, or under a causal one at Lq = Lk: 4 * D for each visible (query head, query, key).
[[nodiscard]] double forward_flop(const Problem& problem);

/// attention_into on the problem, against compute_yardstick().
[[nodiscard]] BenchCase forward_case(std::string name, const Problem& problem, std::optional<double> target = {});

/// attention_backward_into on the problem: 2.5 times the forward's flop. Cut to a shorter L, with a note, where the machine would take more
/// than a second.
[[nodiscard]] BenchCase backward_case(std::string name, Problem problem, std::optional<double> target = {});

}  // namespace heed::cli::bench
