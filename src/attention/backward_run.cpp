// SPDX-License-Identifier: Apache-2.0
// Tasks of the backward pass: a range of keys of one (sequence, KV head) pair. All sums are made in an order that depends on shapes alone: dK
// and dV within a task, dQ by letting the ranges of a pair add to each row block in rising order.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <new>

#include "attention/backward.hpp"
#include "attention/backward_bias.hpp"
#include "base/parallel.hpp"

namespace heed::front {
namespace {

using kernels::kBlockKeys;
using kernels::kMostGroupBlocks;

/// K, V, dK and dV of a range should stay within L2.
constexpr std::int64_t kRangeBytes = std::int64_t{5} << 17;
/// Ranges per sequence that are worth having for the threads, and the smallest range that keeps packing rows cheap.
constexpr std::int64_t kWantedRanges = 2, kSmallestRange = 128;

/// By the sequence alone, so that its bits do not depend on its neighbours.
std::int64_t keys_per_range(std::int64_t head_dim, std::int64_t value_dim, std::int64_t keys) {
  const std::int64_t floats = (head_dim + 31) / 16 * 16 + (value_dim + 31) / 16 * 16;
  const std::int64_t fitting = std::max<std::int64_t>(1, kRangeBytes / (8 * floats) / kBlockKeys) * kBlockKeys;
  const std::int64_t share = (keys / kWantedRanges + kBlockKeys - 1) / kBlockKeys * kBlockKeys;
  return std::min(fitting, std::max(share, kSmallestRange));
}

/// Spins for a moment, then lets others run. The task waited for has started: tasks are handed out in rising order.
template <class Condition>
void wait_until(const Condition& holds) noexcept {
  for (int spins = 0; !holds(); ++spins) {
    if (spins > 2000) base::let_others_run();
  }
}

/// Which ranges have a tile in a row block.
struct Visits {
  std::int64_t before = 0;  ///< ranges before the one asked about
  bool here = false, behind = false;
};

Visits visits_of(const kernels::TilePlan& plan, std::int64_t block, std::int64_t range, std::int64_t range_blocks) {
  Visits visits;
  std::int64_t last = -1;  // range of the last tile so far
  for (std::int64_t n = plan.run_begin[block]; n < plan.run_begin[block + 1] && !visits.behind; ++n) {
    const kernels::TileRun& run = plan.runs[n];
    const std::int64_t first = std::max(run.first_block / range_blocks, last + 1);
    last = (run.first_block + run.block_count - 1) / range_blocks;
    visits.before += std::max<std::int64_t>(0, std::min(last, range - 1) - first + 1);
    visits.here = visits.here || (run.first_block / range_blocks <= range && range <= last);
    visits.behind = last > range;
  }
  return visits;
}

/// One (sequence, KV head).
struct Pair {
  kernels::KvSegment segment;
  kernels::BackwardProblem problem;
  std::int64_t range_keys = 0, ranges = 0, blocks = 0;
};

/// Floats of a row of its dQ.
std::int64_t sum_row(const Pair& pair) {
  return (pair.problem.forward.head_dim + kernels::kSumUnit - 1) / kernels::kSumUnit * kernels::kSumUnit;
}

struct Task {
  std::int64_t pair, range;
};

/// A float32 dQ, lent to pairs in turn: pair p has slot p % slots. One cache line each.
struct alignas(64) Slot {
  float* sum = nullptr;                        ///< [row blocks * block_rows][D in units of kSumUnit]
  std::atomic<std::int64_t>* turns = nullptr;  ///< [row blocks]: ranges that have added
  std::atomic<std::int64_t> pairs_done{0}, ranges_done{0};
};

/// Parts of one lease on the arena; without memory yet it only adds them up.
class Parts {
 public:
  explicit Parts(std::byte* data) : data_(data) {}
  template <class T>
  T* take(std::int64_t count) {
    const std::int64_t at = used_;
    used_ += base::round_up_to_line(count * static_cast<std::int64_t>(sizeof(T)));
    return data_ == nullptr ? nullptr : reinterpret_cast<T*>(data_ + at);
  }
  [[nodiscard]] std::int64_t bytes() const { return used_; }

