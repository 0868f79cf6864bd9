// SPDX-License-Identifier: Apache-2.0
#include <heed/select_blocks.hpp>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "base/message.hpp"

namespace heed {
namespace {

using base::throw_invalid;
constexpr const char* kFunction = "select_blocks";

std::string text(std::int64_t value) { return std::to_string(value); }

void check_tensor(const char* name, const TensorView& x, const char* axes) {
  if (!x) throw_invalid(kFunction, name, std::string("a tensor ") + axes, "none");
  if (x.rank() != 4 || x.size(0) != 1) throw_invalid(kFunction, name, std::string("one sequence, ") + axes, to_string(x.shape()));
  if (!is_floating(x.dtype())) throw_invalid(kFunction, name, "a floating dtype", to_string(x.dtype()));
  static_cast<void>(element_count(x.shape()));
  base::require_memory(kFunction, name, x);
}

void check_field(const char* name, std::int64_t least, std::int64_t value) {
  if (value < least) throw_invalid(kFunction, name, "at least " + text(least), text(value));
}

void check(const TensorView& q, const TensorView& k, const BlockSelection& s) {
  check_tensor("q", q, "[1, Lq, Hq, D]");
  check_tensor("k", k, "[1, Lk, Hkv, D]");
  if (k.size(3) != q.size(3)) throw_invalid(kFunction, "k", text(q.size(3)) + " (D of q) on axis 3", to_string(k.shape()));
  if (k.size(2) < 1 || q.size(2) < 1 || q.size(2) % k.size(2) != 0) {
    throw_invalid(kFunction, "k", "a number of heads that divides the " + text(q.size(2)) + " of q", text(k.size(2)) + " heads");
  }
  if (q.size(1) > k.size(1)) throw_invalid(kFunction, "q", "no more queries than the " + text(k.size(1)) + " keys", text(q.size(1)));
  check_field("block", 1, s.block);
  check_field("keep", 1, s.keep);
  check_field("first", 0, s.first);
  check_field("local", 1, s.local);
  if (s.first > s.keep - s.local) throw_invalid(kFunction, "keep", "at least first + local", text(s.keep));
}

/// Means of the blocks of one head, [blocks][D], token t at position t + offset; the mean of no token is 0.
std::vector<float> means_of(const TensorView& x, std::int64_t head, std::int64_t offset, std::int64_t block, std::int64_t blocks) {
  const std::int64_t dim = x.size(3);
  std::vector<float> means(static_cast<std::size_t>(blocks * dim), 0.0F);
  std::vector<std::int64_t> counts(static_cast<std::size_t>(blocks), 0);
  const Tensor rows = convert(slice(x, 2, head, 1), DType::kFloat32);  // [1, L, 1, D]
  const auto* row = static_cast<const float*>(rows.data());
  for (std::int64_t t = 0; t < x.size(1); ++t, row += dim) {
    const std::int64_t at = (t + offset) / block;
    ++counts[static_cast<std::size_t>(at)];
    for (std::int64_t d = 0; d < dim; ++d) means[static_cast<std::size_t>(at * dim + d)] += row[d];
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    const auto count = static_cast<float>(std::max<std::int64_t>(1, counts[static_cast<std::size_t>(b)]));
    for (std::int64_t d = 0; d < dim; ++d) means[static_cast<std::size_t>(b * dim + d)] /= count;
  }
  return means;
}

/// Marks the key blocks of query block `own` in its row of the layout.
void choose(const BlockSelection& s, std::int64_t own, const float* query, const float* keys, std::int64_t dim, bool* row) {
  std::vector<float> scores(static_cast<std::size_t>(own + 1));
  std::vector<std::int64_t> order;
  for (std::int64_t j = 0; j <= own; ++j) {
    if (j < s.first || j > own - s.local) {
      row[j] = true;
      continue;
    }
    const float score = std::inner_product(query, query + dim, keys + j * dim, 0.0F);
    scores[static_cast<std::size_t>(j)] = score == score ? score : -std::numeric_limits<float>::infinity();
    order.push_back(j);
  }
  const auto kept = std::min(order.size(), static_cast<std::size_t>(s.keep - s.first - s.local));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = scores[static_cast<std::size_t>(a)], y = scores[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (std::size_t i = 0; i < kept; ++i) row[order[i]] = true;
}

}  // namespace

Mask select_blocks(const TensorView& q, const TensorView& k, const BlockSelection& s) {
  check(q, k, s);
  const std::int64_t heads = q.size(2), group = heads / k.size(2), dim = q.size(3), offset = k.size(1) - q.size(1);
  const std::int64_t blocks = k.size(1) / s.block + (k.size(1) % s.block != 0 ? 1 : 0);
  Tensor layout = Tensor::zeros(DType::kBool, {heads, blocks, blocks});
  for (std::int64_t h = 0; h < heads && q.size(1) > 0; ++h) {
    const std::vector<float> queries = means_of(q, h, offset, s.block, blocks), keys = means_of(k, h / group, 0, s.block, blocks);
    for (std::int64_t i = offset / s.block; i < blocks; ++i) {
      choose(s, i, queries.data() + i * dim, keys.data(), dim, layout.data_as<bool>() + (h * blocks + i) * blocks);
    }
  }
  return Mask::causal() & Mask::block_sparse(layout, s.block);
}

}  // namespace heed
