// SPDX-License-Identifier: Apache-2.0
// What each mask means: the manual's pictures, brute force over all small sizes, and argument errors.
#include <gtest/gtest.h>

#include <heed/error.hpp>

#include "mask/node.hpp"
#include "plan_check.hpp"

namespace heed::test {
namespace {

std::string picture(const Mask& mask, std::int64_t tokens, std::int64_t keys, std::int64_t offset) {
  std::string text;
  for (std::int64_t i = 0; i < tokens; ++i) {
    for (std::int64_t j = 0; j < keys; ++j) text += mask.visible(0, 0, i, i + offset, j) ? '1' : '0';
    text += ' ';
  }
  return text;
}

TEST(MaskMeaning, PicturesOfTheManual) {
  EXPECT_EQ(picture(Mask::causal(), 4, 4, 0), "1000 1100 1110 1111 ");
  EXPECT_EQ(picture(Mask::window(1, 0), 4, 4, 0), "1000 1100 0110 0011 ");
  EXPECT_EQ(picture(Mask::sliding_window(2) | Mask::sink_tokens(1), 4, 4, 0), "1000 1100 1110 1011 ");
  EXPECT_EQ(picture(Mask::none(), 2, 3, 0), "111 111 ");
  EXPECT_EQ(picture(~Mask::none(), 2, 3, 0), "000 000 ");
}

TEST(MaskMeaning, CausalAlignment) {
  EXPECT_EQ(picture(Mask::causal(), 2, 4, 2), "1110 1111 ");  // bottom right
  EXPECT_EQ(picture(Mask::causal(), 3, 2, -1), "00 10 11 ");  // bottom right, more queries than keys
  EXPECT_EQ(picture(Mask::causal(), 2, 4, 0), "1000 1100 ");  // top left
}

/// sliding_window(w) counts the current token, window(left, right) counts distances.
TEST(MaskMeaning, WindowConventions) {
  EXPECT_EQ(picture(Mask::sliding_window(3), 1, 8, 6), picture(Mask::window(2, 0), 1, 8, 6));
  EXPECT_EQ(picture(Mask::sliding_window(1), 3, 3, 0), "100 010 001 ");
  EXPECT_EQ(picture(Mask::window(kUnbounded, 1), 3, 4, 0), "1100 1110 1111 ");
  EXPECT_EQ(picture(Mask::window(0, kUnbounded), 3, 4, 0), "1111 0111 0011 ");
}

BoolArray pattern(const Shape& shape, std::int64_t period) {
  BoolArray array(shape);
  for (std::int64_t i = 0; i < element_count(shape); ++i) array.data[static_cast<std::size_t>(i)] = i % period != 0;
  return array;
}

/// At least one mask of every kind; heads = 2, batch = 2.
std::vector<Model> every_kind(std::int64_t tokens, std::int64_t keys) {
  const auto c = causal_model();
  return {
      none_model(),
      ~none_model(),
      c,
      ~c,
      window_model(3, 0),
      window_model(2, 4),
      window_model(kUnbounded, 2),
      window_model(0, kUnbounded),
      window_model(kUnbounded, kUnbounded),
      sliding_window_model(1),
      sliding_window_model(4),
      prefix_lm_model(0),
      prefix_lm_model(5),
      sink_tokens_model(0),
      sink_tokens_model(3),
      global_tokens_model({}),
      global_tokens_model({0, 7, 7, 3}),
      documents_model({{4, 4, 4, 9, 9, -1, -1, -1, 4, 4, 0, 0}}),
      documents_model({{1, 1, 1, 2, 2, 2, 2}, {5, 6, 7, 8, 8, 5, 6}}),
      block_sparse_model(pattern({1, 4, 5}, 3), 3),
      block_sparse_model(pattern({2, 12, 11}, 4), 1),
      from_tensor_model(pattern({1, 1, tokens, keys}, 3)),
      from_tensor_model(pattern({2, 1, 1, keys}, 4)),
      from_tensor_model(pattern({2, 2, tokens, 1}, 2)),
      per_head_model({c, ~window_model(1, 1)}),
      c & (sliding_window_model(3) | sink_tokens_model(2)),
      c & documents_model({{4, 4, 4, 9, 9, 1, 1, 1, 4, 4, 0, 0}}),
      ~(c | global_tokens_model({2})) & window_model(5, 5),
  };
}

TEST(MaskMeaning, EveryKindAgreesWithItsPredicateForAllSmallSizes) {
  for (std::int64_t tokens = 0; tokens <= 12; ++tokens) {
    for (std::int64_t keys = 0; keys <= 12; ++keys) {
      for (const std::int64_t offset : {keys - tokens, std::int64_t{0}}) {
        for (const Model& model : every_kind(tokens, keys)) {
          for (std::int64_t at = 0; at < 4 * tokens * keys; ++at) {
            const std::int64_t b = at % 2;
            const std::int64_t h = at / 2 % 2;
            const std::int64_t i = at / 4 / keys;
            const std::int64_t j = at / 4 % keys;
            ASSERT_EQ(model.mask.visible(b, h, i, i + offset, j), model.visible(b, h, i, i + offset, j))
                << model.mask.to_string() << " Lq " << tokens << " Lk " << keys << " b " << b << " h " << h << " i " << i << " j " << j;
          }
        }
      }
    }
  }
}

TEST(MaskMeaning, EveryKindCompilesToItsPredicateForAllSmallSizes) {
  for (std::int64_t tokens = 0; tokens <= 12; ++tokens) {
    for (std::int64_t keys = 0; keys <= 12; ++keys) {
      for (const Model& model : every_kind(tokens, keys)) {
        // Bottom right and top left, as the two entries of a batch.
        const std::vector<mask::Geometry> geometry = {{tokens, keys, keys - tokens, 0}, {tokens, keys, 0, 1}};
        ASSERT_EQ(compare_plans(model, {geometry, 2, 1, 15}), "") << tokens << " " << keys;
        ASSERT_EQ(compare_plans(model, {geometry, 1, 2, 5}), "") << tokens << " " << keys;
      }
    }
  }
}

TEST(MaskMeaning, FromTensorTakesAnyStridesAndBroadcastsExpandedAxes) {
  const BoolArray plain = pattern({5, 7}, 3);
  const BoolArray transposed(Shape{7, 5});
  for (std::int64_t at = 0; at < 35; ++at)
    transposed.data[static_cast<std::size_t>(at % 7 * 5 + at / 7)] = plain.data[static_cast<std::size_t>(at)];
  EXPECT_EQ(Mask::from_tensor(permute(transposed.view(), {1, 0})), Mask::from_tensor(plain.view()));

  const TensorView expanded(plain.data.get(), Shape{3, 2, 5, 7}, Strides{0, 0, 7, 1});
  const Mask mask = Mask::from_tensor(expanded);
  EXPECT_FALSE(mask.node().traits().uses_batch);
  EXPECT_FALSE(mask.node().traits().uses_head);
  EXPECT_EQ(mask.node().traits().batch, 3);
  EXPECT_EQ(mask.node().traits().heads, 2);
  EXPECT_EQ(mask.visible(2, 1, 4, 99, 6), Mask::from_tensor(plain.view()).visible(0, 0, 4, 99, 6));
}

TEST(MaskMeaning, TensorsAreCopied) {
  std::vector<std::int32_t> ids = {1, 1, 2};
  const Mask mask = Mask::documents(TensorView(ids.data(), Shape{3}));
  ids.assign(3, 7);
  EXPECT_FALSE(mask.visible(0, 0, 0, 0, 2));
}

/// Strided ids, 32 and 64 bits wide.
TEST(MaskMeaning, DocumentIdsMayBeStrided) {
  const std::vector<std::int64_t> wide = {1, 0, 1, 0, 2, 0, 2, 0};
  const std::vector<std::int32_t> narrow = {1, 1, 2, 2};
  EXPECT_EQ(Mask::documents(TensorView(wide.data(), Shape{4}, Strides{2})), Mask::documents(TensorView(narrow.data(), Shape{4})));
}

TEST(MaskMeaning, HugeDistancesDoNotOverflow) {
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (const Mask& mask : {Mask::window(most, most), Mask::sliding_window(most), Mask::prefix_lm(most), Mask::sink_tokens(most)}) {
    EXPECT_TRUE(mask.visible(0, 0, 0, 5, 3)) << mask.to_string();
    EXPECT_TRUE(mask.visible(0, 0, 0, 5, 5)) << mask.to_string();
  }
  EXPECT_FALSE(Mask::sliding_window(most).visible(0, 0, 0, -3, 0));
}

TEST(MaskAlgebra, Equality) {
  EXPECT_EQ(Mask::causal(), Mask::causal());
  EXPECT_EQ(Mask::window(1, 2), Mask::window(1, 2));
  EXPECT_FALSE(Mask::window(1, 2) == Mask::window(1, kUnbounded));
  EXPECT_FALSE(Mask::sink_tokens(3) == Mask::prefix_lm(3));
  EXPECT_EQ(Mask::causal() & Mask::sink_tokens(1), Mask::causal() & Mask::sink_tokens(1));
  EXPECT_FALSE((Mask::causal() & Mask::sink_tokens(1)) == (Mask::causal() | Mask::sink_tokens(1)));
  EXPECT_EQ(Mask(), Mask::none());
  EXPECT_EQ(Mask(nullptr), Mask::none());
}

TEST(MaskAlgebra, MovedFromMasksStayMasks) {
  Mask a = Mask::causal();
  const Mask b = std::move(a);
  EXPECT_EQ(a, b);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ((a & Mask::sink_tokens(2)).to_string(), "causal & sink_tokens 2");
}

TEST(MaskAlgebra, TrivialPartsFold) {
  EXPECT_EQ(~~Mask::causal(), Mask::causal());
  EXPECT_EQ(Mask::none() & Mask::causal(), Mask::causal());
  EXPECT_EQ(Mask::causal() | Mask::none(), Mask::none());
  EXPECT_EQ(Mask::causal() & ~Mask::none(), ~Mask::none());
  EXPECT_EQ(~Mask::none() | Mask::causal(), Mask::causal());
  EXPECT_EQ(Mask::none() & Mask::none(), Mask::none());
}

TEST(MaskAlgebra, LongChainsAreFlatAndDeepNestingIsAnError) {
  Mask chain = Mask::causal();
  for (int i = 0; i < 2000; ++i) chain = chain & Mask::window(i, 0);
  EXPECT_EQ(chain.node().traits().depth, 2);
  EXPECT_TRUE(chain.visible(0, 0, 0, 7, 7));
  EXPECT_FALSE(chain.visible(0, 0, 0, 7, 6));

  Mask deep = Mask::causal();
  const auto nest = [&deep] {
    for (int i = 0; i < 100; ++i) deep = (deep & Mask::window(i, 0)) | Mask::sink_tokens(i);
  };
  EXPECT_THROW(nest(), InvalidArgument);
}

TEST(MaskTraits, SayWhatTheCallMustHave) {
  const Mask heads = Mask::per_head({Mask::causal(), Mask::none(), Mask::causal()});
  EXPECT_EQ((Mask::causal() & ~heads).node().traits().heads, 3);
  EXPECT_TRUE(heads.node().traits().uses_head);
  EXPECT_FALSE(heads.node().traits().uses_batch);
  EXPECT_EQ(documents_model({{1, 2}, {1, 1}}).mask.node().traits().batch, 2);
  EXPECT_EQ(documents_model({{1, 2}}).mask.node().traits().batch, 0);
  EXPECT_EQ(block_sparse_model(pattern({4, 2, 2}, 3), 2).mask.node().traits().heads, 4);
  EXPECT_THROW(static_cast<void>(heads & Mask::per_head({Mask::causal(), Mask::none()})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::per_head({heads, Mask::none()})), InvalidArgument);
}

template <class Make>
std::string error_of(Make make) {
  try {
    static_cast<void>(make());
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(MaskErrors, NameTheArgument) {
  const std::vector<float> floats(4);
  const std::vector<std::int64_t> negative = {3, -1};
  const BoolArray bools = pattern({2, 2}, 2);
  EXPECT_EQ(error_of([] { return Mask::window(-1, 0); }), "Mask::window: left: expected at least 0, got -1");
  EXPECT_EQ(error_of([] { return Mask::window(0, -2); }), "Mask::window: right: expected at least 0, got -2");
  EXPECT_EQ(error_of([] { return Mask::sliding_window(0); }), "Mask::sliding_window: tokens: expected at least 1, got 0");
  EXPECT_EQ(error_of([] { return Mask::prefix_lm(-1); }), "Mask::prefix_lm: n: expected at least 0, got -1");
  EXPECT_EQ(error_of([] { return Mask::sink_tokens(-1); }), "Mask::sink_tokens: n: expected at least 0, got -1");
  EXPECT_EQ(error_of([&] { return Mask::global_tokens(negative); }),
            "Mask::global_tokens: positions: expected positions of at least 0, got -1");
  EXPECT_EQ(error_of([&] { return Mask::documents(TensorView(floats.data(), Shape{4})); }),
            "Mask::documents: ids: expected int32 or int64, got float32");
  EXPECT_EQ(error_of([&] {
              return Mask::documents(TensorView(negative.data(), Shape{1, 1, 2}));
            }),
            "Mask::documents: ids: expected [L] or [B, L], got [1, 1, 2]");
  EXPECT_EQ(error_of([&] {
              return Mask::block_sparse(TensorView(floats.data(), Shape{2, 2}), 2);
            }),
            "Mask::block_sparse: layout: expected bool, got float32");
  EXPECT_EQ(error_of([&] { return Mask::block_sparse(bools.view(), 0); }), "Mask::block_sparse: block: expected at least 1, got 0");
  EXPECT_EQ(error_of([&] { return Mask::from_tensor(TensorView(bools.data.get(), Shape{4})); }),
            "Mask::from_tensor: mask: expected [Lq, Lk], [Hq, Lq, Lk] or [B, Hq, Lq, Lk], got [4]");
  EXPECT_EQ(error_of([&] {
              return Mask::from_tensor(TensorView(floats.data(), Shape{2, 2}));
            }),
            "Mask::from_tensor: mask: expected bool, got float32");
  EXPECT_EQ(error_of([] { return Mask::per_head({}); }), "Mask::per_head: masks: expected one mask per query head, got no mask");
  const auto nothing = [](DType dtype) { return TensorView(static_cast<const void*>(nullptr), dtype, Shape{2, 2}); };
  EXPECT_EQ(error_of([&] { return Mask::documents(nothing(DType::kInt64)); }),
            "Mask::documents: ids: expected memory for [2, 2], got a null pointer");
  EXPECT_EQ(error_of([&] { return Mask::block_sparse(nothing(DType::kBool), 1); }),
            "Mask::block_sparse: layout: expected memory for [2, 2], got a null pointer");
  EXPECT_EQ(error_of([&] { return Mask::from_tensor(nothing(DType::kBool)); }),
            "Mask::from_tensor: mask: expected memory for [2, 2], got a null pointer");
  EXPECT_THROW(static_cast<void>(Mask::documents(TensorView())), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Mask::from_tensor(TensorView())), InvalidArgument);
}

}  // namespace
}  // namespace heed::test
