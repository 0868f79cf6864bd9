// SPDX-License-Identifier: Apache-2.0
// Between the caller's memory and the tiles: the Q^T panel, key tiles (in place where the memory fits, else copied), the finished rows.

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

/// Words [w, w + kLanes) of one query row.
template <class Product>
HEED_INLINE Vec query_words(const QueryRows& q, std::int64_t row, std::int64_t head_dim, std::int64_t w, Vec factor) {
  const std::byte* data = query_row(q, row);
  if constexpr (Product::kElements == 2) {
    return load_pairs(data + 2 * w * q.dim_stride * 2, q.dim_stride, head_dim - 2 * w);
  } else {
    const int n = static_cast<int>(head_dim - w < kLanes ? head_dim - w : kLanes);
    return mul(factor, load_any(data + w * q.dim_stride * bytes_of(q.dtype), q.dtype, q.dim_stride, n));
  }
}

/// Rows [first, first + rows) as panel [words][vectors * kLanes], times `factor` (float32 words only); rows past the end are 0.
template <class Product>
static void pack_queries(const ForwardProblem& p, std::int64_t first, int rows, int vectors, float factor, float* panel) noexcept {
  const std::int64_t words = (p.head_dim + Product::kElements - 1) / Product::kElements;
  const Vec factors = set1(factor);
  for (int j = 0; j < vectors; ++j) {
    for (std::int64_t w = 0; w < words; w += kLanes) {
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const int row = j * kLanes + i;
        square[i] = row < rows ? query_words<Product>(p.q, first + row, p.head_dim, w, factors) : zero();
      }
      transpose(square);
      for (int i = 0; i < kLanes && w + i < words; ++i) store(panel + ((w + i) * vectors + j) * kLanes, square[i]);
    }
  }
}

/// The keys of one block as the tiles read them.
struct KeyTile {
  const std::byte* keys[kBlockKeys + kTileBroadcasts];  ///< [count], the last one repeated up to a whole register tile
  const std::byte* values[kBlockKeys];                  ///< [words of keys]
  std::int64_t block;
  int count;              ///< keys that exist in this block
  int values_are_finite;  ///< -1: not looked at yet
};

/// Walks the segments of a sequence forward.
struct SegmentCursor {
  std::int64_t segment;
  std::int64_t first_key;  ///< of that segment
};

/// Raw row pointers of the tile's keys.
static void find_rows(const KvRows& kv, SegmentCursor& cursor, KeyTile& tile) noexcept {
  const std::int64_t width = bytes_of(kv.dtype);
  const std::int64_t first = tile.block * kBlockKeys;
  for (int i = 0; i < tile.count; ++i) {
    while (first + i >= cursor.first_key + kv.segments[cursor.segment].rows) {
      cursor.first_key += kv.segments[cursor.segment].rows;
      ++cursor.segment;
    }
    const KvSegment& s = kv.segments[cursor.segment];
    const std::int64_t row = first + i - cursor.first_key;
    tile.keys[i] = static_cast<const std::byte*>(s.k) + row * s.k_row_stride * width;
    tile.values[i] = static_cast<const std::byte*>(s.v) + row * s.v_row_stride * width;
  }
}

/// Brings the next key tile's rows into L2 while this one is computed, a few lines at a time. The hardware's prefetchers stop at a page's
/// end, so rows a page apart ([B, L, H, D] with 4 KB tokens) would each be waited for: 73 % of the peak became 79 %.
struct Prefetcher {
  KeyTile rows;
  std::int64_t key_bytes, value_bytes;  ///< of a row
  std::int64_t offset;                  ///< into the row at hand
  int row;                              ///< 0 .. 2 * rows.count: keys, then values
  int lines_per_step;
};

HEED_INLINE void prefetch_some(Prefetcher& f) {
  for (int i = 0; i < f.lines_per_step && f.row < 2 * f.rows.count; ++i) {
    const bool is_key = f.row < f.rows.count;
    const std::byte* row = is_key ? f.rows.keys[f.row] : f.rows.values[f.row - f.rows.count];
    prefetch_to_l2(row + f.offset);
    f.offset += 64;
    if (f.offset < (is_key ? f.key_bytes : f.value_bytes)) continue;
    f.offset = 0;
    ++f.row;
  }
}

