// SPDX-License-Identifier: Apache-2.0
#include "base/overlap.hpp"

#include <array>
#include <cstdint>
#include <cstdlib>

namespace heed::base {
namespace {

/// Bytes [low, high) that a view may touch, relative to its element 0.
struct Reach {
  std::int64_t low = 0, high = 0;
};

/// `unit`: only axes whose byte stride is smaller count; 0 takes all of them.
Reach reach(const TensorView& view, std::int64_t unit) {
  const std::int64_t width = size_bytes(view.dtype());
  Reach result{0, width};
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) <= 1) continue;  // any stride is right there, and a huge one would overflow
    const std::int64_t step = view.stride(axis) * width;
    if (unit != 0 && std::abs(step) >= unit) continue;
    const std::int64_t far = (view.size(axis) - 1) * step;
    (far < 0 ? result.low : result.high) += far;
  }
  return result;
}

bool is_empty(const TensorView& view) { return !view || element_count(view.shape()) == 0; }

bool every_larger_stride_is_a_multiple(const TensorView& view, std::int64_t unit) {
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.size(axis) <= 1) continue;
    const std::int64_t step = std::abs(view.stride(axis)) * size_bytes(view.dtype());
    if (step >= unit && step % unit != 0) return false;
  }
  return true;
}

/// Slices of one buffer interleave: q, k, v and out in one [L, 4, H, D] block. They are apart when, modulo a stride that all their
/// outer axes are multiples of, their inner parts are.
bool apart_modulo(const TensorView& a, const TensorView& b, std::int64_t unit) {
  if (!every_larger_stride_is_a_multiple(a, unit) || !every_larger_stride_is_a_multiple(b, unit)) return false;
  const Reach ra = reach(a, unit);
  const Reach rb = reach(b, unit);
  const std::intptr_t from_a = reinterpret_cast<std::intptr_t>(a.data()) + ra.low;
  const std::intptr_t from_b = reinterpret_cast<std::intptr_t>(b.data()) + rb.low;
  const std::int64_t distance = ((from_b - from_a) % unit + unit) % unit;
  return ra.high - ra.low <= distance && distance + (rb.high - rb.low) <= unit;
}

/// The axis with the smallest stride among those that are left, or -1.
int smallest_axis(const TensorView& view, const std::array<bool, kMaxRank>& taken) {
  int best = -1;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (taken[static_cast<std::size_t>(axis)] || view.size(axis) <= 1) continue;
    if (best < 0 || std::abs(view.stride(axis)) < std::abs(view.stride(best))) best = axis;
  }
  return best;
}

}  // namespace

bool may_overlap(const TensorView& a, const TensorView& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Reach ra = reach(a, 0);
  const Reach rb = reach(b, 0);
  const auto base_a = reinterpret_cast<std::intptr_t>(a.data());
  const auto base_b = reinterpret_cast<std::intptr_t>(b.data());
  if (base_a + ra.high <= base_b + rb.low || base_b + rb.high <= base_a + ra.low) return false;
  for (int axis = 0; axis < a.rank(); ++axis) {
    if (a.size(axis) <= 1) continue;
    const std::int64_t unit = std::abs(a.stride(axis)) * size_bytes(a.dtype());
    if (unit > 0 && apart_modulo(a, b, unit)) return false;
  }
  return true;
}

bool overlaps_itself(const TensorView& view) {
  if (is_empty(view)) return false;
  std::array<bool, kMaxRank> taken{};
  std::int64_t reached = 0;
  for (int axis = smallest_axis(view, taken); axis >= 0; axis = smallest_axis(view, taken)) {
    if (std::abs(view.stride(axis)) <= reached) return true;
    reached += std::abs(view.stride(axis)) * (view.size(axis) - 1);
    taken[static_cast<std::size_t>(axis)] = true;
  }
  return false;
}

}  // namespace heed::base
