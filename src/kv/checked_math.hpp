// SPDX-License-Identifier: Apache-2.0
// Sizes that do not fit 63 bits are memory that nobody has.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <new>

namespace heed::kv {

inline std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) throw std::bad_alloc();
  }
  return result;
}

inline std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) throw std::bad_alloc();
  return result;
}

}  // namespace heed::kv
