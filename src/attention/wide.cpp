// SPDX-License-Identifier: Apache-2.0
// Wide path: a task is a run of row blocks of one (batch, KV head), which share one pass over its keys.
#include <algorithm>
#include <new>

#include "attention/forward.hpp"
#include "base/parallel.hpp"

namespace heed::front {
namespace {

/// Tasks that a call is cut into at least, where its row blocks suffice: enough to keep many cores busy to the end.
constexpr std::int64_t kWantedTasks = 64;

struct Task {
  std::int64_t cost;  ///< key tiles to visit
  std::int64_t pair;
  std::int64_t first_block;
  std::int32_t blocks;
};

std::int64_t blocks_per_pair(const KernelCall& call, std::int32_t block_rows) {
  return (call.sizes().packed_rows() + block_rows - 1) / block_rows;
}

/// Larger runs read K and V less often, smaller ones share the work better.
std::int32_t blocks_per_task(const kernels::WideKernel& kernel, std::int64_t all_blocks) {
  const std::int64_t wanted = (all_blocks + kWantedTasks - 1) / kWantedTasks;
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(wanted, 1, kernel.super_block_count));
}

std::int64_t cost_of(const kernels::TilePlan& plan, std::int64_t first, std::int32_t blocks) {
  std::int64_t tiles = 0;
  for (std::int64_t run = plan.run_begin[first]; run < plan.run_begin[first + blocks]; ++run) tiles += plan.runs[run].block_count;
  return tiles;
}

/// All tasks, longest first, so that no thread starts a long one when the others are done.
std::int64_t list_tasks(const KernelCall& call, std::int64_t per_pair, std::int32_t run, Task* tasks) {
  std::int64_t count = 0;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    for (std::int64_t first = 0; first < per_pair; first += run) {
      const auto blocks = static_cast<std::int32_t>(std::min<std::int64_t>(run, per_pair - first));
      new (&tasks[count++]) Task{cost_of(call.plan(pair), first, blocks), pair, first, blocks};
    }
  }
  std::sort(tasks, tasks + count, [](const Task& a, const Task& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.pair != b.pair ? a.pair < b.pair : a.first_block < b.first_block;
  });
  return count;
}

std::int64_t scratch_bytes(const kernels::WideKernel& kernel, const KernelCall& call, std::int32_t blocks) {
  std::int64_t bytes = 0;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    kernels::KvSegment segment;
    bytes = std::max(bytes, kernel.scratch_bytes(call.problem(pair, segment), blocks));
  }
  return base::round_up_to_line(bytes);
}

}  // namespace

void run_wide(const kernels::WideKernel& kernel, const KernelCall& call) {
  const std::int64_t per_pair = blocks_per_pair(call, kernel.block_rows);
  const std::int32_t run = blocks_per_task(kernel, per_pair * call.pairs());
  const std::int64_t tasks_per_pair = (per_pair + run - 1) / run;
  const int threads = call.threads();

  const std::int64_t task_bytes = base::round_up_to_line(tasks_per_pair * call.pairs() * static_cast<std::int64_t>(sizeof(Task)));
  const std::int64_t thread_bytes = scratch_bytes(kernel, call, run);
  const base::Scratch scratch(task_bytes + threads * thread_bytes);
  auto* tasks = reinterpret_cast<Task*>(scratch.data());
  std::byte* memory = scratch.data() + task_bytes;

  const std::int64_t count = list_tasks(call, per_pair, run, tasks);
  base::parallel_for(count, threads, [&](std::int64_t index, int thread) noexcept {
    const Task& task = tasks[index];
    kernels::KvSegment segment;
    const kernels::ForwardProblem problem = call.problem(task.pair, segment);
    kernel.run(problem, task.first_block, task.blocks, memory + thread * thread_bytes);
  });
}

}  // namespace heed::front
