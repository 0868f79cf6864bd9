// SPDX-License-Identifier: Apache-2.0
// Decode over more keys and values than any last-level cache holds: independent caches in one stretch of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <heed/heed.hpp>

#include "cli/bench/measure.hpp"

namespace heed::cli::bench {

/// A gigabyte or four last-level caches, whichever is more; enough that nothing of one pass is left for the next.
[[nodiscard]] std::int64_t decode_bytes();

/// Random values of one type. What they are does not matter, only that they are finite and not all alike.
class CachePool {
 public:
  CachePool(DType dtype, std::int64_t bytes);
  [[nodiscard]] DType dtype() const noexcept { return memory_.dtype(); }
  [[nodiscard]] std::int64_t elements() const noexcept { return memory_.shape()[0]; }
  [[nodiscard]] const std::byte* data() const noexcept { return static_cast<const std::byte*>(memory_.data()); }
  [[nodiscard]] std::span<const float> as_floats() const;

 private:
  Tensor memory_;
};
using CachePoolPtr = std::shared_ptr<const CachePool>;

struct DecodeProblem {
  std::int64_t batch = 1, q_heads = 32, kv_heads = 8, keys = 8192, head_dim = 128;
  std::vector<std::int64_t> lengths = {};  ///< [B]: keys that exist, where sequences differ
};

/// One query against every cache of the pool in turn; a cache keeps keys and values as [B, Hkv, keys, D]. Bytes that must be read, against
/// read_yardstick() over the whole pool.
[[nodiscard]] BenchCase decode_case(std::string name, const CachePoolPtr& pool, const YardstickPtr& read, const DecodeProblem& problem,
                                    std::optional<double> target = {});

}  // namespace heed::cli::bench
