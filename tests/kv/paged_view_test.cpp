// SPDX-License-Identifier: Apache-2.0
// KvView::paged: pages of any size in any order are the sequence that they spell.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/kv_cache.hpp>

#include "support/attention.hpp"
#include "support/tensors.hpp"

namespace heed {
namespace {

using test::isas_here;
using test::random_normal;
using test::same_bits;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

constexpr std::int64_t kHeads = 2, kGroup = 2, kDim = 24, kValueDim = 40;

/// Pages with NaN wherever no token lies, a table that shuffles them, and the same tokens one behind the other.
struct Paged {
  Tensor k_pages, v_pages, table, lengths;
  std::vector<Tensor> k, v;  // [1, length, Hkv, dim] of each sequence

  Paged(DType dtype, std::int64_t page_size, const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
    const auto batch = static_cast<std::int64_t>(sizes.size());
    const std::int64_t most = (*std::max_element(sizes.begin(), sizes.end()) + page_size - 1) / page_size + 1;
    const std::int64_t pages = batch * most + 3;
    k_pages = filled_with_nan(dtype, {pages, page_size, kHeads, kDim});
    v_pages = filled_with_nan(dtype, {pages, page_size, kHeads, kValueDim});
    table = Tensor(DType::kInt32, {batch, most});
    lengths = Tensor(DType::kInt64, {batch});
    std::vector<std::int32_t> order(static_cast<std::size_t>(pages));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t length = sizes[static_cast<std::size_t>(b)];
      lengths.data_as<std::int64_t>()[b] = length;
      k.push_back(random_normal({1, length, kHeads, kDim}, dtype, seed + 10 + static_cast<std::uint64_t>(b)));
      v.push_back(random_normal({1, length, kHeads, kValueDim}, dtype, seed + 50 + static_cast<std::uint64_t>(b)));
      for (std::int64_t n = 0; n < most; ++n) {
        const std::int32_t page = order[static_cast<std::size_t>(b * most + n)];
        const bool used = n * page_size < length;
        table.data_as<std::int32_t>()[b * most + n] = used ? page : -12345;  // never looked at
        const std::int64_t count = std::clamp<std::int64_t>(length - n * page_size, 0, page_size);
        copy(k_pages, page, k.back(), n * page_size, count);
        copy(v_pages, page, v.back(), n * page_size, count);
      }
    }
  }

  [[nodiscard]] KvView view() const { return KvView::paged(k_pages, v_pages, table, lengths); }

  static Tensor filled_with_nan(DType dtype, const Shape& shape) {
    Tensor wide(DType::kFloat64, shape);
    std::fill_n(wide.data_as<double>(), element_count(shape), std::numeric_limits<double>::quiet_NaN());
    return convert(wide, dtype);
  }
  static void copy(Tensor& pages, std::int64_t page, const Tensor& rows, std::int64_t first, std::int64_t count) {
    if (count == 0) return;
    const std::int64_t row_bytes = rows.shape()[2] * rows.shape()[3] * size_bytes(rows.dtype());
    std::memcpy(static_cast<std::byte*>(pages.data()) + page * pages.shape()[1] * row_bytes,
                static_cast<const std::byte*>(rows.data()) + first * row_bytes, static_cast<std::size_t>(count * row_bytes));
  }
};

TensorView entry(const Tensor& tensor, std::int64_t b) { return slice(tensor.view(), 0, b, 1); }

TEST(PagedView, SameBitsAsEachSequenceAlone) {
  const std::vector<std::int64_t> sizes = {700, 1, 0, 513, 256, 300};
  for (const base::Isa isa : isas_here()) {
    SCOPED_TRACE(base::to_string(isa));
    const base::ForceIsa forced(isa);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const std::int64_t page_size : {1, 16, 100, 256}) {
        const Paged pages(dtype, page_size, sizes, 3);
        for (const std::int64_t q_tokens : {1, 5, 60}) {
          SCOPED_TRACE(std::to_string(page_size) + " tokens a page, Lq " + std::to_string(q_tokens));
          const Tensor q = random_normal({6, q_tokens, kHeads * kGroup, kDim}, dtype, 1);
          const AttentionOptions options = {.mask = Mask::causal() & (Mask::window(400, 0) | Mask::sink_tokens(3))};
          const AttentionState all = attention_state(q, pages.view(), options);
          for (std::int64_t b = 0; b < 6; ++b) {
            const AttentionState one =
                attention_state(entry(q, b), pages.k[static_cast<std::size_t>(b)], pages.v[static_cast<std::size_t>(b)], options);
            EXPECT_TRUE(same_bits(one.out, entry(all.out, b)) && same_bits(one.lse, entry(all.lse, b))) << "sequence " << b;
          }
        }
      }
    }
  }
}

TEST(PagedView, TellsAboutItself) {
  const Paged pages(DType::kBFloat16, 16, {20, 0, 33}, 1);
  const KvView view = pages.view();
  EXPECT_EQ(view.batch(), 3);
  EXPECT_EQ(view.length(), 33);
  EXPECT_EQ(view.length(0), 20);
  EXPECT_EQ(view.first_key(2), 0);
  EXPECT_EQ(view.kv_heads(), kHeads);
  EXPECT_EQ(view.head_dim(), kDim);
  EXPECT_EQ(view.value_dim(), kValueDim);
  EXPECT_EQ(view.dtype(), DType::kBFloat16);
  EXPECT_FALSE(view.is_contiguous());
  const Tensor k = view.copy_keys();
  EXPECT_TRUE(test::same_values(slice(entry(k, 0), 1, 0, 20), pages.k[0]));
  EXPECT_TRUE(test::same_values(slice(entry(k, 2), 1, 0, 33), pages.k[2]));
  EXPECT_EQ(test::max_abs(slice(entry(k, 0), 1, 20, 13)), 0.0);
}

