// SPDX-License-Identifier: Apache-2.0
// Every bad argument gives one error that names the call and the argument, and outputs keep what they held.
#include <array>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include <heed/attention.hpp>
#include <heed/error.hpp>
#include <heed/reference.hpp>

#include "support/attention.hpp"

namespace heed::test {
namespace {

constexpr DType kF32 = DType::kFloat32;

Tensor zeros(const Shape& shape, DType dtype = kF32) { return Tensor::zeros(dtype, shape); }

/// The call must throw InvalidArgument whose text begins with "function: argument: " and contains `detail`.
void expect_error(const std::string& prefix, const std::string& detail, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "no error, expected " << prefix;
  } catch (const InvalidArgument& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.rfind(prefix + ": expected ", 0), 0U) << text;
    EXPECT_NE(text.find(", got "), std::string::npos) << text;
    EXPECT_NE(text.find(detail), std::string::npos) << text << "\n  lacks " << detail;
  }
}

/// attention_into with a good out that must stay as it is.
class Call {
 public:
  Tensor q = zeros({2, 3, 4, 8}), k = zeros({2, 5, 2, 8}), v = zeros({2, 5, 2, 6});
  AttentionOptions options;

  void expect(const std::string& argument, const std::string& detail) {
    Tensor out = random_normal({2, 3, 4, 6}, kF32, 1);
    const Tensor before = out.clone();
    expect_error("attention_into: " + argument, detail, [&] { attention_into({.out = out}, q, k, v, options); });
    EXPECT_TRUE(same_values(out, before));
    expect_error("attention: " + argument, detail, [&] { static_cast<void>(attention(q, k, v, options)); });
    expect_error("attention_state: " + argument, detail, [&] { static_cast<void>(attention_state(q, k, v, options)); });
    expect_error("reference::attention_state: " + argument, detail,
                 [&] { static_cast<void>(reference::attention_state(q, k, v, options)); });
    expect_error("attention_backward: " + argument, detail, [&] { static_cast<void>(attention_backward(out, q, k, v, {}, options)); });
  }
};

TEST(Errors, Shapes) {
  {
    Call c;
    c.q = zeros({3, 4, 8});
    c.expect("q", "[3, 4, 8]");
  }
  {
    Call c;
    c.q = Tensor();
    c.expect("q", "none");
  }
  {
    Call c;
    c.k = zeros({2, 5, 2, 8, 1});
    c.expect("k", "4 axes");
  }
  {
    Call c;
    c.k = zeros({3, 5, 2, 8});
    c.expect("k", "2 (B of q) on axis 0");
  }
  {
    Call c;
    c.k = zeros({2, 5, 2, 9});
    c.expect("k", "8 (D of q) on axis 3");
  }
  {
    Call c;
    c.v = zeros({2, 4, 2, 6});
    c.expect("v", "5 (Lk of k) on axis 1");
  }
  {
    Call c;
    c.v = zeros({2, 5, 1, 6});
    c.expect("v", "2 (Hkv of k) on axis 2");
  }
  {
    Call c;
    c.v = zeros({1, 5, 2, 6});
    c.expect("v", "2 (B of q) on axis 0");
  }
  {
    Call c;
    c.v = Tensor();
    c.expect("v", "none");
  }
}