 private:
  std::byte* data_;
  std::int64_t used_ = 0;
};

/// Largest numbers over all pairs, and the number of tasks.
struct Extent {
  std::int64_t rows = 0;  ///< of all pairs, in whole row blocks
  std::int64_t tasks = 0, ranges = 0, blocks = 0, range_keys = 0;
};

/// The whole call.
class Backward {
 public:
  Backward(const kernels::BackwardKernel& kernel, Pair* pairs, std::int64_t count, int threads, BiasSharing sharing)
      : kernel_(kernel), pairs_(pairs), count_(count), threads_(threads), sharing_(sharing) {
    bool same_ranges = true;
    for (std::int64_t n = 0; n < count; ++n) {
      measure(pairs[n]);
      same_ranges = same_ranges && pairs[n].range_keys == pairs[0].range_keys && pairs[n].ranges == pairs[0].ranges;
    }
    const bool waits_for_bias = sharing == BiasSharing::kPairs && same_ranges;
    if (sharing != BiasSharing::kNone && !waits_for_bias) threads_ = 1;
    together_ = waits_for_bias ? 1 : std::min<std::int64_t>(threads_, count);
    slot_count_ = std::min(together_ + 1, count);
    if (!waits_for_bias) sharing_ = BiasSharing::kNone;
    task_bytes_ = base::round_up_to_line(kernel.scratch_bytes(pairs[0].problem, extent_.range_keys));
  }

  /// Bytes of the memory that `run` wants.
  [[nodiscard]] std::int64_t bytes() {
    Parts parts(nullptr);
    place(parts);
    return parts.bytes();
  }
  void run(std::byte* memory);

 private:
  void measure(Pair& pair);
  void place(Parts& parts);
  void start();
  void list_tasks();
  void run_task(std::int64_t index, std::byte* scratch) const noexcept;
  [[nodiscard]] kernels::NextTask task_after(std::int64_t index) const noexcept;
  void visit_group(const Pair& pair, Slot& slot, std::int64_t range, std::int64_t first, std::byte* scratch) const noexcept;
  void add_queries(const Pair& pair, Slot& slot, const Visits& visits, std::int64_t first, std::int32_t index,
                   std::byte* scratch) const noexcept;
  [[nodiscard]] kernels::KeyRange keys_of(const Pair& pair, std::int64_t range) const noexcept;

