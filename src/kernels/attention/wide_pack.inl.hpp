// SPDX-License-Identifier: Apache-2.0
// Between the caller's memory and row blocks: the Q^T panel, the finished rows. Elements of any type and stride, as vectors.

HEED_INLINE std::int64_t bytes_of(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

/// n <= kLanes elements `stride` apart, widened; the other lanes 0.
HEED_INLINE Vec load_any(const std::byte* p, DType dtype, std::int64_t stride, int n) {
  if (stride != 1) {
    float copy[kLanes] = {};
    for (int i = 0; i < n; ++i) {
      const std::byte* element = p + i * stride * bytes_of(dtype);
      switch (dtype) {
        case DType::kBFloat16: copy[i] = widen(*reinterpret_cast<const bfloat16*>(element)); break;
        case DType::kFloat16: copy[i] = widen(*reinterpret_cast<const float16*>(element)); break;
        default: copy[i] = *reinterpret_cast<const float*>(element); break;
      }
    }
    return loadu(copy);
  }
  switch (dtype) {
    case DType::kBFloat16: {
      const auto* x = reinterpret_cast<const bfloat16*>(p);
      return n == kLanes ? loadu(x) : load_partial(x, n);
    }
    case DType::kFloat16: {
      const auto* x = reinterpret_cast<const float16*>(p);
      return n == kLanes ? loadu(x) : load_partial(x, n);
    }
    default: {
      const auto* x = reinterpret_cast<const float*>(p);
      return n == kLanes ? loadu(x) : load_partial(x, n);
    }
  }
}

/// The first n lanes, rounded, `stride` apart.
HEED_INLINE void store_any(std::byte* p, DType dtype, std::int64_t stride, Vec x, int n) {
  if (stride != 1) {
    float copy[kLanes];
    storeu(copy, x);
    for (int i = 0; i < n; ++i) {
      std::byte* element = p + i * stride * bytes_of(dtype);
      switch (dtype) {
        case DType::kBFloat16: narrow(reinterpret_cast<bfloat16*>(element), copy[i]); break;
        case DType::kFloat16: narrow(reinterpret_cast<float16*>(element), copy[i]); break;
        default: narrow(reinterpret_cast<float*>(element), copy[i]); break;
      }
    }
    return;
  }
  switch (dtype) {
    case DType::kBFloat16: {
      auto* to = reinterpret_cast<bfloat16*>(p);
      return n == kLanes ? storeu(to, x) : store_partial(to, x, n);
    }
    case DType::kFloat16: {
      auto* to = reinterpret_cast<float16*>(p);
      return n == kLanes ? storeu(to, x) : store_partial(to, x, n);
    }
    default: {
      auto* to = reinterpret_cast<float*>(p);
      return n == kLanes ? storeu(to, x) : store_partial(to, x, n);
    }
  }
}

/// n <= kLanes words of bfloat16 pairs as raw bits; `elements` left in the row bounds the last pair, whose missing half is 0.
HEED_INLINE Vec load_pairs(const std::byte* p, std::int64_t stride, std::int64_t elements) {
  if (stride == 1 && elements >= 2 * kLanes) return loadu(reinterpret_cast<const float*>(p));
  float copy[kLanes] = {};
  const int n = static_cast<int>(elements < 2 * kLanes ? elements : 2 * kLanes);
  for (int i = 0; i < n; ++i) __builtin_memcpy(reinterpret_cast<std::byte*>(copy) + 2 * i, p + 2 * i * stride, 2);
  return loadu(copy);
}

HEED_INLINE const std::byte* query_row(const QueryRows& q, std::int64_t row) {
  const std::int64_t offset = row / q.group * q.token_stride + row % q.group * q.head_stride;
  return static_cast<const std::byte*>(q.data) + offset * bytes_of(q.dtype);
}

HEED_INLINE void prefetch_query(const ForwardProblem& p, std::int64_t row) {
  const std::byte* data = query_row(p.q, row);
  for (std::int64_t offset = 0; p.q.dim_stride == 1 && offset < p.head_dim * bytes_of(p.q.dtype); offset += 64)
    prefetch_to_l2(data + offset);
}

/// Words [w, w + kLanes) of one query row.
template <class Product>
HEED_INLINE Vec query_words(const QueryRows& q, const std::byte* row, std::int64_t head_dim, std::int64_t w, Vec factor) {
  if constexpr (Product::kElements == 2) {
    return load_pairs(row + 2 * w * q.dim_stride * 2, q.dim_stride, head_dim - 2 * w);
  } else {
    const int n = static_cast<int>(head_dim - w < kLanes ? head_dim - w : kLanes);
    return mul(factor, load_any(row + w * q.dim_stride * bytes_of(q.dtype), q.dtype, q.dim_stride, n));
  }
}

/// Words [w, w + kLanes) of `count` <= kLanes query rows: square[i] holds word w + i of every row, 0 for rows that are not there.
template <class Product>
HEED_INLINE void query_square(const ForwardProblem& p, const std::byte* const (&row)[kLanes], int count, std::int64_t w, Vec factor,
                              Vec (&square)[kLanes]) {
  if (Product::kElements == 1 && p.q.dtype == DType::kFloat32 && p.q.dim_stride == 1 && count == kLanes && w + kLanes <= p.head_dim) {
    const float* words[kLanes];
    for (int i = 0; i < kLanes; ++i) words[i] = reinterpret_cast<const float*>(row[i]) + w;
    load_columns(words, square);
    for (int i = 0; i < kLanes; ++i) square[i] = mul(factor, square[i]);
    return;
  }
  for (int i = 0; i < kLanes; ++i) square[i] = i < count ? query_words<Product>(p.q, row[i], p.head_dim, w, factor) : zero();
  transpose(square);
}

/// Rows [first, first + rows) as panel [words][vectors * kLanes], times `factor` (float32 words only); rows past the end are 0.
template <class Product>
static void pack_queries(const ForwardProblem& p, std::int64_t first, int rows, int vectors, float factor, float* panel) noexcept {
  const std::int64_t words = (p.head_dim + Product::kElements - 1) / Product::kElements;
  for (int j = 0; j < vectors; ++j) {
    const int count = rows - j * kLanes < kLanes ? rows - j * kLanes : kLanes;
    const std::byte* row[kLanes];  // found once: a row's place takes two divisions
    for (int i = 0; i < count; ++i) row[i] = query_row(p.q, first + j * kLanes + i);
    for (std::int64_t w = 0; w < words; w += kLanes) {
      Vec square[kLanes];
      query_square<Product>(p, row, count, w, set1(factor), square);
      for (int i = 0; i < kLanes && w + i < words; ++i) store(panel + ((w + i) * vectors + j) * kLanes, square[i]);
    }
  }
}

HEED_INLINE std::byte* output_row(const OutputRows& o, std::int32_t group, std::int64_t row) {
  const std::int64_t offset = row / group * o.token_stride + row % group * o.head_stride;
  return static_cast<std::byte*>(o.out) + offset * bytes_of(o.dtype);
}

/// Dimensions [d, d + n) of kLanes rows of O^T, n <= kLanes: square[i] holds those of row i. `columns`: from d's floats, `stride` apart.
HEED_INLINE void output_square(const float* columns, std::int64_t stride, int n, Vec (&square)[kLanes]) {
  if (n == kLanes) {
    const float* dims[kLanes];
    for (int i = 0; i < kLanes; ++i) dims[i] = columns + i * stride;
    return load_columns(dims, square);
  }
  for (int i = 0; i < kLanes; ++i) square[i] = i < n ? load(columns + i * stride) : zero();
  transpose(square);
}

/// Rows [0, count) of the square, times their factor, to dimensions [d, d + n) of the caller's rows; one with factor 0 becomes 0 whatever it holds.
HEED_INLINE void store_square(const OutputRows& o, std::byte* const (&row)[kLanes], int count, std::int64_t d, int n, const float* factors,
                              Vec (&square)[kLanes]) {
  HEED_UNROLL
  for (int i = 0; i < kLanes; ++i) {
    const Vec factor = set1(factors[i]);
    square[i] = select(cmp_eq(factor, zero()), zero(), mul(factor, square[i]));
  }
  if (o.dtype == DType::kFloat32 && o.dim_stride == 1 && n == kLanes) {
    HEED_UNROLL  // without, the square goes through memory once more
        for (int i = 0; i < kLanes; ++i) {
      if (i < count) storeu(reinterpret_cast<float*>(row[i]) + d, square[i]);
    }
    return;
  }
  for (int i = 0; i < count; ++i) store_any(row[i] + d * o.dim_stride * bytes_of(o.dtype), o.dtype, o.dim_stride, square[i], n);
}

/// Rows of O^T [d][vectors * kLanes] times their factor, to the caller's memory.
static void write_rows(const ForwardProblem& p, std::int64_t first, int rows, int vectors, const float* out,
                       const float* factors) noexcept {
  for (int j = 0; j < vectors && j * kLanes < rows; ++j) {
    const int count = rows - j * kLanes < kLanes ? rows - j * kLanes : kLanes;
    std::byte* to[kLanes];
    for (int i = 0; i < count; ++i) to[i] = output_row(p.output, p.q.group, first + j * kLanes + i);
    for (std::int64_t d = 0; d < p.value_dim; d += kLanes) {
      const int n = static_cast<int>(p.value_dim - d < kLanes ? p.value_dim - d : kLanes);
      Vec square[kLanes];
      output_square(out + (d * vectors + j) * kLanes, vectors * kLanes, n, square);
      store_square(p.output, to, count, d, n, factors + j * kLanes, square);
    }
  }
}