TEST(Errors, MemoryIsMissing) {
  const auto nothing = [](const Shape& shape, DType dtype) { return TensorView(static_cast<const void*>(nullptr), dtype, shape); };
  Call c;
  const AttentionOptions cases[] = {{.bias = nothing({2, 4, 3, 5}, kF32)},
                                    {.alibi_slopes = nothing({4}, kF32)},
                                    {.sink_logits = nothing({4}, kF32)},
                                    {.query_offset = nothing({2}, DType::kInt64)},
                                    {.kv_lengths = nothing({2}, DType::kInt32)}};
  const char* const names[] = {"bias", "alibi_slopes", "sink_logits", "query_offset", "kv_lengths"};
  for (std::size_t n = 0; n < std::size(names); ++n) {
    c.options = cases[n];
    c.expect(names[n], "a null pointer");
  }
  const TensorView q = nothing({2, 3, 4, 8}, kF32), k = nothing({2, 5, 2, 8}, kF32), v = nothing({2, 5, 2, 6}, kF32);
  Tensor out = zeros({2, 3, 4, 6});
  expect_error("attention: q", "[2, 3, 4, 8]", [&] { static_cast<void>(attention(q, c.k, c.v)); });
  expect_error("attention: k", "[2, 5, 2, 8]", [&] { static_cast<void>(attention(c.q, k, c.v)); });
  expect_error("attention: v", "[2, 5, 2, 6]", [&] { static_cast<void>(attention(c.q, c.k, v)); });
  expect_error("attention_into: out", "a null pointer", [&] {
    attention_into({.out = MutableTensorView(static_cast<void*>(nullptr), kF32, {2, 3, 4, 6})}, c.q, c.k, c.v);
  });
  expect_error("attention_into: lse", "a null pointer", [&] {
    attention_into({.out = out, .lse = MutableTensorView(static_cast<void*>(nullptr), kF32, {2, 4, 3})}, c.q, c.k, c.v);
  });
  const TensorView dout = nothing({2, 3, 4, 6}, kF32);
  expect_error("attention_backward: dout", "a null pointer",
               [&] { static_cast<void>(attention_backward(dout, c.q, c.k, c.v, attention_state(c.q, c.k, c.v))); });
  // Without elements nothing is missing.
  EXPECT_EQ(attention(nothing({2, 0, 4, 8}, kF32), c.k, c.v).shape(), (Shape{2, 0, 4, 6}));
}

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kLeast = std::numeric_limits<std::int64_t>::min();

TEST(Errors, SizesBeyond64Bits) {
  const float zero[8] = {};
  const TensorView many(zero, {1, kMost, 4, 8}, {0, 0, 0, 0}), k(zero, {1, 5, 2, 8}, {0, 0, 0, 0}), v(zero, {1, 5, 2, 6}, {0, 0, 0, 0}),
      q(zero, {1, 3, 4, 8}, {0, 0, 0, 0}), none(static_cast<const void*>(nullptr), kF32, {kMost, kMost, 3, 5}, {0, 0, 0, 0});
  expect_error("attention: q", "fewer than 2^63 elements", [&] { static_cast<void>(attention(many, k, v)); });
  expect_error("attention: k", "fewer than 2^63 elements", [&] { static_cast<void>(attention(q, many, v)); });
  expect_error("attention: bias", "a null pointer", [&] { static_cast<void>(attention(q, k, v, {.bias = none})); });
}

TEST(Errors, StridesThatAreMissingOrLeadNowhere) {
  Call c;
  const auto view = [](const Tensor& tensor, const Strides& strides) { return TensorView(tensor.data(), kF32, tensor.shape(), strides); };
  expect_error("attention: q", "a stride for each axis", [&] { static_cast<void>(attention(view(c.q, {1}), c.k, c.v)); });
  expect_error("attention: k", "a stride for each axis", [&] { static_cast<void>(attention(c.q, view(c.k, {}), c.v)); });
  const Tensor bias = zeros({3, 5});
  for (const std::int64_t stride : {kMost, kLeast, std::int64_t{1} << 62, -(std::int64_t{1} << 61)}) {  // times 4 bytes: -4, 0, 0, 0
    expect_error("attention: v", "within 2^62 bytes", [&] { static_cast<void>(attention(c.q, c.k, view(c.v, {stride, 12, 6, 1}))); });
    expect_error("attention: bias", "within 2^62 bytes", [&] {
      static_cast<void>(attention(c.q, c.k, c.v, {.bias = view(bias, {stride, 1})}));
    });
    Tensor out = random_normal({2, 3, 4, 6}, kF32, 1);
    const Tensor before = out.clone();
    const MutableTensorView far(out.data(), kF32, out.shape(), {stride, 24, 6, 1});
    expect_error("attention_into: out", "within 2^62 bytes", [&] { attention_into({.out = far}, c.q, c.k, c.v); });
    EXPECT_TRUE(same_values(out, before));
  }
}