// Several sequences may begin with the same pages, and strides may be any.
TEST(PagedView, SharedPagesAndAnyStrides) {
  const Tensor k = random_normal({4, kHeads, 7, kDim}, DType::kFloat32, 1),
               v = random_normal({4, kHeads, 7, kValueDim}, DType::kFloat32, 2);
  const TensorView k_pages = permute(k.view(), {0, 2, 1, 3}), v_pages = permute(v.view(), {0, 2, 1, 3});
  Tensor table(DType::kInt64, {2, 3}), lengths(DType::kInt32, {2});
  const std::int64_t pages[] = {2, 0, 1, 2, 0, 3};
  std::copy(std::begin(pages), std::end(pages), table.data_as<std::int64_t>());
  lengths.data_as<std::int32_t>()[0] = 21;
  lengths.data_as<std::int32_t>()[1] = 15;
  const Tensor q = random_normal({2, 1, kHeads, kDim}, DType::kFloat32, 3);
  const KvView view = KvView::paged(k_pages, v_pages, table, lengths);
  const AttentionState got = attention_state(q, view);
  for (std::int64_t b = 0; b < 2; ++b) {
    const Tensor keys = view.copy_keys(), values = view.copy_values();
    const std::int64_t length = view.length(b);
    for (std::int64_t t = 0; t < length; ++t) {
      EXPECT_EQ(element(keys, {b, t, 1, 5}), element(k, {pages[3 * b + t / 7], 1, t % 7, 5}));
      EXPECT_EQ(element(values, {b, t, 1, 5}), element(v, {pages[3 * b + t / 7], 1, t % 7, 5}));
    }
    const AttentionState one = attention_state(entry(q, b), slice(entry(keys, b), 1, 0, length), slice(entry(values, b), 1, 0, length));
    EXPECT_LT(test::max_abs_difference(one.out, entry(got.out, b)), 1e-6);
  }
}

TEST(PagedView, Errors) {
  const Paged pages(DType::kFloat32, 16, {20, 5}, 1);
  const auto made = [&](const TensorView& k, const TensorView& v, const TensorView& table, const TensorView& lengths) {
    return message_of([&] { static_cast<void>(KvView::paged(k, v, table, lengths)); });
  };
  const auto& [k, v, table, lengths, unused_k, unused_v] = pages;
  EXPECT_EQ(made({}, v, table, lengths), "KvView::paged: k_pages: expected a tensor [P, page_size, Hkv, D], got none");
  EXPECT_EQ(made(slice(k.view(), 0, 0, 3), v, table, lengths),
            "KvView::paged: v_pages: expected 3 (as k_pages) on axis 0, got " + to_string(v.shape()));
  EXPECT_EQ(made(k, convert(v, DType::kBFloat16), table, lengths), "KvView::paged: v_pages: expected k_pages' type, float32, got bfloat16");
  EXPECT_EQ(made(convert(k, DType::kFloat64), v, table, lengths),
            "KvView::paged: k_pages: expected float32, bfloat16 or float16, got float64");
  EXPECT_EQ(made(k, v, k, lengths), "KvView::paged: block_table: expected int32 or int64, got float32");
  EXPECT_EQ(made(k, v, lengths, lengths), "KvView::paged: block_table: expected 2 axes [B, n], got [2]");
  EXPECT_EQ(made(k, v, table, slice(lengths.view(), 0, 0, 1)),
            "KvView::paged: lengths: expected [B] = [2] as block_table's first axis, got [1]");
  EXPECT_EQ(made(slice(k.view(), 1, 0, 0), slice(v.view(), 1, 0, 0), table, lengths),
            "KvView::paged: k_pages: expected at least 1 token a page on axis 1, got [9, 0, 2, 24]");
  Tensor bad(DType::kInt64, {2});
  bad.data_as<std::int64_t>()[0] = 49;
  bad.data_as<std::int64_t>()[1] = 0;
  EXPECT_EQ(made(k, v, table, bad), "KvView::paged: lengths: expected values from 0 to 3 pages of 16 tokens, got 49 in sequence 0");
  bad.data_as<std::int64_t>()[0] = std::numeric_limits<std::int64_t>::min();
  EXPECT_NE(made(k, v, table, bad).find("in sequence 0"), std::string::npos);
  bad.data_as<std::int64_t>()[0] = std::numeric_limits<std::int64_t>::max();
  EXPECT_NE(made(k, v, table, bad).find("in sequence 0"), std::string::npos);
  bad.data_as<std::int64_t>()[0] = 40;  // its third page is -12345
  EXPECT_EQ(made(k, v, table, bad), "KvView::paged: block_table: expected pages in [0, 9), got -12345 at [0, 2]");
  const Tensor q = random_normal({2, 1, 2, kDim}, DType::kFloat32, 1);
  const TensorView inside(k.data(), DType::kFloat32, {2, 1, 2, kValueDim});
  const MutableTensorView out(const_cast<void*>(inside.data()), DType::kFloat32, {2, 1, 2, kValueDim});
  EXPECT_NE(message_of([&] { attention_into({.out = out}, q, pages.view()); }).find("an overlap with k"), std::string::npos);
}

}  // namespace
}  // namespace heed
