// SPDX-License-Identifier: Apache-2.0
#include "ladder/problem.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <new>

namespace ladder {
namespace {

/// Values in [-width, width): a linear congruential generator.
void fill(float* data, std::int64_t count, float width, std::uint32_t seed) {
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    data[i] = width * static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  }
}

double exact_dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t d = 0; d < count; ++d) sum += static_cast<double>(a[d]) * static_cast<double>(b[d]);
  return sum;
}

void exact_row(const Problem& p, std::int64_t i, double* out) {
  std::vector<double> weights(static_cast<std::size_t>(p.length));
  for (std::int64_t j = 0; j < p.length; ++j) {
    weights[static_cast<std::size_t>(j)] = static_cast<double>(p.scale) * exact_dot(p.q + i * p.head_dim, p.k + j * p.head_dim, p.head_dim);
  }
  const double top = *std::max_element(weights.begin(), weights.end());
  double sum = 0;
  for (double& w : weights) sum += w = std::exp(w - top);
  for (std::int64_t d = 0; d < p.head_dim; ++d) {
    double o = 0;
    for (std::int64_t j = 0; j < p.length; ++j) o += weights[static_cast<std::size_t>(j)] * static_cast<double>(p.v[j * p.head_dim + d]);
    out[d] = o / sum;
  }
}

}  // namespace

Buffer::Buffer(std::int64_t count) : data_(static_cast<float*>(std::aligned_alloc(64, static_cast<std::size_t>((count + 15) / 16) * 64))) {
  if (data_ == nullptr) throw std::bad_alloc();
}
Buffer::~Buffer() { std::free(data_); }

Example::Example(std::int64_t length, std::int64_t head_dim, Keys keys)
    : length_(length), head_dim_(head_dim), q_(length * head_dim), k_(length * head_dim), v_(length * head_dim), out_(length * head_dim) {
  const std::int64_t count = length * head_dim;
  fill(q_.data(), count, 6, 1);  // scores: standard deviation 6 / 3
  fill(k_.data(), count, 1, 2);
  fill(v_.data(), count, 1, 3);
  forget();
  if (keys == Keys::kAlike) return;
  for (std::int64_t j = 0; j < length; ++j) {
    const float growth = 1 + 7 * static_cast<float>(j) / static_cast<float>(length);
    for (std::int64_t d = 0; d < head_dim; ++d) k_.data()[j * head_dim + d] *= growth;
  }
}

Problem Example::problem() const {
  return {length_, head_dim_, 1 / std::sqrt(static_cast<float>(head_dim_)), q_.data(), k_.data(), v_.data(), out_.data()};
}

void Example::forget() const { std::fill_n(out_.data(), length_ * head_dim_, std::numeric_limits<float>::quiet_NaN()); }

std::vector<double> exact_rows(const Problem& p) {
  std::vector<double> exact(static_cast<std::size_t>(p.length * p.head_dim));
  for (std::int64_t i = 0; i < p.length; ++i) exact_row(p, i, exact.data() + i * p.head_dim);
  return exact;
}

double largest_error(const Problem& p, const std::vector<double>& exact) {
  double largest = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = std::abs(static_cast<double>(p.out[i]) - exact[i]);
    if (std::isnan(error)) return error;
    largest = std::max(largest, error);
  }
  return largest;
}

double float32_bound(const Problem& p) {
  double score = 0;  // the largest sum of |q k|, scaled: what a score's rounding errors are a share of
  for (std::int64_t i = 0; i < p.length; ++i) {
    for (std::int64_t j = 0; j < p.length; ++j) {
      double sum = 0;
      for (std::int64_t d = 0; d < p.head_dim; ++d) sum += std::abs(static_cast<double>(p.q[i * p.head_dim + d] * p.k[j * p.head_dim + d]));
      score = std::max(score, sum * static_cast<double>(p.scale));
    }
  }
  const auto dims = static_cast<double>(p.head_dim), keys = static_cast<double>(p.length);
  return (2 * dims * score + 2 * keys + 16) * 0x1p-24;  // |v| <= 1
}

}  // namespace ladder