// Frameworks leave any number there.
TEST(Errors, AStrideOfAnAxisOfOneIsNeverUsed) {
  const Tensor q = random_normal({1, 3, 4, 8}, kF32, 1), k = random_normal({1, 5, 2, 8}, kF32, 2), v = random_normal({1, 5, 2, 6}, kF32, 3);
  const Tensor expected = attention(q, k, v);
  for (const std::int64_t stride : {kMost, kLeast}) {
    const TensorView odd_q(q.data(), kF32, q.shape(), {stride, 32, 8, 1}), odd_v(v.data(), kF32, v.shape(), {stride, 12, 6, 1});
    Tensor out = zeros({1, 3, 4, 6});
    attention_into({.out = MutableTensorView(out.data(), kF32, out.shape(), {stride, 24, 6, 1})}, odd_q, k, odd_v);
    EXPECT_TRUE(same_values(out, expected));
    EXPECT_TRUE(same_values(attention(odd_q, k, odd_v), expected));
  }
}

TEST(Errors, HeadsAndHeadDims) {
  {
    Call c;
    c.k = zeros({2, 5, 3, 8});
    c.v = zeros({2, 5, 3, 6});
    c.expect("k", "divides the 4 of q");
  }
  {
    Call c;
    c.k = zeros({2, 5, 8, 8});
    c.v = zeros({2, 5, 8, 6});
    c.expect("k", "8 heads");
  }
  {
    Call c;
    c.q = zeros({2, 3, 0, 8});
    c.expect("q", "at least 1 head");
  }
  {
    Call c;
    c.k = zeros({2, 5, 0, 8});
    c.v = zeros({2, 5, 0, 6});
    c.expect("k", "at least 1 head");
  }
  {
    Call c;
    c.q = zeros({2, 3, 4, 0});
    c.k = zeros({2, 5, 2, 0});
    c.expect("q", "from 1 to 1024");
  }
  {
    Call c;
    c.q = zeros({2, 3, 4, 1025});
    c.k = zeros({2, 5, 2, 1025});
    c.expect("q", "from 1 to 1024");
  }
  {
    Call c;
    c.v = zeros({2, 5, 2, 0});
    c.expect("v", "from 1 to 1024");
  }
  {
    Call c;
    c.v = zeros({2, 5, 2, 1025});
    c.expect("v", "from 1 to 1024");
  }
}

TEST(Errors, Types) {
  {
    Call c;
    c.q = zeros({2, 3, 4, 8}, DType::kInt32);
    c.expect("q", "a floating type");
  }
  {
    Call c;
    c.k = zeros({2, 5, 2, 8}, DType::kBool);
    c.expect("k", "bool");
  }
  {
    Call c;
    c.v = zeros({2, 5, 2, 6}, DType::kFloat16);
    c.expect("v", "k's type, float32");
  }
  {
    Call c;
    c.q = zeros({2, 3, 4, 8}, DType::kBFloat16);
    c.expect("k", "no wider than q's bfloat16");
  }
  {
    Call c;
    c.q = zeros({2, 3, 4, 8}, DType::kFloat64);
    c.expect("k", "float64");
  }
}

TEST(Errors, Scalars) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const double scale : {nan, infinity, -infinity, 1e39, -1e300, 3e38}) {
    Call c;
    c.options.scale = scale;
    c.expect("scale", "finite");
  }
  for (const double cap : {0.0, -1.0, nan, infinity, 1e-39, 1e39, 3e38}) {
    Call c;
    c.options.softcap = cap;
    c.expect("softcap", "above 0");
  }
  for (const double p : {1.0, -0.1, 1.5, nan}) {
    Call c;
    c.options.dropout = Dropout{p, 0};
    c.expect("dropout.p", "0 <= p < 1");
  }
  {
    Call c;
    c.options.align = static_cast<Align>(9);
    c.expect("align", "9");
  }
}

