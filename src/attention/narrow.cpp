// SPDX-License-Identifier: Apache-2.0
// Narrow path (decode): keys are cut into pieces of 256 on a grid of absolute positions, pieces run in parallel, and whoever
// finishes the last piece of a (sequence, KV head) joins them in rising order.
#include <algorithm>
#include <atomic>
#include <new>

#include "attention/common_prefix.hpp"
#include "attention/forward.hpp"
#include "base/parallel.hpp"

namespace heed::front {
namespace {

using kernels::kPieceKeys;
constexpr std::int64_t kTilesPerPiece = kPieceKeys / kernels::kBlockKeys;

/// Pieces [first, first + count) of one (sequence, KV head); those before and behind hold no visible key.
struct Pieces {
  std::int64_t first = 0;
  std::int64_t count = 1;  ///< at least 1, so that every output is written
  std::int64_t rows = 0;
  std::int64_t state_begin = 0;  ///< floats in front of the pair's states
  std::int64_t common = 0;       ///< its first pieces, which tasks of several sequences compute
  std::int32_t unfinished = 0;   ///< tasks still to come; shared by threads
};

Pieces visible_pieces(const kernels::TilePlan& plan) {
  Pieces pieces;
  pieces.rows = plan.rows;
  const std::int64_t begin = plan.run_begin[0];
  const std::int64_t end = plan.run_begin[1];
  if (begin == end) return pieces;
  const kernels::TileRun& last = plan.runs[end - 1];
  pieces.first = plan.runs[begin].first_block / kTilesPerPiece;
  pieces.count = (last.first_block + last.block_count - 1) / kTilesPerPiece + 1 - pieces.first;
  return pieces;
}

/// Floats of a piece's state: max, true max and sum of every row, then the rows themselves.
std::int64_t state_floats(std::int64_t rows, std::int64_t value_dim) { return rows * (3 + value_dim); }

/// `memory`: max [pieces][rows], true max [pieces][rows], sum [pieces][rows], out [pieces][rows][Dv].
kernels::PartialState state_of(const Pieces& pieces, float* memory, std::int64_t piece, std::int64_t value_dim) {
  const std::int64_t all_rows = pieces.count * pieces.rows;
  float* at = memory + piece * pieces.rows;
  return {.max = at, .true_max = at + all_rows, .sum = at + 2 * all_rows, .out = memory + 3 * all_rows + piece * pieces.rows * value_dim};
}

struct Task {
  std::int64_t pair;
  std::int64_t first;  ///< piece, counted from the pair's first
  std::int64_t count;
  std::int64_t sequences = 1;  ///< more: of the pair's and as many following sequences, which begin with the same keys
};

/// Tasks of all common prefixes; they come first, as they are the longest.
template <class Visit>
void for_each_common_task(const KernelCall& call, Visit&& visit) {
  constexpr std::int64_t kPieces = 4;
  for (std::int64_t s = 0; s < call.sequences().count();) {
    const CommonPrefix prefix = common_prefix(call, s);
    for (std::int64_t h = 0; prefix.count > 1 && h < call.sizes().kv_heads; ++h) {
      for (std::int64_t first = 0; first < prefix.pieces; first += kPieces) {
        visit(Task{s * call.sizes().kv_heads + h, first, std::min(kPieces, prefix.pieces - first), prefix.count}, prefix);
      }
    }
    s += prefix.count;
  }
}

struct Split {
  std::int64_t rows = 0;    ///< of the longest pair
  std::int64_t pieces = 0;  ///< that belong to one sequence only
  std::int64_t tasks = 0;
  std::int64_t common_rows = 0;  ///< of the largest common prefix
};

/// Long tasks first, as a run of pieces is one stream through memory, whose start costs about a microsecond; short ones at the end, so that
/// all threads finish together. One piece per task reached 71 % of the read bandwidth with two threads where one thread had 81 %.
/// Pieces, not tasks, decide the bits.
template <class Visit>
void for_each_task(const KernelCall& call, const Pieces* pairs, std::int64_t all_pieces, int threads, Visit&& visit) {
  constexpr std::int64_t kMostPieces = 16;
  std::int64_t left = all_pieces;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    for (std::int64_t first = pairs[pair].common; first < pairs[pair].count;) {
      const std::int64_t fair = std::clamp<std::int64_t>(left / (4 * threads), 1, kMostPieces);
      const Task task{pair, first, std::min(fair, pairs[pair].count - first)};
      visit(task);
      first += task.count;
      left -= task.count;
    }
  }
}

Split split(const KernelCall& call, int threads, Pieces* pairs) {
  Split result;
  std::int64_t floats = 0;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    pairs[pair] = visible_pieces(call.plan(pair));
    pairs[pair].state_begin = floats;
    floats += pairs[pair].count * state_floats(pairs[pair].rows, call.sizes().value_dim);
    result.pieces += pairs[pair].count;
    result.rows = std::max(result.rows, pairs[pair].rows);
  }
  for_each_common_task(call, [&](const Task& task, const CommonPrefix& prefix) {
    for (std::int64_t s = 0; s < task.sequences; ++s) {
      Pieces& pieces = pairs[task.pair + s * call.sizes().kv_heads];
      pieces.common = prefix.pieces;
      ++pieces.unfinished;
      result.pieces -= task.count;
    }
    result.common_rows = std::max(result.common_rows, task.sequences * call.sizes().group);
    ++result.tasks;
  });
  for_each_task(call, pairs, result.pieces, threads, [&](const Task& task) {
    ++pairs[task.pair].unfinished;
    ++result.tasks;
  });
  return result;
}

