// SPDX-License-Identifier: Apache-2.0
// select_blocks against means, products and sorting written out; and how much attention its masks keep.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/select_blocks.hpp>

#include "support/tensors.hpp"

namespace heed {
namespace {

using test::random_normal;

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was thrown";
}

double mean_product(const TensorView& q, const TensorView& k, std::int64_t h, std::int64_t kv_head, std::int64_t i, std::int64_t j,
                    std::int64_t block) {
  const std::int64_t offset = k.size(1) - q.size(1);
  double product = 0;
  for (std::int64_t d = 0; d < q.size(3); ++d) {
    double query = 0, key = 0;
    std::int64_t queries = 0, keys = 0;
    for (std::int64_t t = 0; t < q.size(1); ++t) {
      if ((t + offset) / block != i) continue;
      query += element(q, {0, t, h, d});
      ++queries;
    }
    for (std::int64_t t = j * block; t < std::min((j + 1) * block, k.size(1)); ++t, ++keys) key += element(k, {0, t, kv_head, d});
    product += query / static_cast<double>(queries) * key / static_cast<double>(keys);
  }
  return product;
}

TEST(SelectBlocks, KeepsTheBlocksWithTheLargestMeanProducts) {
  const std::int64_t block = 8, heads = 4, dim = 6;
  for (const auto& [queries, keys] : {std::pair<std::int64_t, std::int64_t>{61, 61}, {5, 70}, {1, 9}, {24, 24}}) {
    const Tensor q = random_normal({1, queries, heads, dim}, DType::kFloat32, 1), k = random_normal({1, keys, 2, dim}, DType::kFloat32, 2);
    const BlockSelection selection = {.block = block, .keep = 4, .first = 1, .local = 2};
    const Mask mask = select_blocks(q, k, selection);
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t t = 0; t < queries; ++t) {
        const std::int64_t p = t + keys - queries, own = p / block;
        std::vector<std::pair<double, std::int64_t>> rest;
        for (std::int64_t j = 1; j <= own - 2; ++j) rest.emplace_back(-mean_product(q, k, h, h / 2, own, j, block), j);
        std::sort(rest.begin(), rest.end());
        rest.resize(std::min<std::size_t>(rest.size(), 1));
        for (std::int64_t key = 0; key < keys; ++key) {
          const std::int64_t j = key / block;
          const bool kept = j < 1 || j > own - 2 || std::any_of(rest.begin(), rest.end(), [j](const auto& r) { return r.second == j; });
          ASSERT_EQ(mask.visible(0, h, t, p, key), kept && key <= p) << h << " " << t << " " << key;
        }
      }
    }
  }
}

/// Share of each row's attention that the mask keeps, averaged, by lse.
double kept_mass(const Tensor& q, const Tensor& k, const Mask& mask) {
  const Tensor part = attention_state(q, k, k, {.mask = mask}).lse, all = attention_state(q, k, k, {.mask = Mask::causal()}).lse;
  double sum = 0;
  const std::int64_t count = element_count(part.shape());
  for (std::int64_t i = 0; i < count; ++i) {
    sum += std::exp(static_cast<double>(part.data_as<float>()[i]) - static_cast<double>(all.data_as<float>()[i]));
  }
  return sum / static_cast<double>(count);
}

// Keys that drift slowly, as those of neighbouring tokens do: what pooling lives on.
TEST(SelectBlocks, KeepsMoreThanAsManyRandomBlocks) {
  const std::int64_t length = 1024, dim = 32;
  Tensor q = random_normal({1, length, 2, dim}, DType::kFloat32, 1), k = random_normal({1, length, 2, dim}, DType::kFloat32, 2);
  for (Tensor* x : {&q, &k}) {
    float* at = x->data_as<float>();
    for (std::int64_t i = 2 * dim; i < length * 2 * dim; ++i) at[i] = 0.98F * at[i - 2 * dim] + 0.2F * at[i];
    for (std::int64_t i = 0; i < length * 2 * dim; ++i) at[i] *= 2;
  }
  const Mask chosen = select_blocks(q, k, {.block = 32, .keep = 8});
  const Mask random = Mask::causal() & (Mask::random_blocks({.block = 32, .per_row = 6, .seed = 3}) | Mask::sink_tokens(32) |
                                        Mask::in_blocks(32, Mask::window(0, 0)));
  const double kept = kept_mass(q, k, chosen);
  EXPECT_GT(kept, 0.75);
  EXPECT_LE(kept, 1.0 + 1e-5);
  EXPECT_GT(kept, kept_mass(q, k, random) + 0.1);
  EXPECT_NEAR(kept_mass(q, k, select_blocks(q, k, {.block = 32, .keep = 32})), 1.0, 1e-5);
}

TEST(SelectBlocks, OddInput) {
  const Tensor none = Tensor::zeros(DType::kFloat32, {1, 0, 2, 4}), k = random_normal({1, 40, 2, 4}, DType::kBFloat16, 1);
  EXPECT_EQ(attention(none, k, k, {.mask = select_blocks(none, k, {.block = 16, .keep = 2})}).shape(), (Shape{1, 0, 2, 4}));
  EXPECT_EQ(attention(none, none, none, {.mask = select_blocks(none, none)}).shape(), (Shape{1, 0, 2, 4}));
  Tensor bad = random_normal({1, 40, 2, 4}, DType::kFloat32, 1);
  bad.data_as<float>()[8] = std::numeric_limits<float>::quiet_NaN();
  static_cast<void>(select_blocks(bad, bad, {.block = 4, .keep = 3}));  // whatever it chooses, it returns
  const Tensor q = random_normal({1, 8, 2, 4}, DType::kFloat32, 2);
  const auto made = [&](const TensorView& a, const TensorView& b, const BlockSelection& s) {
    return message_of([&] { static_cast<void>(select_blocks(a, b, s)); });
  };
  EXPECT_EQ(made(q, k, {.block = 0}), "select_blocks: block: expected at least 1, got 0");
  EXPECT_EQ(made(q, k, {.keep = 1}), "select_blocks: keep: expected at least first + local, got 1");
  EXPECT_EQ(made(k, q, {}), "select_blocks: q: expected no more queries than the 8 keys, got 40");
  EXPECT_EQ(made({}, k, {}), "select_blocks: q: expected a tensor [1, Lq, Hq, D], got none");
  EXPECT_EQ(made(random_normal({2, 8, 2, 4}, DType::kFloat32, 1), k, {}),
            "select_blocks: q: expected one sequence, [1, Lq, Hq, D], got [2, 8, 2, 4]");
  EXPECT_EQ(made(random_normal({1, 8, 3, 4}, DType::kFloat32, 1), k, {}),
            "select_blocks: k: expected a number of heads that divides the 3 of q, got 2 heads");
}

}  // namespace
}  // namespace heed
