// SPDX-License-Identifier: Apache-2.0
// Uses the installed heed::heed as a stranger would. With q = 0 every visible key weighs the same, so the answer is known without
// trusting any code: causal attention gives the running mean of V.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include <heed/heed.hpp>

namespace {

constexpr std::int64_t kTokens = 70, kHeads = 2, kDim = 16;

bool is_running_mean(const heed::Tensor& out, const std::vector<float>& v) {
  const float* values = out.data_as<float>();
  for (std::int64_t column = 0; column < kHeads * kDim; ++column) {
    double sum = 0.0;
    for (std::int64_t token = 0; token < kTokens; ++token) {
      const auto at = static_cast<std::size_t>(token * kHeads * kDim + column);
      sum += v[at];
      if (std::abs(values[at] - sum / static_cast<double>(token + 1)) > 1e-5) return false;
    }
  }
  return true;
}

bool names_the_bad_argument(const heed::TensorView& q, const heed::TensorView& k) {
  try {
    (void)heed::attention(q, heed::slice(k, 3, 0, kDim - 1), k);
  } catch (const std::invalid_argument& error) {  // the standard base, as a binding would catch it
    return std::strstr(error.what(), "attention: k") != nullptr && dynamic_cast<const heed::InvalidArgument*>(&error) != nullptr;
  }
  return false;
}

}  // namespace

int main() {
  const auto count = static_cast<std::size_t>(kTokens * kHeads * kDim);
  const std::vector<float> zeros(count, 0.0F);
  std::vector<float> v(count);
  for (std::size_t i = 0; i < count; ++i) v[i] = static_cast<float>(i * 2654435761U % 1000) / 1000.0F;

  const heed::Shape shape = {1, kTokens, kHeads, kDim};
  const heed::TensorView q(zeros.data(), shape);
  const heed::TensorView values(v.data(), shape);
  if (!is_running_mean(heed::attention(q, q, values, {.mask = heed::Mask::causal()}), v)) return std::puts("wrong attention"), 1;
  if (!names_the_bad_argument(q, values)) return std::puts("wrong error"), 1;
  if (std::strcmp(heed::version(), HEED_VERSION_STRING) != 0) return std::puts("headers and library differ"), 1;
  std::printf("heed %s: attention and errors work\n", heed::version());
}