/// Copies rows to `to` [count][row_floats], widened; the padding up to `padded` elements is 0.
static void widen_rows(const std::byte** rows, int count, DType dtype, std::int64_t stride, std::int64_t elements, std::int64_t padded,
                       float* to, std::int64_t row_floats) noexcept {
  for (int i = 0; i < count; ++i) {
    float* row = to + i * row_floats;
    for (std::int64_t e = 0; e < padded; e += kLanes) {
      const std::int64_t left = elements - e;
      const int n = static_cast<int>(left < 0 ? 0 : left < kLanes ? left : kLanes);
      store(row + e, load_any(rows[i] + e * stride * bytes_of(dtype), dtype, stride, n));
    }
    rows[i] = reinterpret_cast<const std::byte*>(row);
  }
}

/// Copies bfloat16 rows of keys as words, an odd last element paired with 0.
static void copy_pair_rows(const std::byte** rows, int count, std::int64_t stride, std::int64_t elements, float* to,
                           std::int64_t row_floats) noexcept {
  for (int i = 0; i < count; ++i) {
    float* row = to + i * row_floats;
    for (std::int64_t e = 0; e < elements; e += 2 * kLanes) {
      store(row + e / 2, load_pairs(rows[i] + 2 * e * stride, stride, elements - e));
    }
    rows[i] = reinterpret_cast<const std::byte*>(row);
  }
}

/// Row pairs (2w, 2w + 1) of bfloat16 values as words `to` [words][row_floats]: low half the even key, high half the odd one, 0 when missing.
static void pair_value_rows(const std::byte** rows, int count, std::int64_t stride, std::int64_t elements, std::int64_t padded, float* to,
                            std::int64_t row_floats) noexcept {
  for (int i = 0; i < count; i += 2) {
    float* row = to + i / 2 * row_floats;
    for (std::int64_t e = 0; e < padded; e += kLanes) {
      const std::int64_t left = elements - e;
      const int n = static_cast<int>(left < 0 ? 0 : left < kLanes ? left : kLanes);
      const IVec even = as_int(load_any(rows[i] + 2 * e * stride, DType::kBFloat16, stride, n));
      const IVec odd = i + 1 < count ? as_int(load_any(rows[i + 1] + 2 * e * stride, DType::kBFloat16, stride, n)) : iset1(0);
      store(row + e, as_float(ior(shift_right<16>(even), odd)));
    }
    rows[i / 2] = reinterpret_cast<const std::byte*>(row);
  }
}

/// Whether all values of the tile are finite, in whichever form they lie. x * 0 is NaN exactly for the others.
template <class Product>
static bool all_finite(const KeyTile& tile, std::int64_t dims) noexcept {
  const int words = (tile.count + Product::kElements - 1) / Product::kElements;
  Vec sum = zero();
  for (int w = 0; w < words; ++w) {
    const auto* row = reinterpret_cast<const float*>(tile.values[w]);
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const int n = static_cast<int>(dims - d < kLanes ? dims - d : kLanes);
      const Vec word = n == kLanes ? loadu(row + d) : load_partial(row + d, n);
      if constexpr (Product::kElements == 2) {
        sum = fma(low_of_pairs(as_int(word)), zero(), sum);
        sum = fma(high_of_pairs(as_int(word)), zero(), sum);
      } else {
        sum = fma(word, zero(), sum);
      }
    }
  }
  return all(cmp_eq(sum, sum));
}

/// Rows of O^T [d][vectors * kLanes] times their factor, to the caller's memory.
static void write_rows(const ForwardProblem& p, std::int64_t first, int rows, int vectors, const float* out,
                       const float* factors) noexcept {
  const OutputRows& o = p.output;
  const std::int64_t width = bytes_of(o.dtype);
  for (int j = 0; j < vectors && j * kLanes < rows; ++j) {
    const Vec factor = load(factors + j * kLanes);
    const Mask empty = cmp_eq(factor, zero());
    for (std::int64_t d = 0; d < p.value_dim; d += kLanes) {
      const int n = static_cast<int>(p.value_dim - d < kLanes ? p.value_dim - d : kLanes);
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        square[i] = i < n ? select(empty, zero(), mul(factor, load(out + ((d + i) * vectors + j) * kLanes))) : zero();
      }
      transpose(square);
      for (int i = 0; i < kLanes && j * kLanes + i < rows; ++i) {
        const std::int64_t row = first + j * kLanes + i;
        const std::int64_t offset = row / p.q.group * o.token_stride + row % p.q.group * o.head_stride + d * o.dim_stride;
        store_any(static_cast<std::byte*>(o.out) + offset * width, o.dtype, o.dim_stride, square[i], n);
      }
    }
  }
}
