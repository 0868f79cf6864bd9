// SPDX-License-Identifier: Apache-2.0
#include "kv/write_rows.hpp"

#include <cstring>
#include <type_traits>

#include "base/parallel.hpp"

namespace heed::kv {
namespace {

template <class To, class From>
void copy_rows(To* to, const SourceRows& from) noexcept {
  const auto* source = reinterpret_cast<const From*>(from.data);
  if constexpr (std::is_same_v<To, From>) {
    if (from.dim_stride == 1 && from.row_stride == from.dim) {
      std::memcpy(to, source, static_cast<std::size_t>(from.rows * from.dim) * sizeof(To));
      return;
    }
  }
  for (std::int64_t row = 0; row < from.rows; ++row, to += from.dim, source += from.row_stride) {
    for (std::int64_t d = 0; d < from.dim; ++d) {
      if constexpr (std::is_same_v<To, From>) {
        to[d] = source[d * from.dim_stride];
      } else {
        to[d] = static_cast<To>(static_cast<float>(source[d * from.dim_stride]));
      }
    }
  }
}

template <class To>
void copy_rows_as(void* to, const SourceRows& from) noexcept {
  switch (from.dtype) {
    case DType::kBFloat16: return copy_rows<To, bfloat16>(static_cast<To*>(to), from);
    case DType::kFloat16: return copy_rows<To, float16>(static_cast<To*>(to), from);
    default: return copy_rows<To, float>(static_cast<To*>(to), from);
  }
}

}  // namespace

SourceRows rows_of(const TensorView& source, std::int64_t b, std::int64_t h, std::int64_t first, std::int64_t count) {
  const std::int64_t at = b * source.stride(0) + first * source.stride(1) + h * source.stride(2);
  return {.data = static_cast<const std::byte*>(source.data()) + at * size_bytes(source.dtype()),
          .dtype = source.dtype(),
          .row_stride = source.stride(1),
          .dim_stride = source.stride(3),
          .rows = count,
          .dim = source.size(3)};
}

int writing_threads(const TensorView& source) {
  constexpr std::int64_t kSerialElements = 1 << 16;  // below, a parallel region costs more than it saves
  return element_count(source.shape()) < kSerialElements ? 1 : base::num_threads();
}

void write_rows(void* to, DType dtype, const SourceRows& from) noexcept {
  switch (dtype) {
    case DType::kBFloat16: return copy_rows_as<bfloat16>(to, from);
    case DType::kFloat16: return copy_rows_as<float16>(to, from);
    default: return copy_rows_as<float>(to, from);
  }
}

}  // namespace heed::kv
