// SPDX-License-Identifier: Apache-2.0
// Packed tensors as batches of one, whose rows belong to sequences.
#pragma once

#include "attention/arguments.hpp"

namespace heed::front {

/// [T, H, D] as [1, T, H, D].
template <class View>
[[nodiscard]] View rows_as_batch(const View& view) {
  if (!view) return view;
  const Shape& n = view.shape();
  const Strides& s = view.strides();
  return View(view.data(), view.dtype(), {1, n[0], n[1], n[2]}, {0, s[0], s[1], s[2]});
}

/// [H, T] as [1, H, T].
template <class View>
[[nodiscard]] View statistics_as_batch(const View& view) {
  if (!view) return view;
  return View(view.data(), view.dtype(), {1, view.size(0), view.size(1)}, {0, view.stride(0), view.stride(1)});
}

/// Those with at least one token. `packed` has offsets.
void add_sequences(const Arguments& packed, const Sizes& sizes, Sequences& sequences);

/// Rows [begin, end) of [1, T, H, D] become 0.
void clear_rows(const MutableTensorView& rows, std::int64_t begin, std::int64_t end);

}  // namespace heed::front
