// SPDX-License-Identifier: Apache-2.0
#include "attention/backward_bias.hpp"

#include <algorithm>

namespace heed::front {
namespace {

/// The view's own sizes on four axes, right-aligned; 1 on those that it lacks.
Shape own_sizes(const TensorView& view) {
  Shape shape = {1, 1, 1, 1};
  for (int axis = 0; axis < view.rank(); ++axis) shape[4 - view.rank() + axis] = view.size(axis);
  return shape;
}

BiasSharing sharing_of(const MutableTensorView& dbias, const Sizes& s) {
  if (!dbias) return BiasSharing::kNone;
  const Shape own = own_sizes(dbias);
  if (own[3] == 1 && s.kv_tokens > 1) return BiasSharing::kKeys;
  const bool one_batch = own[0] == 1 && s.batch > 1;
  const bool one_head = own[1] == 1 && s.kv_heads > 1;
  return one_batch || one_head ? BiasSharing::kPairs : BiasSharing::kNone;
}

bool in_place(const MutableTensorView& dbias) { return dbias.dtype() == DType::kFloat32; }

/// Calls f(offset in elements of the view, row-major index).
template <class F>
void for_each_element(const MutableTensorView& view, const F& f) {
  const Shape own = own_sizes(view);
  const TensorView wide = broadcast4(view, own);
  std::int64_t n = 0;
  for (std::int64_t b = 0; b < own[0]; ++b) {
    for (std::int64_t h = 0; h < own[1]; ++h) {
      for (std::int64_t i = 0; i < own[2]; ++i) {
        const std::int64_t row = b * wide.stride(0) + h * wide.stride(1) + i * wide.stride(2);
        for (std::int64_t j = 0; j < own[3]; ++j) f(row + j * wide.stride(3), n++);
      }
    }
  }
}

}  // namespace

BiasSums::BiasSums(const MutableTensorView& dbias, const Sizes& sizes)
    : dbias_(dbias), sharing_(sharing_of(dbias, sizes)), memory_(dbias && !in_place(dbias) ? element_count(dbias.shape()) * 4 : 0) {
  if (!dbias) return;
  const Shape full = {sizes.batch, sizes.q_heads, sizes.q_tokens, sizes.kv_tokens};
  if (in_place(dbias)) {
    auto* data = static_cast<float*>(dbias.data());
    for_each_element(dbias, [data](std::int64_t offset, std::int64_t) { data[offset] = 0.0F; });
    sums_ = broadcast4(dbias, full);
  } else {
    auto* data = reinterpret_cast<float*>(memory_.data());
    std::fill_n(data, element_count(dbias.shape()), 0.0F);
    sums_ = broadcast4(TensorView(data, dbias.shape()), full);
  }
}

void BiasSums::write() const {
  if (!dbias_ || in_place(dbias_)) return;
  const auto* sums = reinterpret_cast<const float*>(memory_.data());
  for_each_element(dbias_, [&](std::int64_t offset, std::int64_t n) {
    if (dbias_.dtype() == DType::kBFloat16) {
      static_cast<bfloat16*>(dbias_.data())[offset] = bfloat16(sums[n]);
    } else {
      static_cast<float16*>(dbias_.data())[offset] = float16(sums[n]);
    }
  });
}

}  // namespace heed::front
