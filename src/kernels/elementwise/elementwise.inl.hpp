// SPDX-License-Identifier: Apache-2.0
// RMS norm, add and the gated activations. Memory-bound for long prompts, so one pass each and no attempt at more.

namespace elementwise {

constexpr float kLog2E = 1.442695041F;
constexpr float kSqrt2OverPi = 0.7978845608F;

/// Four running sums hide the latency of the add; their order of addition is fixed.
HEED_INLINE float sum_of_squares(const float* x, std::int64_t width) {
  Vec sums[4] = {zero(), zero(), zero(), zero()};
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const Vec value = loadu(x + i + j * kLanes);
      sums[j] = fma(value, value, sums[j]);
    }
  }
  for (; i < width; i += kLanes) {
    const std::int64_t left = width - i;
    const Vec value = left >= kLanes ? loadu(x + i) : load_partial(x + i, static_cast<int>(left));
    sums[0] = fma(value, value, sums[0]);
  }
  return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

static void rms_norm_row(float* y, const float* x, const float* weight, std::int64_t width, float epsilon) noexcept {
  const float mean = sum_of_squares(x, width) / static_cast<float>(width);
  const Vec inverse = set1(1.0F / __builtin_sqrtf(mean + epsilon));
  std::int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) storeu(y + i, mul(mul(loadu(x + i), inverse), loadu(weight + i)));
  if (i == width) return;
  const int left = static_cast<int>(width - i);
  store_partial(y + i, mul(mul(load_partial(x + i, left), inverse), load_partial(weight + i, left)), left);
}

/// x / (1 + exp(-x)); exp(-x) = inf gives -0, the right limit.
HEED_INLINE Vec silu(Vec x) { return div(x, add(set1(1.0F), exp2(mul(x, set1(-kLog2E))))); }

HEED_INLINE Vec gelu_tanh(Vec x) {
  const Vec cubic = mul(mul(x, x), mul(x, set1(0.044715F)));
  const Vec inner = mul(set1(kSqrt2OverPi), add(x, cubic));
  return mul(mul(set1(0.5F), x), add(set1(1.0F), tanh(inner)));
}

struct Add {
  HEED_INLINE Vec apply(Vec a, Vec b) { return add(a, b); }
};
struct SiluMultiply {
  HEED_INLINE Vec apply(Vec a, Vec b) { return mul(silu(a), b); }
};
struct GeluTanhMultiply {
  HEED_INLINE Vec apply(Vec a, Vec b) { return mul(gelu_tanh(a), b); }
};

/// a = Operation(a, b), element by element.
template <class Operation>
void combine(float* a, const float* b, std::int64_t count) noexcept {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) storeu(a + i, Operation::apply(loadu(a + i), loadu(b + i)));
  if (i == count) return;
  const int left = static_cast<int>(count - i);
  store_partial(a + i, Operation::apply(load_partial(a + i, left), load_partial(b + i, left)), left);
}

}  // namespace elementwise

extern const ElementwiseKernels elementwise_kernels = {elementwise::rms_norm_row, elementwise::combine<elementwise::Add>,
                                                       elementwise::combine<elementwise::SiluMultiply>,
                                                       elementwise::combine<elementwise::GeluTanhMultiply>};
