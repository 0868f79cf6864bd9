// SPDX-License-Identifier: Apache-2.0
// Narrow path (decode): keys are cut into pieces of 256 on a grid of absolute positions, pieces run in parallel, and whoever
// finishes the last piece of a (sequence, KV head) joins them in rising order.
#include <algorithm>
#include <atomic>
#include <new>

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
};

struct Split {
  std::int64_t rows = 0;  ///< of the longest pair
  std::int64_t pieces = 0;
  std::int64_t tasks = 0;
};

/// Long tasks first, as a run of pieces is one stream through memory, whose start costs about a microsecond; short ones at the end, so that
/// all threads finish together. One piece per task reached 71 % of the read bandwidth with two threads where one thread had 81 %.
/// Pieces, not tasks, decide the bits.
template <class Visit>
void for_each_task(const KernelCall& call, const Pieces* pairs, std::int64_t all_pieces, int threads, Visit&& visit) {
  constexpr std::int64_t kMostPieces = 16;
  std::int64_t left = all_pieces;
  for (std::int64_t pair = 0; pair < call.pairs(); ++pair) {
    for (std::int64_t first = 0; first < pairs[pair].count;) {
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
  return base::round_up_to_line(bytes);
}

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
  const std::int64_t thread_bytes = scratch_bytes(kernel, call);
  const std::int64_t most_threads = std::min<std::int64_t>(base::num_threads(), room);  // there are no more tasks than room
  const base::Scratch scratch(task_bytes + state_bytes + most_threads * thread_bytes);
  auto* tasks = reinterpret_cast<Task*>(scratch.data());
  auto* states = reinterpret_cast<float*>(scratch.data() + task_bytes);
  std::byte* memory = scratch.data() + task_bytes + state_bytes;
  for_each_task(call, pairs, cut.pieces, threads, [next = tasks](const Task& task) mutable { new (next++) Task(task); });

  base::parallel_for(cut.tasks, threads, [&](std::int64_t index, int thread) noexcept {
    const Task& task = tasks[index];
    Pieces& pieces = pairs[task.pair];
    float* pair_states = states + pieces.state_begin;
    kernels::KvSegment segment;
    const kernels::ForwardProblem problem = call.problem(task.pair, segment);
    for (std::int64_t piece = task.first; piece < task.first + task.count; ++piece) {
      kernel.run_piece(problem, pieces.first + piece, state_of(pieces, pair_states, piece, value_dim), memory + thread * thread_bytes);
    }
    // The last one to finish sees what the others wrote: its decrement synchronises with theirs.
    if (std::atomic_ref(pieces.unfinished).fetch_sub(1, std::memory_order_acq_rel) == 1) {
      kernel.combine(problem, state_of(pieces, pair_states, 0, value_dim), pieces.count);
    }
  });
}

}  // namespace heed::front
