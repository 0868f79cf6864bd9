// SPDX-License-Identifier: Apache-2.0
// Yardsticks of kernels.hpp: the probes of bench/peak on every thread at once.
#include <heed/kernels.hpp>

#include <vector>

#include "base/parallel.hpp"
#include "kernels/registry.hpp"

namespace heed {
namespace {

// One probe's results, a cache line each: the threads must not wait for each other's lines.
struct alignas(64) Slot {
  double work = 0;
  float sink = 0;
};

double total_work(const std::vector<Slot>& slots) {
  double work = 0;
  for (const Slot& slot : slots) work += slot.work;
  return work;
}

using RegisterProbe = double (*)(std::int64_t rounds, float* sink) noexcept;

double run_on_all_threads(RegisterProbe probe, std::int64_t rounds) {
  if (probe == nullptr) return 0;
  const int threads = base::num_threads();
  std::vector<Slot> slots(static_cast<std::size_t>(threads));
  base::parallel_for(threads, threads, [&](std::int64_t task, int /*thread*/) noexcept {
    Slot& slot = slots[static_cast<std::size_t>(task)];
    slot.work = probe(rounds, &slot.sink);
  });
  return total_work(slots);
}

const kernels::PeakKernels& active_probes() { return *kernels::peak_kernels_of(base::active_isa()); }

}  // namespace

double probe_fma(std::int64_t rounds) { return run_on_all_threads(active_probes().fma, rounds); }

double probe_bf16_dot(std::int64_t rounds) { return run_on_all_threads(active_probes().bf16_dot, rounds); }

double probe_read(std::span<const float> memory) {
  constexpr std::int64_t kStep = 256;           // floats: what the probe wants a multiple of
  constexpr std::int64_t kPartsPerThread = 16;  // so that a thread that lost its core is made up for
  const int threads = base::num_threads();
  const std::int64_t parts = threads * kPartsPerThread;
  const std::int64_t length = static_cast<std::int64_t>(memory.size()) / parts / kStep * kStep;
  const auto read = active_probes().read;
  std::vector<Slot> slots(static_cast<std::size_t>(parts));
  base::parallel_for(parts, threads, [&](std::int64_t part, int /*thread*/) noexcept {
    Slot& slot = slots[static_cast<std::size_t>(part)];
    slot.work = read(memory.data() + part * length, length, &slot.sink);
  });
  return total_work(slots);
}

}  // namespace heed
