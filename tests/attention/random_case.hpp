// SPDX-License-Identifier: Apache-2.0
// Random attention calls: sizes around every block edge, every option on its own and with the others, tensors in every memory order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/attention.hpp"

namespace heed::test {

/// A view and whatever memory it looks into.
struct Held {
  Tensor memory;
  TensorView view;
};

class RandomCase {
 public:
  RandomCase(std::uint64_t seed, DType dtype) : engine_(seed), seed_(seed) {
    sizes();
    const DType kv = one_in(4) && dtype == DType::kFloat32 ? (one_in(2) ? DType::kBFloat16 : DType::kFloat16) : dtype;
    q = tensor({batch, q_tokens, q_heads, dim}, dtype);
    k = tensor({batch, kv_tokens, kv_heads, dim}, kv);
    v = tensor({batch, kv_tokens, kv_heads, value_dim}, kv);
    if (one_in(10) && value_dim <= dim) v.view = slice(k.view, 3, 0, value_dim);  // V a view of K, as in MLA
    choose_options(dtype);
  }

  Held q, k, v;
  AttentionOptions options;

  [[nodiscard]] std::string describe() const {
    std::ostringstream text;
    text << "seed " << seed_ << ": q " << to_string(q.view.shape()) << " strides " << to_string(q.view.strides()) << ' '
         << to_string(q.view.dtype()) << ", k " << to_string(k.view.shape()) << " strides " << to_string(k.view.strides()) << ' '
         << to_string(k.view.dtype()) << ", Dv " << value_dim << " strides " << to_string(v.view.strides()) << ", mask "
         << options.mask.to_string() << (options.align == Align::kTopLeft ? ", top left" : "");
    if (options.scale) text << ", scale " << *options.scale;
    if (options.softcap) text << ", softcap " << *options.softcap;
    if (options.bias) text << ", bias " << to_string(options.bias.shape()) << ' ' << to_string(options.bias.dtype());
    if (options.alibi_slopes) text << ", alibi";
    if (options.sink_logits) text << ", sinks";
    if (options.query_offset) text << ", query_offset";
    if (options.kv_lengths) text << ", kv_lengths";
    if (options.dropout) text << ", dropout " << options.dropout->p;
    return text.str();
  }

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n)); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  std::int64_t pick(const std::vector<std::int64_t>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }

  void sizes() {
    batch = pick({1, 1, 2, 3});
    kv_heads = pick({1, 1, 2, 3});
    q_heads = kv_heads * pick({1, 1, 2, 3, 4, 7});
    q_tokens = pick({1, 1, 2, 3, 5, 16, 17, 24, 33, 49, 50});
    kv_tokens = one_in(3) ? 1 + below(150) : pick({1, 2, 7, 63, 64, 65, 127, 128, 129, 190, 257});
    dim = pick({1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 40, 64});
    value_dim = one_in(2) ? dim : pick({1, 2, 7, 8, 16, 17, 31, 33, 40, 48});
    if (q_tokens * q_heads * kv_tokens * batch > 60000) batch = 1;  // the reference takes its time
  }

  /// Random numbers behind one of several stride patterns; all give the same shape.
  Held tensor(const Shape& shape, DType dtype) {
    const std::uint64_t seed = engine_();
    switch (below(7)) {
      case 0: {  // [B, H, L, D] in memory
        Held held{random_normal({shape[0], shape[2], shape[1], shape[3]}, dtype, seed), {}};
        held.view = permute(std::as_const(held.memory).view(), {0, 2, 1, 3});
        return held;
      }
      case 1: {  // D not contiguous
        Held held{random_normal({shape[0], shape[3], shape[1], shape[2]}, dtype, seed), {}};
        held.view = permute(std::as_const(held.memory).view(), {0, 2, 3, 1});
        return held;
      }
      case 2: {  // tokens backwards
        Held held{random_normal(shape, dtype, seed), {}};
        const Strides& s = held.memory.strides();
        const auto* last = static_cast<const std::byte*>(std::as_const(held.memory).data()) + (shape[1] - 1) * s[1] * size_bytes(dtype);
        held.view = TensorView(last, dtype, shape, {s[0], -s[1], s[2], s[3]});
        return held;
      }
      case 3: {  // a part of a larger tensor, at an odd offset
        Held held{random_normal({shape[0], shape[1] + 2, shape[2] + 1, shape[3] + 3}, dtype, seed), {}};
        held.view = slice(slice(slice(std::as_const(held.memory).view(), 1, 1, shape[1]), 2, 1, shape[2]), 3, 1, shape[3]);
        return held;
      }
      case 4: {  // one batch entry and one head for all
        Held held{random_normal({1, shape[1], 1, shape[3]}, dtype, seed), {}};
        held.view = TensorView(std::as_const(held.memory).data(), dtype, shape, {0, shape[3], 0, 1});
        return held;
      }
      default: {
        Held held{random_normal(shape, dtype, seed), {}};
        held.view = std::as_const(held.memory).view();
        return held;
      }
    }
  }

  Mask leaf() {
    switch (below(9)) {
      case 0: return Mask::none();
      case 1: return Mask::window(below(40), below(10));
      case 2: return Mask::window(std::nullopt, below(70));
      case 3: return Mask::sliding_window(1 + below(70));
      case 4: return Mask::prefix_lm(below(80));
      case 5: return Mask::sink_tokens(below(5));
      case 6: return Mask::documents(ids());
      case 7: return Mask::from_tensor(random_bits());
      default: return Mask::causal();
    }
  }

  Mask mask() {
    switch (below(8)) {
      case 0: return Mask::none();
      case 1:
      case 2: return Mask::causal();
      case 3: return leaf();
      case 4: return leaf() & leaf();
      case 5: return leaf() | leaf();
      case 6: return Mask::causal() & ~leaf();
      default: {
        std::vector<Mask> masks;
        for (std::int64_t h = 0; h < q_heads; ++h) masks.push_back(leaf());
        return Mask::per_head(masks);
      }
    }
  }

  TensorView ids() {
    Tensor tensor(DType::kInt32, {kv_tokens + q_tokens});
    const std::int64_t length = 1 + below(60);
    for (std::int64_t n = 0; n < kv_tokens + q_tokens; ++n) tensor.data_as<std::int32_t>()[n] = static_cast<std::int32_t>(n / length);
    return keep(std::move(tensor));
  }

  TensorView random_bits() {
    Tensor tensor(DType::kBool, {one_in(2) ? 1 : q_heads, q_tokens, kv_tokens});
    const std::int64_t density = 1 + below(4);
    for (std::int64_t n = 0; n < element_count(tensor.shape()); ++n) tensor.data_as<bool>()[n] = below(density + 1) != 0;
    return keep(std::move(tensor));
  }

  void choose_options(DType dtype) {
    options.mask = mask();
    if (one_in(3)) options.align = Align::kTopLeft;
    if (one_in(4)) options.scale = std::array<double, 4>{0.0, 0.5, -0.7, 1.3}[static_cast<std::size_t>(below(4))];
    if (one_in(4)) options.softcap = std::array<double, 3>{0.5, 5.0, 30.0}[static_cast<std::size_t>(below(3))];
    if (one_in(3)) options.bias = bias(one_in(2) ? dtype : DType::kFloat32);
    if (one_in(4))
      options.alibi_slopes = keep(random_normal(one_in(2) ? Shape{q_heads} : Shape{batch, q_heads}, DType::kFloat32, engine_(), 0.1));
    if (one_in(4)) options.sink_logits = keep(random_normal({q_heads}, DType::kFloat32, engine_(), 2.0));
    if (one_in(5)) options.query_offset = offsets();
    if (one_in(4)) options.kv_lengths = lengths();
    if (one_in(4)) options.dropout = Dropout{std::array<double, 3>{0.1, 0.5, 0.8}[static_cast<std::size_t>(below(3))], engine_()};
  }

  TensorView bias(DType dtype) {
    const Shape full = {batch, q_heads, q_tokens, kv_tokens};
    const int rank = static_cast<int>(1 + below(4));
    std::vector<std::int64_t> shape;
    for (int axis = 4 - rank; axis < 4; ++axis) shape.push_back(one_in(3) ? 1 : full[axis]);
    Tensor wide = random_normal(Shape(shape), DType::kFloat32, engine_());
    if (one_in(2)) {
      for (std::int64_t n = 0; n < element_count(wide.shape()); ++n) {
        if (one_in(6)) wide.data_as<float>()[n] = -std::numeric_limits<float>::infinity();
      }
    }
    return keep(convert(wide, dtype));
  }

  TensorView offsets() {
    Tensor tensor(DType::kInt64, {one_in(2) ? 1 : batch});
    for (std::int64_t b = 0; b < tensor.shape()[0]; ++b) tensor.data_as<std::int64_t>()[b] = below(2 * kv_tokens) - kv_tokens / 2;
    return keep(std::move(tensor));
  }

  TensorView lengths() {
    Tensor tensor(DType::kInt64, {batch});
    for (std::int64_t b = 0; b < batch; ++b) tensor.data_as<std::int64_t>()[b] = below(kv_tokens + 1);
    return keep(one_in(2) ? std::move(tensor) : convert(tensor, DType::kInt32));
  }

  TensorView keep(Tensor tensor) {
    kept_.push_back(std::make_unique<Tensor>(std::move(tensor)));
    return std::as_const(*kept_.back()).view();
  }

  std::int64_t batch = 1, q_tokens = 1, kv_tokens = 1, q_heads = 1, kv_heads = 1, dim = 1, value_dim = 1;
  std::mt19937_64 engine_;
  std::uint64_t seed_;
  std::vector<std::unique_ptr<Tensor>> kept_;
};

}  // namespace heed::test
