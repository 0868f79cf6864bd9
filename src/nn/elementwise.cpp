// SPDX-License-Identifier: Apache-2.0
#include "nn/elementwise.hpp"

#include <algorithm>

#include "base/cpu.hpp"
#include "base/parallel.hpp"
#include "kernels/registry.hpp"

namespace heed::nn {
namespace {

// Values per task. A task of this size takes about 5 us, a few times what handing it out costs; a single token's row is one task,
// so generation never leaves the calling thread here. The cut depends on the size alone.
constexpr std::int64_t kTaskValues = 16384;

const kernels::ElementwiseKernels& active() { return *kernels::elementwise_kernels_of(base::active_isa()); }

/// body(begin, end) over [0, count) in pieces of `piece`.
template <class Body>
void for_pieces(std::int64_t count, std::int64_t piece, const Body& body) {
  const std::int64_t tasks = (count + piece - 1) / piece;
  const int threads = tasks > 1 ? base::num_threads() : 1;
  base::parallel_for(tasks, threads,
                     [&](std::int64_t task, int /*thread*/) noexcept { body(task * piece, std::min(count, (task + 1) * piece)); });
}

}  // namespace

void rms_norm(float* y, const float* x, const float* weight, std::int64_t rows, std::int64_t width, double epsilon) {
  const auto kernel = active().rms_norm_row;
  const auto eps = static_cast<float>(epsilon);
  for_pieces(rows, std::max<std::int64_t>(kTaskValues / width, 1), [&](std::int64_t begin, std::int64_t end) noexcept {
    for (std::int64_t r = begin; r < end; ++r) kernel(y + r * width, x + r * width, weight, width, eps);
  });
}

void add(float* y, const float* x, std::int64_t count) {
  const auto kernel = active().add;
  for_pieces(count, kTaskValues, [&](std::int64_t begin, std::int64_t end) noexcept { kernel(y + begin, x + begin, end - begin); });
}

void silu_multiply(float* gate, const float* up, std::int64_t count) {
  const auto kernel = active().silu_multiply;
  for_pieces(count, kTaskValues, [&](std::int64_t begin, std::int64_t end) noexcept { kernel(gate + begin, up + begin, end - begin); });
}

void gelu_tanh_multiply(float* gate, const float* up, std::int64_t count) {
  const auto kernel = active().gelu_tanh_multiply;
  for_pieces(count, kTaskValues, [&](std::int64_t begin, std::int64_t end) noexcept { kernel(gate + begin, up + begin, end - begin); });
}

}  // namespace heed::nn
