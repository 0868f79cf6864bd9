// SPDX-License-Identifier: Apache-2.0
// Sequences of a paged cache that begin with the same pages: in decode their queries meet those keys together, which are read once.
#pragma once

#include "attention/forward.hpp"

namespace heed::front {

/// Sequences [first, first + count) of a call, whose first `pieces` pieces of keys are the same memory and visible to all of them.
struct CommonPrefix {
  std::int64_t first = 0, count = 1;
  std::int64_t pieces = 0;
};

/// The longest run of sequences from `first` on that can share, at most as many as a row block holds; a run of one shares nothing.
[[nodiscard]] CommonPrefix common_prefix(const KernelCall& call, std::int64_t first);

/// The keys of a common prefix for the queries of all its sequences, and the plan that shows all of them.
class CommonProblem {
 public:
  CommonProblem(const KernelCall& call, const CommonPrefix& prefix, std::int64_t kv_head);
  CommonProblem(const CommonProblem&) = delete;
  CommonProblem& operator=(const CommonProblem&) = delete;
  [[nodiscard]] const kernels::ForwardProblem& problem() const noexcept { return problem_; }

 private:
  kernels::KvSegment segment_;
  std::int64_t run_begin_[2];
  kernels::TileRun run_;
  kernels::TilePlan plan_;
  kernels::ForwardProblem problem_;
};

}  // namespace heed::front
