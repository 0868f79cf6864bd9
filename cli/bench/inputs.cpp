// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/inputs.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace heed::cli::bench {
namespace {

/// A linear congruential generator, as a gigabyte must be filled in no time.
void fill(float* data, std::int64_t count, std::uint32_t seed) {
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    data[i] = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  }
}

Shape memory_shape(const Problem& p, std::int64_t tokens, std::int64_t heads) {
  if (p.layout == Layout::kHeadsFirst) return {p.batch, heads, tokens, p.head_dim};
  return {p.batch, tokens, heads, p.head_dim};
}

/// [B, L, H, D] of memory in either order.
template <class View>
View logical(const View& memory, Layout layout) {
  return layout == Layout::kHeadsFirst ? permute(memory, {0, 2, 1, 3}) : memory;
}

struct Backward {
  Inputs inputs;
  Tensor dout_memory;
  TensorView dout;
  AttentionOptions options;
  AttentionState state;
  Tensor dq, dk, dv;

  explicit Backward(const Problem& p)
      : inputs(p), dout_memory(random_tensor(p.dtype, memory_shape(p, p.q_tokens, p.q_heads), 4)),
        dout(logical(dout_memory.view(), p.layout)), options{.mask = p.mask}, state(attention_state(inputs.q, inputs.k, inputs.v, options)),
        dq(Tensor::with_order_of(p.dtype, inputs.q.shape(), inputs.q.strides())),
        dk(Tensor::with_order_of(p.dtype, inputs.k.shape(), inputs.k.strides())),
        dv(Tensor::with_order_of(p.dtype, inputs.v.shape(), inputs.v.strides())) {}
  void run() { attention_backward_into({.dq = dq, .dk = dk, .dv = dv}, dout, inputs.q, inputs.k, inputs.v, state.out, state.lse, options); }
};

/// The longest of L, L/2, L/4, ... at which one backward pass should take less than a second, judged from a short one: cost grows as L^2.
std::int64_t affordable_length(Problem problem) {
  constexpr std::int64_t kShort = 64;
  constexpr double kMostSeconds = 1;
  std::int64_t length = problem.q_tokens;
  if (length <= kShort) return length;
  problem.q_tokens = problem.keys = kShort;
  Backward trial(problem);
  trial.run();
  double seconds = time_of([&] { trial.run(); });
  for (int i = 0; i < 4; ++i) seconds = std::min(seconds, time_of([&] { trial.run(); }));
  const auto cost = [&](std::int64_t tokens) {
    return seconds * static_cast<double>(tokens * tokens) / static_cast<double>(kShort * kShort);
  };
  while (length > kShort && cost(length) > kMostSeconds) length /= 2;
  return length;
}

}  // namespace

const char* to_string(Layout layout) noexcept { return layout == Layout::kHeadsFirst ? "[B,H,L,D]" : "[B,L,H,D]"; }

Problem self_attention(DType dtype, std::int64_t length, std::int64_t head_dim) {
  return {.q_tokens = length, .keys = length, .head_dim = head_dim, .dtype = dtype};
}

std::string shape_text(const Problem& p) {
  const std::string tokens = p.q_tokens == p.keys ? fmt::format("L{}", p.keys) : fmt::format("Lq{} Lk{}", p.q_tokens, p.keys);
  return fmt::format("B{} Hq{} Hkv{} {} D{}", p.batch, p.q_heads, p.kv_heads, tokens, p.head_dim);
}

Tensor random_tensor(DType dtype, const Shape& shape, std::uint32_t seed) {
  Tensor values(DType::kFloat32, shape);
  fill(values.data_as<float>(), element_count(shape), seed);
  return dtype == DType::kFloat32 ? std::move(values) : convert(values, dtype);
}

Inputs::Inputs(const Problem& p)
    : q_memory(random_tensor(p.dtype, memory_shape(p, p.q_tokens, p.q_heads), 1)),
      k_memory(random_tensor(p.dtype, memory_shape(p, p.keys, p.kv_heads), 2)),
      v_memory(random_tensor(p.dtype, memory_shape(p, p.keys, p.kv_heads), 3)), out_memory(p.dtype, memory_shape(p, p.q_tokens, p.q_heads)),
      q(logical(std::as_const(q_memory).view(), p.layout)), k(logical(std::as_const(k_memory).view(), p.layout)),
      v(logical(std::as_const(v_memory).view(), p.layout)), out(logical(out_memory.view(), p.layout)) {}

double forward_flop(const Problem& p) {
  const auto L = static_cast<double>(p.q_tokens);
  const double pairs = p.mask == Mask::causal() ? L * (L + 1) / 2 : L * static_cast<double>(p.keys);
  return 4.0 * pairs * static_cast<double>(p.batch * p.q_heads * p.head_dim);
}

BenchCase forward_case(std::string name, const Problem& problem, std::optional<double> target) {
  const auto inputs = std::make_shared<Inputs>(problem);
  const AttentionOptions options{.mask = problem.mask};
  return {.name = std::move(name),
          .shape = shape_text(problem),
          .dtype = to_string(problem.dtype),
          .yardstick = compute_yardstick(problem.dtype),
          .work = forward_flop(problem),
          .run = [inputs, options] { attention_into({.out = inputs->out}, inputs->q, inputs->k, inputs->v, options); },
          .target = target};
}

BenchCase backward_case(std::string name, Problem problem, std::optional<double> target) {
  const std::int64_t asked = problem.q_tokens;
  problem.q_tokens = problem.keys = affordable_length(problem);
  const auto backward = std::make_shared<Backward>(problem);
  const std::string cut = problem.keys < asked ? fmt::format("cut from L{}: that takes more than a second here", asked) : std::string();
  return {.name = std::move(name),
          .shape = shape_text(problem),
          .dtype = to_string(problem.dtype),
          .yardstick = compute_yardstick(problem.dtype),
          .work = 2.5 * forward_flop(problem),
          .run = [backward] { backward->run(); },
          .target = target,
          .note = cut};
}

}  // namespace heed::cli::bench
