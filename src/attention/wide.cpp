// SPDX-License-Identifier: Apache-2.0
// Wide path: a task is a run of row blocks of one (sequence, KV head), which share one pass over its keys.
#include <algorithm>
#include <new>

#include "attention/forward.hpp"
#include "base/cpu.hpp"
#include "base/parallel.hpp"

namespace heed::front {
namespace {

/// Tasks per thread, where the row blocks suffice: enough to keep all of them busy to the end.
constexpr std::int64_t kTasksPerThread = 4;

struct Task {
  std::int64_t cost;  ///< key tiles to visit
  std::int64_t pair;
  std::int64_t first_block;
  std::int32_t blocks;
};

struct Cut {
  std::int64_t tasks = 0;
  std::int32_t blocks_per_task = 1;
};

/// Row blocks whose Q^T and O^T take three eighths of the second-level cache; key tiles, and the neighbours, need the rest.
std::int64_t fitting_blocks(const kernels::WideKernel& kernel, const Sizes& sizes) {
  const std::int64_t block_bytes = kernel.block_rows * (sizes.head_dim + sizes.value_dim) * static_cast<std::int64_t>(sizeof(float));
  return std::clamp<std::int64_t>(base::level2_cache_bytes() * 3 / 8 / block_bytes, 1, kernel.super_block_count);
}

/// Larger runs read K and V less often, smaller ones share the work better: the size with which the thread that works longest is done first.
/// A row block's result does not depend on the others in its run, so this may look at the machine and at the number of threads.
std::int32_t blocks_per_task(const kernels::WideKernel& kernel, const KernelCall& call, std::int64_t all_blocks, int threads) {
  constexpr double kPass = 0.35;  // of a row block's time: what reading K and V once more costs
  const std::int64_t most = fitting_blocks(kernel, call.sizes());
  const std::int64_t pair_blocks = (all_blocks + call.pairs() - 1) / call.pairs();
  std::int64_t best = 1;
  double least = 0;
  for (std::int64_t run = 1; run <= std::min(most, pair_blocks); ++run) {
    const std::int64_t tasks = call.pairs() * ((pair_blocks + run - 1) / run);
    const double time = static_cast<double>((tasks + threads - 1) / threads) * (static_cast<double>(run) + kPass);
    if (run == 1 || time <= least) {
      least = time;
      best = run;
    }
  }
  // Masks make tasks unequal, and some threads start late.
  const std::int64_t shared = threads == 1 ? best : std::max<std::int64_t>(1, all_blocks / (kTasksPerThread * threads));
  return static_cast<std::int32_t>(all_blocks > kTasksPerThread * threads ? std::min(best, shared) : best);
}

Cut cut(const kernels::WideKernel& kernel, const KernelCall& call, int threads) {
  std::int64_t blocks = 0;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) blocks += blocks_of(call.plan(pair));
  Cut result{0, blocks_per_task(kernel, call, blocks, threads)};
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    result.tasks += (blocks_of(call.plan(pair)) + result.blocks_per_task - 1) / result.blocks_per_task;
  }
  return result;
}

std::int64_t cost_of(const kernels::TilePlan& plan, std::int64_t first, std::int32_t blocks) {
  std::int64_t tiles = 0;
  for (std::int64_t run = plan.run_begin[first]; run < plan.run_begin[first + blocks]; ++run) tiles += plan.runs[run].block_count;
  return tiles;
}

/// All tasks, longest first, so that no thread starts a long one when the others are done.
void list_tasks(const KernelCall& call, const Cut& cut, Task* tasks) {
  std::int64_t count = 0;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    const kernels::TilePlan& plan = call.plan(pair);
    const std::int64_t all = blocks_of(plan);
    for (std::int64_t first = 0; first < all; first += cut.blocks_per_task) {
      const auto blocks = static_cast<std::int32_t>(std::min<std::int64_t>(cut.blocks_per_task, all - first));
      new (&tasks[count++]) Task{cost_of(plan, first, blocks), pair, first, blocks};
    }
  }
  std::sort(tasks, tasks + count, [](const Task& a, const Task& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.pair != b.pair ? a.pair < b.pair : a.first_block < b.first_block;
  });
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
  const int threads = call.threads();
  const Cut work = cut(kernel, call, threads);

  const std::int64_t task_bytes = base::round_up_to_line(work.tasks * static_cast<std::int64_t>(sizeof(Task)));
  const std::int64_t thread_bytes = scratch_bytes(kernel, call, work.blocks_per_task);
  const base::Scratch scratch(task_bytes + std::min<std::int64_t>(threads, work.tasks) * thread_bytes);
  auto* tasks = reinterpret_cast<Task*>(scratch.data());
  std::byte* memory = scratch.data() + task_bytes;

  list_tasks(call, work, tasks);
  base::parallel_for(work.tasks, threads, [&](std::int64_t index, int thread) noexcept {
    const Task& task = tasks[index];
    kernels::KvSegment segment, next_segment;
    kernels::ForwardProblem problem = call.problem(task.pair, segment);
    kernels::FollowingTask next;
    if (index + threads < work.tasks) {
      const Task& follower = tasks[index + threads];
      const kernels::TilePlan& plan = call.plan(follower.pair);
      next.problem = call.problem(follower.pair, next_segment);
      next.first_row = follower.first_block * plan.block_rows;
      next.rows = std::min<std::int64_t>(follower.blocks * plan.block_rows, plan.rows - next.first_row);
      problem.following = &next;
    }
    kernel.run(problem, task.first_block, task.blocks, memory + thread * thread_bytes);
  });
}

}  // namespace heed::front