  const kernels::BackwardKernel& kernel_;
  Pair* pairs_;
  std::int64_t count_;
  int threads_;
  BiasSharing sharing_;        ///< among tasks that run at the same time: kNone or kPairs
  std::int64_t together_ = 1;  ///< pairs whose ranges are handed out in turn
  std::int64_t slot_count_ = 1;
  Extent extent_;
  std::int64_t task_bytes_ = 0;
  // In the memory of run():
  float* row_values_ = nullptr;
  Task* tasks_ = nullptr;
  Slot* slots_ = nullptr;
  float* sums_ = nullptr;
  std::atomic<std::int64_t>* turns_ = nullptr;       ///< [slots][row blocks]
  std::atomic<std::int64_t>* bias_turns_ = nullptr;  ///< [ranges]: pairs that have added to these keys' bias
  std::byte* scratch_ = nullptr;                     ///< [threads that find a task]
};

void Backward::measure(Pair& pair) {
  const kernels::ForwardProblem& f = pair.problem.forward;
  pair.range_keys = keys_per_range(f.head_dim, f.value_dim, f.plan->keys);
  pair.ranges = std::max<std::int64_t>(1, (pair.problem.key_rows + pair.range_keys - 1) / pair.range_keys);
  pair.blocks = blocks_of(*f.plan);
  extent_.rows += pair.blocks * kernel_.block_rows;
  extent_.tasks += pair.ranges;
  extent_.ranges = std::max(extent_.ranges, pair.ranges);
  extent_.blocks = std::max(extent_.blocks, pair.blocks);
  extent_.range_keys = std::max(extent_.range_keys, pair.range_keys);
}

void Backward::place(Parts& parts) {
  const std::int64_t row = sum_row(pairs_[0]);
  row_values_ = parts.take<float>(2 * extent_.rows);
  tasks_ = parts.take<Task>(extent_.tasks);
  slots_ = parts.take<Slot>(slot_count_);
  turns_ = parts.take<std::atomic<std::int64_t>>(slot_count_ * extent_.blocks);
  bias_turns_ = parts.take<std::atomic<std::int64_t>>(extent_.ranges);
  // A pair with one range adds to nobody.
  sums_ = parts.take<float>(extent_.ranges > 1 ? slot_count_ * extent_.blocks * kernel_.block_rows * row : 0);
  scratch_ = parts.take<std::byte>(std::min<std::int64_t>(threads_, extent_.tasks) * task_bytes_);
}

void Backward::start() {
  float* row_values = row_values_;
  for (std::int64_t n = 0; n < count_; ++n) {
    const std::int64_t rows = pairs_[n].blocks * kernel_.block_rows;
    pairs_[n].problem.log2_sums = row_values;
    pairs_[n].problem.deltas = row_values + rows;
    row_values += 2 * rows;
  }
  const std::int64_t row = sum_row(pairs_[0]);
  for (std::int64_t n = 0; n < slot_count_; ++n) {
    Slot& slot = *new (&slots_[n]) Slot;
    slot.sum = sums_ + (extent_.ranges > 1 ? n * extent_.blocks * kernel_.block_rows * row : 0);
    slot.turns = turns_ + n * extent_.blocks;
    for (std::int64_t block = 0; block < extent_.blocks; ++block) new (&slot.turns[block]) std::atomic<std::int64_t>(0);
  }
  for (std::int64_t range = 0; range < extent_.ranges; ++range) new (&bias_turns_[range]) std::atomic<std::int64_t>(0);
}

/// Range by range over some pairs at a time: neighbours in the list then seldom wait for each other.
void Backward::list_tasks() {
  Task* next = tasks_;
  for (std::int64_t first = 0; first < count_; first += together_) {
    const std::int64_t end = std::min(first + together_, count_);
    for (std::int64_t range = 0; range < extent_.ranges; ++range) {
      for (std::int64_t pair = first; pair < end; ++pair) {
        if (range < pairs_[pair].ranges) new (next++) Task{pair, range};
      }
    }
  }
}

kernels::KeyRange Backward::keys_of(const Pair& pair, std::int64_t range) const noexcept {
  const std::int64_t first = range * pair.range_keys;
  return {first, std::min(pair.range_keys, pair.problem.key_rows - first)};
}

void Backward::add_queries(const Pair& pair, Slot& slot, const Visits& visits, std::int64_t first, std::int32_t index,
                           std::byte* scratch) const noexcept {
  std::atomic<std::int64_t>& turn = slot.turns[first + index];
  wait_until([&] { return turn.load(std::memory_order_acquire) == visits.before; });
  float* sum = slot.sum + (first + index) * kernel_.block_rows * sum_row(pair);
  kernel_.add_queries(pair.problem, {visits.before == 0, !visits.behind}, index, sum, scratch);
  turn.store(visits.before + 1, std::memory_order_release);
}

void Backward::visit_group(const Pair& pair, Slot& slot, std::int64_t range, std::int64_t first, std::byte* scratch) const noexcept {
  Visits visits[kMostGroupBlocks];
  const auto count = static_cast<std::int32_t>(std::min<std::int64_t>(kernel_.group_blocks, pair.blocks - first));
  bool here = false;
  for (std::int32_t n = 0; n < count; ++n) {
    visits[n] = visits_of(*pair.problem.forward.plan, first + n, range, pair.range_keys / kBlockKeys);
    here = here || visits[n].here;
  }
  if (!here) return;
  kernel_.visit(pair.problem, first, count, scratch);
  for (std::int32_t n = count - 1; n >= 0; --n) {
    if (visits[n].here) add_queries(pair, slot, visits[n], first, n, scratch);
  }
}

kernels::NextTask Backward::task_after(std::int64_t index) const noexcept {
  if (index + threads_ >= extent_.tasks) return {nullptr, {0, 0}};
  const Task& next = tasks_[index + threads_];
  return {&pairs_[next.pair].problem, keys_of(pairs_[next.pair], next.range)};
}

void Backward::run_task(std::int64_t index, std::byte* scratch) const noexcept {
  const Task& task = tasks_[index];
  const Pair& pair = pairs_[task.pair];
  Slot& slot = slots_[task.pair % slot_count_];
  wait_until([&] { return slot.pairs_done.load(std::memory_order_acquire) == task.pair / slot_count_; });
  if (sharing_ == BiasSharing::kPairs) {
    wait_until([&] { return bias_turns_[task.range].load(std::memory_order_acquire) == task.pair; });
  }
  const kernels::KeyRange keys = keys_of(pair, task.range);
  kernel_.open(pair.problem, keys, task_after(index), scratch);
  // From the last row block to the first: where masks are causal, the range before this one has been there already.
  const std::int64_t group = kernel_.group_blocks;
  for (std::int64_t first = (pair.blocks - 1) / group * group; first >= 0; first -= group)
    visit_group(pair, slot, task.range, first, scratch);
  kernel_.close(pair.problem, keys, scratch);
  if (sharing_ == BiasSharing::kPairs) bias_turns_[task.range].store(task.pair + 1, std::memory_order_release);
  if (slot.ranges_done.fetch_add(1, std::memory_order_acq_rel) + 1 < pair.ranges) return;
  for (std::int64_t block = 0; block < pair.blocks; ++block) slot.turns[block].store(0, std::memory_order_relaxed);
  slot.ranges_done.store(0, std::memory_order_relaxed);
  slot.pairs_done.fetch_add(1, std::memory_order_release);
}

void Backward::run(std::byte* memory) {
  Parts parts(memory);
  place(parts);
  start();
  list_tasks();
  base::parallel_for(count_ * extent_.blocks, threads_, [&](std::int64_t task, int) noexcept {
    const Pair& pair = pairs_[task / extent_.blocks];
    const std::int64_t block = task % extent_.blocks;
    if (block < pair.blocks) kernel_.prepare(pair.problem, block);
  });
  base::parallel_for(extent_.tasks, threads_,
                     [&](std::int64_t task, int thread) noexcept { run_task(task, scratch_ + thread * task_bytes_); });
}

kernels::QueryRows query_rows(const TensorView& view, const Place& place, std::int64_t head, const kernels::QueryRows& q) {
  return {.data = address(view, place.slice, place.first_query, head),
          .dtype = view.dtype(),
          .token_stride = view.stride(1),
          .head_stride = view.stride(2),
          .dim_stride = view.stride(3),
          .tokens = q.tokens,
          .group = q.group};
}

kernels::KeyGradient key_gradient(const MutableTensorView& view, const Place& place, std::int64_t kv_head) {
  return {.data = address(view, place.slice, place.first_key, kv_head),
          .dtype = view.dtype(),
          .row_stride = view.stride(1),
          .dim_stride = view.stride(3)};
}

kernels::BiasGradient bias_gradient(const TensorView& sums, std::int64_t batch, std::int64_t head) {
  if (!sums) return {};
  return {.data = static_cast<float*>(const_cast<void*>(address(sums, batch, head))),
          .head_stride = sums.stride(1),
          .token_stride = sums.stride(2),
          .key_stride = sums.stride(3)};
}

/// d/d(sink) of the loss: -sum over its rows of the sink's weight times delta; in float64, sequence by sequence.
double sink_gradient(const Pair* pairs, std::int64_t count, const Sizes& sizes, std::int64_t head) {
  const std::int64_t kv_head = head / sizes.group, in_group = head % sizes.group;
  double sum = 0.0;
  for (std::int64_t n = kv_head; n < count; n += sizes.kv_heads) {
    const kernels::BackwardProblem& p = pairs[n].problem;
    for (std::int64_t token = 0; token < p.forward.q.tokens; ++token) {
      const double lse = p.lse[token * p.lse_token_stride + in_group * p.lse_head_stride];
      const double delta = p.deltas[token * sizes.group + in_group];
      if (lse > -HUGE_VAL || lse != lse) sum -= std::exp(static_cast<double>(p.forward.scoring.sink_logits[in_group]) - lse) * delta;
    }
  }
  return sum;
}

}  // namespace

void run_backward(const kernels::BackwardKernel& kernel, const Arguments& arguments, const Sizes& sizes, const BackwardInputs& inputs,
                  const AttentionGradOutputs& gradients, const Sequences& sequences) {
  const AttentionOutputs outputs = {.out = gradients.dq};  // what a pair writes by rows
  const KernelCall call(arguments, sizes, outputs, sequences, kernel.block_rows);
  const BiasSums bias(gradients.dbias, sizes);
  const std::int64_t count = call.pairs();
  const base::Scratch pair_memory(count * static_cast<std::int64_t>(sizeof(Pair)));
  auto* pairs = reinterpret_cast<Pair*>(pair_memory.data());
  for (std::int64_t n = 0; n < count; ++n) {
    const auto sequence = static_cast<std::size_t>(n / sizes.kv_heads);
    const std::int64_t kv_head = n % sizes.kv_heads, head = kv_head * sizes.group;
    const mask::Geometry& geometry = sequences.geometry()[sequence];
    const Place& place = sequences.places()[sequence];
    Pair& pair = *new (&pairs[n]) Pair;
    kernels::BackwardProblem& p = pair.problem;
    p.forward = call.problem(n, pair.segment);
    p.dout = query_rows(inputs.dout, place, head, p.forward.q);
    p.out = query_rows(inputs.out, place, head, p.forward.q);
    p.lse = static_cast<const float*>(address(inputs.lse, place.slice, head, place.first_query));
    p.lse_head_stride = inputs.lse.stride(1);
    p.lse_token_stride = inputs.lse.stride(2);
    p.dk = key_gradient(gradients.dk, place, kv_head);
    p.dv = key_gradient(gradients.dv, place, kv_head);
    p.key_rows = place.key_rows;
    p.dbias = bias_gradient(bias.sums(), geometry.batch, head);
  }

  Backward backward(kernel, pairs, count, call.threads(), bias.sharing());
  const base::Scratch memory(backward.bytes());
  backward.run(memory.data());
  bias.write();
  if (!gradients.dsink_logits) return;
  auto* sinks = static_cast<float*>(gradients.dsink_logits.data());
  for (std::int64_t head = 0; head < sizes.q_heads; ++head) {
    sinks[head * gradients.dsink_logits.stride(0)] = static_cast<float>(sink_gradient(pairs, count, sizes, head));
  }
}

}  // namespace heed::front
