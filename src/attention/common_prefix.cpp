// SPDX-License-Identifier: Apache-2.0
#include "attention/common_prefix.hpp"

#include <algorithm>

namespace heed::front {
namespace {

using kernels::kPieceKeys;
constexpr std::int64_t kBlocksPerPiece = kPieceKeys / kernels::kBlockKeys;

/// Whether a row's scores depend on nothing but its own query and the keys.
bool is_alike(const AttentionOptions& o) { return !o.bias && !o.alibi_slopes && !(o.dropout && o.dropout->p > 0.0); }

/// Whole pages that two sequences begin with.
std::int64_t same_pages(const kv::StoredRows& rows, std::int64_t a, std::int64_t b) {
  const kv::StoredSequence &x = rows.sequences[static_cast<std::size_t>(a)], &y = rows.sequences[static_cast<std::size_t>(b)];
  if (x.first_key > 0 || y.first_key > 0) return 0;
  const std::int64_t most = std::min(x.segment_count, y.segment_count);
  std::int64_t pages = 0;
  for (; pages < most; ++pages) {
    const kernels::KvSegment& p = rows.segments[static_cast<std::size_t>(x.first_segment + pages)];
    const kernels::KvSegment& q = rows.segments[static_cast<std::size_t>(y.first_segment + pages)];
    if (p.k != q.k || p.v != q.v || p.rows != kPieceKeys || q.rows != kPieceKeys) break;
  }
  return pages;
}

/// Pieces from the first key on that every head of a sequence sees all of.
std::int64_t visible_pieces(const KernelCall& call, std::int64_t sequence) {
  std::int64_t pieces = call.sequences().geometry()[static_cast<std::size_t>(sequence)].keys / kPieceKeys;
  for (std::int64_t h = 0; h < call.sizes().kv_heads; ++h) {
    const kernels::TilePlan& plan = call.plan(sequence * call.sizes().kv_heads + h);
    const bool begins_full = plan.run_begin[1] > 0 && plan.runs[0].first_block == 0 && plan.runs[0].bits < 0;
    pieces = std::min(pieces, begins_full ? plan.runs[0].block_count / kBlocksPerPiece : 0);
  }
  return pieces;
}

}  // namespace

CommonPrefix common_prefix(const KernelCall& call, std::int64_t first) {
  CommonPrefix prefix{.first = first};
  const kv::StoredRows* rows = call.arguments().rows;
  const auto geometry = call.sequences().geometry();
  const auto places = call.sequences().places();
  if (rows == nullptr || !is_alike(call.arguments().options) || geometry[static_cast<std::size_t>(first)].tokens != 1) return prefix;
  const std::int64_t slice = places[static_cast<std::size_t>(first)].slice;
  std::int64_t pieces = visible_pieces(call, first);
  for (std::int64_t next = first + 1; next < call.sequences().count(); ++next) {
    const auto n = static_cast<std::size_t>(next);
    if ((prefix.count + 1) * call.sizes().group > kernels::kMostNarrowRows) break;
    if (geometry[n].tokens != 1 || places[n].slice != slice + prefix.count) break;
    const std::int64_t shared = std::min({pieces, same_pages(*rows, slice, places[n].slice), visible_pieces(call, next)});
    if (shared == 0) break;
    pieces = prefix.pieces = shared;
    ++prefix.count;
  }
  return prefix;
}

CommonProblem::CommonProblem(const KernelCall& call, const CommonPrefix& prefix, std::int64_t kv_head)
    : run_begin_{0, 1}, run_{0, static_cast<std::int32_t>(prefix.pieces * kBlocksPerPiece), -1},
      problem_(call.problem(prefix.first * call.sizes().kv_heads + kv_head, segment_)) {
  const std::int64_t rows = prefix.count * call.sizes().group;
  plan_.rows = rows;
  plan_.keys = prefix.pieces * kPieceKeys;
  plan_.block_rows = static_cast<std::int32_t>(rows);
  plan_.run_begin = run_begin_;
  plan_.runs = &run_;
  problem_.q.tokens = prefix.count;
  problem_.q.token_stride = call.arguments().q.stride(0);
  problem_.plan = &plan_;
}

}  // namespace heed::front
