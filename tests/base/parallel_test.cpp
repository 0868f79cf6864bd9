// SPDX-License-Identifier: Apache-2.0
// parallel_for: every task once, thread numbers as promised, serial where it must be, and the floating-point environment of the caller.
#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <heed/error.hpp>
#include <heed/kernels.hpp>

#include "base/parallel.hpp"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace heed::test {
namespace {

using base::num_threads;
using base::parallel_for;

TEST(ParallelFor, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 4}) {
    for (const std::int64_t tasks : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
      parallel_for(tasks, threads, [&](std::int64_t task, int) noexcept { ++runs[static_cast<std::size_t>(task)]; });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1) << tasks << " tasks, " << threads << " threads";
    }
  }
}

/// A thread number is a scratch slot: below `threads`, and never used by two tasks at the same time.
TEST(ParallelFor, ThreadNumbersNameSlots) {
  constexpr int kThreads = 4;
  std::atomic<bool> busy[kThreads] = {};
  std::atomic<int> problems{0};
  parallel_for(2000, kThreads, [&](std::int64_t, int thread) noexcept {
    if (thread < 0 || thread >= kThreads || busy[thread].exchange(true)) {
      ++problems;
      return;
    }
    std::this_thread::yield();
    busy[thread] = false;
  });
  EXPECT_EQ(problems.load(), 0);
}

/// Two tasks that wait for each other finish only when two threads run them.
TEST(ParallelFor, ThreadsRunAtTheSameTime) {
  std::atomic<int> arrived{0};
  parallel_for(2, 2, [&](std::int64_t, int) noexcept {
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived.load(), 2);
}

TEST(ParallelFor, OneThreadGoesInRisingOrder) {
  std::vector<std::int64_t> order;
  order.reserve(50);
  parallel_for(50, 1, [&](std::int64_t task, int) noexcept { order.push_back(task); });
  for (std::size_t i = 0; i < 50; ++i) ASSERT_EQ(order[i], static_cast<std::int64_t>(i));
}

TEST(ParallelFor, NestedRegionsAreSerial) {
  const std::thread::id caller = std::this_thread::get_id();
  std::atomic<int> inner_tasks{0};
  std::atomic<int> problems{0};
  for (const int threads : {1, 3}) {
    parallel_for(6, threads, [&](std::int64_t, int) noexcept {
      const std::thread::id mine = std::this_thread::get_id();
      if (num_threads() != 1) ++problems;
      parallel_for(5, 4, [&](std::int64_t, int thread) noexcept {
        if (thread != 0 || std::this_thread::get_id() != mine) ++problems;
        ++inner_tasks;
      });
    });
  }
  EXPECT_EQ(inner_tasks.load(), 60);
  EXPECT_EQ(problems.load(), 0);
  EXPECT_EQ(caller, std::this_thread::get_id());
}

TEST(NumThreads, IsSetPerCallingThread) {
  const int before = num_threads();
  ASSERT_GE(before, 1);
  set_num_threads(before + 3);
  EXPECT_EQ(get_num_threads(), before + 3);
  int other = 0;
  std::thread([&] { other = num_threads(); }).join();
  EXPECT_EQ(other, before);
  set_num_threads(before);
  EXPECT_THROW(set_num_threads(0), InvalidArgument);
  EXPECT_EQ(num_threads(), before);
}

/// Seen through the default number of threads, in a thread that has not asked for one.
TEST(SerialOpenMp, HoldsTheDefaultAtOneWhileItLives) {
  int before = 0;
  int during = 0;
  int after = 0;
  std::thread([&] {
    before = num_threads();
    {
      const base::SerialOpenMp serial;
      during = num_threads();
    }
    after = num_threads();
  }).join();
  EXPECT_EQ(during, base::SerialOpenMp::works() ? 1 : before);
  EXPECT_EQ(after, before);
}

// Not constants, so that the arithmetic happens at run time under the environment of the moment.
volatile float tiny = 1e-38F;
volatile float hundredth = 0.01F;
volatile double one = 1.0;
volatile double three = 3.0;

TEST(FloatingPoint, TasksRoundToNearestAndTheCallersModeReturns) {
  const double nearest = one / three;
  std::fesetround(FE_UPWARD);
  const double upward = one / three;
  std::atomic<int> problems{0};
  for (const int threads : {1, 2}) {
    parallel_for(100, threads, [&](std::int64_t, int) noexcept {
      if (std::fegetround() != FE_TONEAREST || one / three != nearest) ++problems;
    });
    EXPECT_EQ(std::fegetround(), FE_UPWARD);
  }
  std::fesetround(FE_TONEAREST);
  EXPECT_NE(upward, nearest);
  EXPECT_EQ(problems.load(), 0);
}

#if defined(__SSE__)
/// What a framework sets: flush-to-zero (bit 15) and denormals-are-zero (bit 6).
TEST(FloatingPoint, TasksKeepDenormalsAndTheCallersFlushReturns) {
  const unsigned saved = _mm_getcsr();
  constexpr unsigned kFlush = 0x8040;
  _mm_setcsr(saved | kFlush);
  const float flushed = tiny * hundredth;
  std::atomic<int> problems{0};
  for (const int threads : {1, 2}) {
    parallel_for(100, threads, [&](std::int64_t, int) noexcept {
      if ((_mm_getcsr() & kFlush) != 0 || tiny * hundredth == 0.0F) ++problems;
    });
    EXPECT_EQ(_mm_getcsr() & kFlush, kFlush);
  }
  _mm_setcsr(saved);
  EXPECT_EQ(flushed, 0.0F);
  EXPECT_EQ(problems.load(), 0);
}
#endif

/// A child of a process that has used its threads would wait for them for ever. It may not print or return: _exit reports.
int run_in_child(int threads_asked) {
  alarm(20);
  std::atomic<std::int64_t> sum{0};
  parallel_for(100, threads_asked, [&](std::int64_t task, int) noexcept { sum += task; });
  if (sum.load() != 4950) return 1;
  return num_threads() == 1 ? 0 : 2;
}

void expect_serial_child(int threads) {
  std::atomic<int> warm{0};
  parallel_for(8, threads, [&](std::int64_t, int) noexcept { ++warm; });
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(run_in_child(threads));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_EQ(warm.load(), 8);
}

TEST(Fork, ChildRunsSerially) { expect_serial_child(std::max(2, num_threads())); }

/// The pool is libgomp's, so another library may have filled it before anybody asked this one for threads. Each case is a process of its
/// own to ctest; in this one nobody has.
TEST(Fork, ChildRunsSeriallyWhoeverStartedThePool) { expect_serial_child(2); }

}  // namespace
}  // namespace heed::test