TEST(Errors, Bias) {
  const auto check = [](const Shape& shape, DType dtype, const char* detail) {
    const Tensor bias = zeros(shape, dtype);
    Call c;
    c.options.bias = bias;
    c.expect("bias", detail);
  };
  check({3, 4}, kF32, "[2, 4, 3, 5]");
  check({2, 5}, kF32, "[2, 5]");
  check({3, 4, 3, 5}, kF32, "broadcasts");
  check({1, 2, 4, 3, 5}, kF32, "broadcasts");
  check({0}, kF32, "broadcasts");
  check({5}, DType::kBFloat16, "float32");
  check({5}, DType::kFloat64, "float64");
  check({3, 5}, DType::kBool, "bool");
}

TEST(Errors, SmallTensors) {
  const auto check = [](const char* name, TensorView AttentionOptions::*field, const Shape& shape, DType dtype, const char* detail) {
    const Tensor tensor = zeros(shape, dtype);
    Call c;
    c.options.*field = tensor;
    c.expect(name, detail);
  };
  check("alibi_slopes", &AttentionOptions::alibi_slopes, {2}, kF32, "[Hq] = [4]");
  check("alibi_slopes", &AttentionOptions::alibi_slopes, {4, 2}, kF32, "[Hq] = [4]");
  check("alibi_slopes", &AttentionOptions::alibi_slopes, {4}, DType::kFloat16, "float32");
  check("sink_logits", &AttentionOptions::sink_logits, {2}, kF32, "[Hq] = [4]");
  check("sink_logits", &AttentionOptions::sink_logits, {2, 4}, kF32, "[Hq] = [4]");
  check("sink_logits", &AttentionOptions::sink_logits, {4}, DType::kFloat64, "float32");
  check("kv_lengths", &AttentionOptions::kv_lengths, {1}, DType::kInt64, "[B] = [2]");
  check("kv_lengths", &AttentionOptions::kv_lengths, {2}, kF32, "int64 or int32");
  check("query_offset", &AttentionOptions::query_offset, {3}, DType::kInt64, "[1] or [B]");
  check("query_offset", &AttentionOptions::query_offset, {2}, kF32, "int64 or int32");
}

TEST(Errors, Values) {
  for (const std::int64_t bad : {std::int64_t{-1}, std::int64_t{6}, std::numeric_limits<std::int64_t>::max()}) {
    const std::array<std::int64_t, 2> lengths = {5, bad};
    Call c;
    c.options.kv_lengths = TensorView(lengths.data(), {2});
    c.expect("kv_lengths", "from 0 to Lk = 5");
  }
  for (const std::int64_t bad : {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()}) {
    const std::array<std::int64_t, 2> offsets = {0, bad};
    Call c;
    c.options.query_offset = TensorView(offsets.data(), {2});
    c.expect("query_offset", "2^53");
  }
}

TEST(Errors, MaskForOtherHeads) {
  Call c;
  c.options.mask = Mask::per_head({Mask::causal(), Mask::none()});
  c.expect("mask", "4 heads of q, got one for 2");
}

struct Outputs {
  Tensor out = random_normal({2, 3, 4, 6}, kF32, 1), lse = random_normal({2, 4, 3}, kF32, 2), row_max = random_normal({2, 4, 3}, kF32, 3);
};

void expect_output_error(const std::string& argument, const std::string& detail, const AttentionOutputs& outputs) {
  const Tensor q = zeros({2, 3, 4, 8}), k = zeros({2, 5, 2, 8}), v = zeros({2, 5, 2, 6});
  expect_error("attention_into: " + argument, detail, [&] { attention_into(outputs, q, k, v); });
}

