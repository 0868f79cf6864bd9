// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/caches.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "cli/bench/inputs.hpp"
#include "cli/bench/machine.hpp"

namespace heed::cli::bench {
namespace {

struct Decode {
  CachePoolPtr pool;
  DecodeProblem problem;
  std::int64_t count = 0;  // caches
  Tensor q, out;           // [B, 1, Hq, D]
  Tensor lengths;          // [B], or empty
  AttentionOptions options;

  Decode(CachePoolPtr from, const DecodeProblem& p) : pool(std::move(from)), problem(p), count(pool->elements() / (2 * block())) {
    const Shape shape = {p.batch, 1, p.q_heads, p.head_dim};
    q = random_tensor(pool->dtype(), shape, 4);
    out = Tensor(pool->dtype(), shape);
    options.mask = Mask::causal();
    if (p.lengths.empty()) return;
    lengths = Tensor(DType::kInt64, {p.batch});
    std::copy(p.lengths.begin(), p.lengths.end(), lengths.data_as<std::int64_t>());
    options.kv_lengths = lengths;
  }
  /// Elements of a cache's keys.
  [[nodiscard]] std::int64_t block() const { return problem.batch * problem.kv_heads * problem.keys * problem.head_dim; }
  /// [B, keys, Hkv, D] of block i.
  [[nodiscard]] TensorView view(std::int64_t i) const {
    const auto* data = pool->data() + i * block() * size_bytes(pool->dtype());
    const Shape shape = {problem.batch, problem.kv_heads, problem.keys, problem.head_dim};
    return permute(TensorView(static_cast<const void*>(data), pool->dtype(), shape), {0, 2, 1, 3});
  }
  [[nodiscard]] std::int64_t keys_in_all() const {
    if (problem.lengths.empty()) return problem.batch * problem.keys;
    return std::accumulate(problem.lengths.begin(), problem.lengths.end(), std::int64_t{0});
  }
  [[nodiscard]] double bytes() const {
    return static_cast<double>(2 * count * keys_in_all() * problem.kv_heads * problem.head_dim * size_bytes(pool->dtype()));
  }
  void run() {
    for (std::int64_t i = 0; i < count; ++i) attention_into({.out = out}, q, view(2 * i), view(2 * i + 1), options);
  }
};

std::string shape_of(const Decode& decode) {
  const DecodeProblem& p = decode.problem;
  const std::string keys = p.lengths.empty() ? fmt::format("Lk{}", p.keys)
                                             : fmt::format("Lk{}-{}", *std::min_element(p.lengths.begin(), p.lengths.end()),
                                                           *std::max_element(p.lengths.begin(), p.lengths.end()));
  return fmt::format("B{} Hq{} Hkv{} Lq1 {} D{}, {} caches", p.batch, p.q_heads, p.kv_heads, keys, p.head_dim, decode.count);
}

}  // namespace

std::int64_t decode_bytes() { return std::max(std::int64_t{1} << 30, 4 * last_level_cache_bytes()); }

CachePool::CachePool(DType dtype, std::int64_t bytes) {
  constexpr std::int64_t kPart = std::int64_t{1} << 20;  // elements, repeated
  const std::int64_t parts = (bytes / size_bytes(dtype) + kPart - 1) / kPart;
  memory_ = Tensor(dtype, {parts * kPart});
  const Tensor part = random_tensor(dtype, {kPart}, 5);
  const std::int64_t part_bytes = kPart * size_bytes(dtype);
  for (std::int64_t i = 0; i < parts; ++i) {
    std::memcpy(static_cast<std::byte*>(memory_.data()) + i * part_bytes, part.data(), static_cast<std::size_t>(part_bytes));
  }
}

std::span<const float> CachePool::as_floats() const {
  return {static_cast<const float*>(memory_.data()), static_cast<std::size_t>(elements() * size_bytes(dtype())) / sizeof(float)};
}

BenchCase decode_case(std::string name, const CachePoolPtr& pool, const YardstickPtr& read, const DecodeProblem& problem,
                      std::optional<double> target) {
  const auto decode = std::make_shared<Decode>(pool, problem);
  return {.name = std::move(name),
          .shape = shape_of(*decode),
          .dtype = to_string(pool->dtype()),
          .yardstick = read,
          .work = decode->bytes(),
          .run = [decode] { decode->run(); },
          .target = target};
}

}  // namespace heed::cli::bench
