// SPDX-License-Identifier: Apache-2.0
// Random packed sequences, and the same sequences one by one.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "support/attention.hpp"

namespace heed::test {

inline Tensor integers(const std::vector<std::int64_t>& values, DType dtype = DType::kInt64) {
  Tensor tensor(DType::kInt64, {static_cast<std::int64_t>(values.size())});
  for (std::size_t n = 0; n < values.size(); ++n) tensor.data_as<std::int64_t>()[n] = values[n];
  return convert(tensor, dtype);
}

/// Random sequences around every block edge and both sides of the borders between the narrow and the wide path, with every option: 15 rows,
/// from 512 keys on 23 or 31 of them, and any number of one token.
class PackedCase {
 public:
  PackedCase(std::uint64_t seed, DType dtype) : engine_(seed) {
    sequences = 1 + below(4);
    kv_heads = 1 + below(2);
    const std::int64_t group = std::array<std::int64_t, 6>{1, 2, 3, 4, 7, 20}[static_cast<std::size_t>(below(6))];
    q_heads = kv_heads * group;
    const std::int64_t dim = std::array<std::int64_t, 4>{8, 16, 33, 64}[static_cast<std::size_t>(below(4))];
    const std::int64_t value_dim = below(2) == 0 ? dim : 24;
    q_starts = starts(group > 15 ? kSingleTokens : kTokens);
    k_starts = starts(kKeys);
    q = random_normal({q_starts.back() + below(3), q_heads, dim}, dtype, engine_());
    const std::int64_t rows = k_starts.back() + below(3);
    k = random_normal({rows, kv_heads, dim}, dtype, engine_());
    v = random_normal({rows, kv_heads, value_dim}, dtype, engine_());
    q_offsets = integers(q_starts, below(2) == 0 ? DType::kInt64 : DType::kInt32);
    k_offsets = integers(k_starts, below(2) == 0 ? DType::kInt64 : DType::kInt32);
    choose_options();
  }

  [[nodiscard]] std::int64_t tokens(std::int64_t s) const { return length(q_starts, s); }
  [[nodiscard]] std::int64_t keys(std::int64_t s) const { return length(k_starts, s); }

  /// Sequence s of a packed tensor as a batch of S copies, so that entry s of them is sequence s to masks and options.
  [[nodiscard]] TensorView copies(const Tensor& packed, const std::vector<std::int64_t>& starts, std::int64_t s) const {
    const TensorView rows = slice(packed.view(), 0, starts[static_cast<std::size_t>(s)], length(starts, s));
    const Shape& n = rows.shape();
    const Strides& d = rows.strides();
    return {rows.data(), rows.dtype(), {sequences, n[0], n[1], n[2]}, {0, d[0], d[1], d[2]}};
  }

  /// Calls run(q, k, v, options) with such copies of sequence s.
  template <class Run>
  auto separately(std::int64_t s, const Run& run) const {
    AttentionOptions own = options;
    Tensor lengths;
    if (options.kv_lengths) {
      std::vector<std::int64_t> values;
      for (std::int64_t b = 0; b < sequences; ++b) {
        values.push_back(std::min(keys(s), static_cast<std::int64_t>(element(options.kv_lengths, {b}))));
      }
      lengths = integers(values);
      own.kv_lengths = lengths;
    }
    return run(copies(q, q_starts, s), copies(k, k_starts, s), copies(v, k_starts, s), own);
  }

  std::int64_t sequences = 1, q_heads = 1, kv_heads = 1;
  std::vector<std::int64_t> q_starts, k_starts;
  Tensor q, k, v, q_offsets, k_offsets;
  AttentionOptions options;

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n)); }

  static std::int64_t length(const std::vector<std::int64_t>& starts, std::int64_t s) {
    return starts[static_cast<std::size_t>(s) + 1] - starts[static_cast<std::size_t>(s)];
  }

  using Lengths = std::array<std::int64_t, 16>;
  static constexpr Lengths kTokens = {0, 1, 2, 4, 5, 15, 16, 17, 23, 24, 31, 32, 50, 64, 70, 130};
  static constexpr Lengths kSingleTokens = {0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 3, 4, 5, 7, 16};
  static constexpr Lengths kKeys = {0, 1, 2, 5, 15, 16, 17, 31, 32, 64, 70, 130, 511, 512, 513, 600};
  static constexpr std::int64_t kMostTokens = 130, kMostKeys = 600, kMostPositions = 800;

  std::vector<std::int64_t> starts(const Lengths& lengths) {
    std::vector<std::int64_t> result = {below(3)};
    for (std::int64_t s = 0; s < sequences; ++s) result.push_back(result.back() + lengths[static_cast<std::size_t>(below(16))]);
    return result;
  }

  Mask mask() {
    switch (below(6)) {
      case 0: return Mask::none();
      case 1: return Mask::causal();
      case 2: return Mask::window(5 + below(40), below(10)) | Mask::sink_tokens(3);
      case 3: {
        Tensor ids(DType::kInt32, {sequences, kMostPositions});
        for (std::int64_t n = 0; n < sequences * kMostPositions; ++n) {
          ids.data_as<std::int32_t>()[n] = static_cast<std::int32_t>(n % kMostPositions / (10 + n / kMostPositions));
        }
        return Mask::causal() & Mask::documents(keep(std::move(ids)));
      }
      case 4: {
        Tensor bits(DType::kBool, {sequences, q_heads, kMostTokens, kMostKeys});
        for (std::int64_t n = 0; n < element_count(bits.shape()); ++n) bits.data_as<bool>()[n] = engine_() % 3 != 0;
        return Mask::from_tensor(keep(std::move(bits)));
      }
      default: {
        std::vector<Mask> masks;
        for (std::int64_t h = 0; h < q_heads; ++h) masks.push_back(h % 2 == 0 ? Mask::causal() : Mask::sliding_window(9));
        return Mask::per_head(masks);
      }
    }
  }

  void choose_options() {
    options.mask = mask();
    if (below(3) == 0) options.align = Align::kTopLeft;
    if (below(3) == 0) options.softcap = 5.0;
    if (below(3) == 0) options.scale = 0.4;
    if (below(3) == 0) {
      options.alibi_slopes =
          keep(random_normal(below(2) == 0 ? Shape{q_heads} : Shape{sequences, q_heads}, DType::kFloat32, engine_(), 0.1));
    }
    if (below(3) == 0) options.sink_logits = keep(random_normal({q_heads}, DType::kFloat32, engine_(), 2.0));
    std::vector<std::int64_t> offsets(static_cast<std::size_t>(below(2) == 0 ? 1 : sequences));
    for (std::int64_t& offset : offsets) offset = below(100) - 20;
    if (below(4) == 0) options.query_offset = keep(integers(offsets));
    std::vector<std::int64_t> lengths;
    for (std::int64_t s = 0; s < sequences; ++s) lengths.push_back(below(keys(s) + 1));
    if (below(3) == 0) options.kv_lengths = keep(integers(lengths, below(2) == 0 ? DType::kInt64 : DType::kInt32));
    if (below(3) == 0) options.dropout = Dropout{0.3, engine_()};
  }

  TensorView keep(Tensor tensor) {
    kept_.push_back(std::make_unique<Tensor>(std::move(tensor)));
    return std::as_const(*kept_.back()).view();
  }

  std::mt19937_64 engine_;
  std::vector<std::unique_ptr<Tensor>> kept_;
};

}  // namespace heed::test