TEST(Errors, Outputs) {
  Outputs good;
  const Tensor before = good.out.clone();
  Tensor half = zeros({2, 3, 4, 6}, DType::kFloat16), short_one = zeros({2, 3, 4, 5}), other = zeros({2, 3, 4}),
         wide = zeros({2, 4, 3}, DType::kFloat64);
  expect_output_error("out", "none", {});
  expect_output_error("out", "float16", {.out = half});
  expect_output_error("out", "[2, 3, 4, 5]", {.out = short_one});
  expect_output_error("lse", "[2, 3, 4]", {.out = good.out, .lse = other});
  expect_output_error("lse", "float64", {.out = good.out, .lse = wide});
  expect_output_error("row_max", "[2, 3, 4]", {.out = good.out, .lse = good.lse, .row_max = other});
  expect_output_error("out", "strides", {.out = MutableTensorView(good.out.data(), kF32, {2, 3, 4, 6}, {72, 24, 0, 1})});
  expect_output_error("out", "strides", {.out = MutableTensorView(good.out.data(), kF32, {2, 3, 4, 6}, {72, 24, 5, 1})});
  EXPECT_TRUE(same_values(good.out, before));
}

TEST(Errors, Overlaps) {
  Tensor memory = random_normal({4096}, kF32, 1);
  const Tensor before = memory.clone();
  auto* data = memory.data_as<float>();
  const auto part = [data](std::int64_t begin, const Shape& shape) { return MutableTensorView(data + begin, shape); };
  const TensorView q = part(0, {2, 3, 4, 8}), k = part(200, {2, 5, 2, 8}), v = part(400, {2, 5, 2, 6});
  const auto expect = [&](const std::string& argument, const std::string& other, const AttentionOutputs& outputs,
                          const AttentionOptions& options) {
    expect_error("attention_into: " + argument, "an overlap with " + other, [&] { attention_into(outputs, q, k, v, options); });
    EXPECT_TRUE(same_values(memory, before));
  };
  expect("out", "q", {.out = part(191, {2, 3, 4, 6})}, {});
  expect("out", "k", {.out = part(250, {2, 3, 4, 6})}, {});
  expect("out", "v", {.out = part(519, {2, 3, 4, 6})}, {});
  expect("lse", "v", {.out = part(600, {2, 3, 4, 6}), .lse = part(500, {2, 4, 3})}, {});
  expect("out", "lse", {.out = part(600, {2, 3, 4, 6}), .lse = part(743, {2, 4, 3})}, {});
  expect("lse", "row_max", {.out = part(600, {2, 3, 4, 6}), .lse = part(800, {2, 4, 3}), .row_max = part(823, {2, 4, 3})}, {});
  expect("out", "bias", {.out = part(600, {2, 3, 4, 6})}, {.bias = part(700, {3, 5})});
  expect("row_max", "sink_logits", {.out = part(600, {2, 3, 4, 6}), .row_max = part(800, {2, 4, 3})}, {.sink_logits = part(801, {4})});
}

// Packed buffers are legal: q, k, v and out as slices of one [B, L, 4, H, D] tensor touch each other but share nothing.
TEST(Errors, SlicesOfOneBufferAreNoOverlap) {
  Tensor packed = random_normal({2, 5, 4 * 3, 8}, kF32, 1);
  const Tensor before = packed.clone();
  const auto part = [&packed](std::int64_t n) { return slice(packed.view(), 2, 3 * n, 3); };
  attention_into({.out = part(3)}, part(0), part(1), part(2), {.mask = Mask::causal()});
  const auto copy = [&before](std::int64_t n) { return slice(before.view(), 2, 3 * n, 3); };
  EXPECT_TRUE(same_values(part(3), attention(copy(0), copy(1), copy(2), {.mask = Mask::causal()})));
  for (std::int64_t n = 0; n < 3; ++n) EXPECT_TRUE(same_values(part(n), copy(n)));
  expect_error("attention_into: out", "an overlap with v",
               [&] { attention_into({.out = slice(packed.view(), 2, 8, 3)}, part(0), part(1), part(2)); });
}

