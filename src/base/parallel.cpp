// SPDX-License-Identifier: Apache-2.0
#include "base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <string>
#include <thread>

#include "base/cpu_quota.hpp"
#include "base/floating_point.hpp"
#include "base/message.hpp"

#if defined(HEED_STD_THREADS)
#include <exception>
#include <vector>
#else
#include <omp.h>
#endif

#if defined(__unix__)
#include <pthread.h>
#endif

namespace heed::base {
namespace {

std::atomic<bool> forked{false};
thread_local int requested_threads = 0;
thread_local bool inside_region = false;

#if defined(__unix__)
/// libgomp's pool does not survive a fork: a child that opens a region hangs. When the library is loaded, not when it is first called: the
/// pool is the whole process's, and a data loader's workers fork from a parent whose pool another library may have started.
[[maybe_unused]] const int watches_forks = pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });
#endif

int available_threads() {
#if defined(HEED_STD_THREADS)
  const unsigned n = std::thread::hardware_concurrency();
  return n > 0 ? static_cast<int>(n) : 1;
#else
  return omp_get_max_threads();
#endif
}

/// More threads than the quota grants would be stopped together for most of every period. Who sets OMP_NUM_THREADS has decided.
int default_threads() {
  static const bool decided = std::getenv("OMP_NUM_THREADS") != nullptr;
  const int available = available_threads();
  return decided ? available : std::min(available, cpu_quota().value_or(available));
}

/// Inside a region, ours or somebody else's, or in a forked child; a number of threads that was asked for before does not change that.
bool must_be_serial() {
#if !defined(HEED_STD_THREADS)
  if (omp_in_parallel() != 0) return true;
#endif
  return inside_region || forked.load(std::memory_order_relaxed);
}

/// Takes tasks until none is left.
void work(std::atomic<std::int64_t>& next, std::int64_t tasks, int thread, TaskFunction function, void* context) {
  const DefaultFloatingPoint environment;
  const bool outer = inside_region;
  inside_region = true;
  for (;;) {
    const std::int64_t task = next.fetch_add(1, std::memory_order_relaxed);
    if (task >= tasks) break;
    function(context, task, thread);
  }
  inside_region = outer;
}

}  // namespace

int num_threads() {
  if (must_be_serial()) return 1;
  return requested_threads > 0 ? requested_threads : default_threads();
}

void set_num_threads(int n) {
  if (n < 1) throw_invalid("set_num_threads", "n", "at least 1", std::to_string(n));
  requested_threads = n;
}

void run_tasks(std::int64_t tasks, int threads, TaskFunction function, void* context) {
  std::atomic<std::int64_t> next{0};
  if (threads > tasks) threads = static_cast<int>(tasks);
  if (threads <= 1 || must_be_serial()) {
    work(next, tasks, 0, function, context);
    return;
  }
#if defined(HEED_STD_THREADS)
  // An exception past threads that can still be joined would end the program: room for all is made first, and where the system has no
  // thread to give, those that run share the tasks.
  std::vector<std::thread> pool;
  pool.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (int thread = 1; thread < threads; ++thread) {
      pool.emplace_back([&, thread] { work(next, tasks, thread, function, context); });
    }
  } catch (const std::exception&) {  // std::system_error, or std::bad_alloc for the thread's own state
  }
  work(next, tasks, 0, function, context);
  for (std::thread& thread : pool) thread.join();
#else
#pragma omp parallel num_threads(threads)
  work(next, tasks, omp_get_thread_num(), function, context);
#endif
}

void let_others_run() noexcept { std::this_thread::yield(); }

#if defined(HEED_STD_THREADS)
SerialOpenMp::SerialOpenMp() noexcept : previous_threads_(1) {}
SerialOpenMp::~SerialOpenMp() = default;
bool SerialOpenMp::works() noexcept { return false; }
#else
SerialOpenMp::SerialOpenMp() noexcept : previous_threads_(omp_get_max_threads()) { omp_set_num_threads(1); }
SerialOpenMp::~SerialOpenMp() { omp_set_num_threads(previous_threads_); }
bool SerialOpenMp::works() noexcept { return true; }
#endif

}  // namespace heed::base