/// Most pieces that a call over these tensors may have. Scratch has room for so many, and for all threads: a cache that fills up step by
/// step then asks for the same memory at every step, and what is not needed is not touched.
std::int64_t most_pieces(const KernelCall& call) { return call.pairs() + call.key_rows() / kPieceKeys * call.sizes().kv_heads; }

std::int64_t scratch_bytes(const kernels::NarrowKernel& kernel, const KernelCall& call) {
  std::int64_t bytes = 0;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    kernels::KvSegment segment;
    bytes = std::max(bytes, kernel.scratch_bytes(call.problem(pair, segment)));
  }
  for_each_common_task(call, [&](const Task& task, const CommonPrefix& prefix) {
    if (task.first > 0 || task.pair % call.sizes().kv_heads > 0) return;
    bytes = std::max(bytes, kernel.scratch_bytes(CommonProblem(call, prefix, 0).problem()));
  });
  return base::round_up_to_line(bytes);
}

/// Rows [row, row + to.rows) of one piece's common state to where a pair keeps its own.
void copy_rows(const kernels::PartialState& from, std::int64_t row, std::int64_t rows, std::int64_t value_dim,
               const kernels::PartialState& to) {
  std::copy_n(from.max + row, rows, to.max);
  std::copy_n(from.true_max + row, rows, to.true_max);
  std::copy_n(from.sum + row, rows, to.sum);
  std::copy_n(from.out + row * value_dim, rows * value_dim, to.out);
}

/// What one run works on.
struct Run {
  const kernels::NarrowKernel& kernel;
  const KernelCall& call;
  Pieces* pairs;
  float* states;

  [[nodiscard]] kernels::PartialState state(std::int64_t pair, std::int64_t piece) const {
    return state_of(pairs[pair], states + pairs[pair].state_begin, piece, call.sizes().value_dim);
  }
  /// The last one to finish sees what the others wrote: its decrement synchronises with theirs.
  void finish(std::int64_t pair) const {
    if (std::atomic_ref(pairs[pair].unfinished).fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    kernels::KvSegment segment;
    kernel.combine(call.problem(pair, segment), state(pair, 0), pairs[pair].count);
  }
  void own_pieces(const Task& task, std::byte* memory) const {
    kernels::KvSegment segment;
    const kernels::ForwardProblem problem = call.problem(task.pair, segment);
    for (std::int64_t piece = task.first; piece < task.first + task.count; ++piece) {
      kernel.run_piece(problem, pairs[task.pair].first + piece, state(task.pair, piece), memory);
    }
    finish(task.pair);
  }
  /// `common`: room for a state of all rows.
  void common_pieces(const Task& task, float* common, std::byte* memory) const {
    const std::int64_t heads = call.sizes().kv_heads, group = call.sizes().group, value_dim = call.sizes().value_dim;
    const CommonPrefix prefix{task.pair / heads, task.sequences, task.first + task.count};
    const CommonProblem problem(call, prefix, task.pair % heads);
    const Pieces all{.rows = task.sequences * group};
    for (std::int64_t piece = task.first; piece < task.first + task.count; ++piece) {
      const kernels::PartialState state_of_all = state_of(all, common, 0, value_dim);
      kernel.run_piece(problem.problem(), piece, state_of_all, memory);
      for (std::int64_t s = 0; s < task.sequences; ++s) {
        copy_rows(state_of_all, s * group, group, value_dim, state(task.pair + s * heads, piece));
      }
    }
    for (std::int64_t s = 0; s < task.sequences; ++s) finish(task.pair + s * heads);
  }
};

}  // namespace

void run_narrow(const kernels::NarrowKernel& kernel, const KernelCall& call) {
  const std::int64_t value_dim = call.sizes().value_dim;
  const base::Scratch pair_memory(call.pairs() * static_cast<std::int64_t>(sizeof(Pieces)));
  auto* pairs = reinterpret_cast<Pieces*>(pair_memory.data());
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) new (&pairs[pair]) Pieces;
  const int threads = call.threads();
  const Split cut = split(call, threads, pairs);

  const std::int64_t room = most_pieces(call);
  const std::int64_t task_bytes = base::round_up_to_line(room * static_cast<std::int64_t>(sizeof(Task)));
  const std::int64_t state_bytes =
      base::round_up_to_line(room * state_floats(cut.rows, value_dim) * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t common_bytes =
      base::round_up_to_line(state_floats(cut.common_rows, value_dim) * static_cast<std::int64_t>(sizeof(float)));
  const std::int64_t thread_bytes = common_bytes + scratch_bytes(kernel, call);
  const std::int64_t most_threads = std::min<std::int64_t>(base::num_threads(), room);  // there are no more tasks than room
  const base::Scratch scratch(task_bytes + state_bytes + most_threads * thread_bytes);
  auto* tasks = reinterpret_cast<Task*>(scratch.data());
  auto* states = reinterpret_cast<float*>(scratch.data() + task_bytes);
  std::byte* memory = scratch.data() + task_bytes + state_bytes;
  Task* next = tasks;
  for_each_common_task(call, [&next](const Task& task, const CommonPrefix&) { new (next++) Task(task); });
  for_each_task(call, pairs, cut.pieces, threads, [&next](const Task& task) { new (next++) Task(task); });

  const Run run{kernel, call, pairs, states};
  base::parallel_for(cut.tasks, threads, [&](std::int64_t index, int thread) noexcept {
    std::byte* own = memory + thread * thread_bytes;
    const Task& task = tasks[index];
    if (task.sequences == 1) return run.own_pieces(task, own + common_bytes);
    run.common_pieces(task, reinterpret_cast<float*>(own), own + common_bytes);
  });
}

}  // namespace heed::front