TEST(Errors, Backward) {
  const Tensor q = zeros({2, 3, 4, 8}), k = zeros({2, 5, 2, 8}), v = zeros({2, 5, 2, 6}), dout = zeros({2, 3, 4, 6}),
               wrong = zeros({2, 3, 4, 7}), ints = zeros({2, 3, 4, 6}, DType::kInt32);
  const AttentionState state = attention_state(q, k, v);
  expect_error("attention_backward: dout", "[2, 3, 4, 7]", [&] { static_cast<void>(attention_backward(wrong, q, k, v, state)); });
  expect_error("attention_backward: dout", "none", [&] { static_cast<void>(attention_backward({}, q, k, v, state)); });
  expect_error("attention_backward: dout", "int32", [&] { static_cast<void>(attention_backward(ints, q, k, v, state)); });
  expect_error("attention_backward: state.out", "none", [&] { static_cast<void>(attention_backward(dout, q, k, v, {})); });
  Tensor dq = zeros({2, 3, 4, 8}), dk = zeros({2, 5, 2, 8}), dv = zeros({2, 5, 2, 6});
  const TensorView no_lse(static_cast<const void*>(nullptr), kF32, {2, 4, 3});
  expect_error("attention_backward_into: lse", "a null pointer",
               [&] { attention_backward_into({.dq = dq, .dk = dk, .dv = dv}, dout, q, k, v, state.out, no_lse); });
  const AttentionState other = attention_state(zeros({2, 3, 4, 8}), k, zeros({2, 5, 2, 7}));
  expect_error("attention_backward: state.out", "[2, 3, 4, 7]", [&] { static_cast<void>(attention_backward(dout, q, k, v, other)); });
  expect_error("reference::attention_backward: dout", "[2, 3, 4, 7]",
               [&] { static_cast<void>(reference::attention_backward(wrong, q, k, v)); });
}

TEST(Explain, SaysWhichKernelAndWhyNotAFasterOne) {
  const Shape q = {1, 128, 8, 64}, k = {1, 128, 2, 64}, one = {1, 1, 8, 64};
  EXPECT_NE(explain(q, k, kF32).find("attention.wide"), std::string::npos);
  EXPECT_NE(explain(one, k, kF32).find("attention.narrow"), std::string::npos);
  EXPECT_NE(explain(q, k, DType::kFloat64).find("float64 reference: float64"), std::string::npos);
  EXPECT_NE(explain(q, k, kF32, {.dropout = Dropout{0.1, 1}}).find("attention.wide"), std::string::npos);
  EXPECT_NE(explain(q, k, kF32, {.mask = Mask::causal()}).find("causal"), std::string::npos);
  for (const base::Isa isa : isas_here()) {
    const base::ForceIsa forced(isa);
    EXPECT_NE(explain(q, k, kF32).find(base::to_string(isa)), std::string::npos);
  }
  for (const base::Isa isa : isas_here()) {  // little more than one block is two even ones, in words too
    const base::ForceIsa forced(isa);
    const bool is_512 = isa == base::Isa::kAvx512 || isa == base::Isa::kAvx512Bf16;
    const std::string blocks = is_512 ? "64 packed rows per KV head in blocks of 32" : "32 packed rows per KV head in blocks of 16";
    EXPECT_NE(explain({1, is_512 ? 64 : 32, 2, 64}, k, kF32).find(blocks), std::string::npos) << base::to_string(isa);
  }
  expect_error("explain: k", "8 (D of q)", [] { static_cast<void>(explain({1, 2, 4, 8}, {1, 2, 4, 9}, kF32)); });
}

}  // namespace
}  // namespace heed::test
