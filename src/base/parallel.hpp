// SPDX-License-Identifier: Apache-2.0
// The only place that knows about threads. OpenMP, or std::thread when built with HEED_STD_THREADS (ThreadSanitizer does not
// understand libgomp). Every task runs with the default floating-point environment (round to nearest, no flush-to-zero) and restores
// the caller's, so a framework's settings never change a result.
#pragma once

#include <cstdint>
#include <type_traits>

#include <heed/export.hpp>

namespace heed::base {

/// Threads a parallel_for of this thread may use; at least 1. A forked child and a caller that is inside another parallel region get 1.
[[nodiscard]] HEED_API int num_threads();
/// For calls of this thread; n >= 1, InvalidArgument otherwise.
void set_num_threads(int n);

using TaskFunction = void (*)(void* context, std::int64_t task, int thread) noexcept;
HEED_API void run_tasks(std::int64_t tasks, int threads, TaskFunction function, void* context);

/// For a task that waits for one that was handed out before it.
void let_others_run() noexcept;

/// While it lives, OpenMP regions that another library (oneDNN) opens from this thread stay on this thread: a task of run_tasks must not
/// start a second team, least of all when run_tasks itself had one thread and no region.
class HEED_API SerialOpenMp {
 public:
  SerialOpenMp() noexcept;
  ~SerialOpenMp();
  SerialOpenMp(const SerialOpenMp&) = delete;
  SerialOpenMp& operator=(const SerialOpenMp&) = delete;
  /// False in a HEED_STD_THREADS build, where nobody can hold the other library back.
  [[nodiscard]] static bool works() noexcept;

 private:
  int previous_threads_;
};

/// body(task, thread) for task = 0 .. tasks-1, handed out in rising order to whichever thread is free (put long tasks first);
/// thread < threads names a scratch slot. The body must not throw: reserve memory before. Results must not depend on `thread`.
template <class Body>
void parallel_for(std::int64_t tasks, int threads, Body&& body) {
  static_assert(std::is_nothrow_invocable_v<Body&, std::int64_t, int>, "mark the body noexcept");
  using Stored = std::remove_reference_t<Body>;
  run_tasks(
      tasks, threads, [](void* context, std::int64_t task, int thread) noexcept { (*static_cast<Stored*>(context))(task, thread); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace heed::base
