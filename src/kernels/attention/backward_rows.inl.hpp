// SPDX-License-Identifier: Apache-2.0
// Between the caller's memory and the tiles of the backward pass: compact float32 rows, panels made of them, and gradients written back.

/// Contiguous elements, with the type known: choosing by type at every vector made copies three times as slow.
template <class T>
HEED_INLINE void widen_contiguous(const std::byte* from, std::int64_t dims, float* to, Vec& check) {
  const auto* x = reinterpret_cast<const T*>(from);
  std::int64_t d = 0;
  for (; d + kLanes <= dims; d += kLanes) {
    const Vec v = loadu(x + d);
    check = fma(v, zero(), check);
    store(to + d, v);
  }
  if (d == dims) return;
  const Vec v = load_partial(x + d, static_cast<int>(dims - d));
  check = fma(v, zero(), check);
  store(to + d, v);
}

/// One row widened to `to`, the padding 0. `check` stays 0 as long as every element is finite.
HEED_INLINE void widen_checked(const std::byte* from, DType dtype, std::int64_t stride, std::int64_t dims, float* to, Vec& check) {
  if (stride == 1) {
    switch (dtype) {
      case DType::kBFloat16: return widen_contiguous<bfloat16>(from, dims, to, check);
      case DType::kFloat16: return widen_contiguous<float16>(from, dims, to, check);
      default: return widen_contiguous<float>(from, dims, to, check);
    }
  }
  for (std::int64_t d = 0; d < dims; d += kLanes) {
    const int n = static_cast<int>(dims - d < kLanes ? dims - d : kLanes);
    const Vec x = load_any(from + d * stride * bytes_of(dtype), dtype, stride, n);
    check = fma(x, zero(), check);
    store(to + d, x);
  }
}

HEED_INLINE void clear(float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; i += kLanes) store(to + i, zero());
}

/// Packed rows [first, first + rows) to `to` [kBlockRows][row_floats], missing ones 0. Returns whether all elements are finite.
static bool load_query_rows(const QueryRows& q, std::int64_t first, int rows, std::int64_t dims, float* to,
                            std::int64_t row_floats) noexcept {
  Vec check = zero();
  for (int i = 0; i < rows; ++i) widen_checked(query_row(q, first + i), q.dtype, q.dim_stride, dims, to + i * row_floats, check);
  for (int i = rows; i < kBlockRows; ++i) clear(to + i * row_floats, round_up(dims, kLanes));
  return all(cmp_eq(check, check));
}

/// Brings rows that are needed soon into L2, some lines at a time. Heads side by side put a row's neighbours pages apart, where the
/// hardware's prefetchers do not follow; waiting for rows took a fifth of the time.
struct Strip {
  QueryRows rows;
  std::int64_t first, end;
  std::int64_t row_bytes;
};
struct RowsAhead {
  Strip strips[4];
  int strip, count;
  const std::byte* next;  ///< line, up to `left` bytes of the row at hand
  std::int64_t left, row;
};

HEED_INLINE void add_strip(RowsAhead& a, const QueryRows& rows, std::int64_t first, std::int64_t end, std::int64_t dims) {
  if (rows.dim_stride == 1 && first < end) a.strips[a.count++] = {rows, first, end, dims * bytes_of(rows.dtype)};
}

/// Rows of keys or of their gradients.
HEED_INLINE void add_strip(RowsAhead& a, const void* data, DType dtype, std::int64_t row_stride, std::int64_t dim_stride, KeyRange range,
                           std::int64_t dims) {
  QueryRows rows;
  rows.data = data;
  rows.dtype = dtype;
  rows.token_stride = row_stride;
  rows.dim_stride = dim_stride;
  add_strip(a, rows, range.first, range.first + range.count, dims);
}

HEED_INLINE void start_row(RowsAhead& a) {
  a.next = query_row(a.strips[a.strip].rows, a.row);
  a.left = a.strips[a.strip].row_bytes;
}

HEED_INLINE void start_strips(RowsAhead& a) {
  a.strip = 0;
  if (a.count == 0) return;
  a.row = a.strips[0].first;
  start_row(a);
}

static void prefetch_rows(RowsAhead& a, int lines) noexcept {
  for (; lines > 0 && a.strip < a.count; --lines) {
    prefetch_to_l2(a.next);
    a.next += 64;
    a.left -= 64;
    if (a.left > 0) continue;
    if (++a.row == a.strips[a.strip].end) {
      if (++a.strip == a.count) return;
      a.row = a.strips[a.strip].first;
    }
    start_row(a);
  }
}

/// Rows as panel [dims][vectors * kLanes], times `factor`.
static void make_panel(const float* rows, std::int64_t row_floats, std::int64_t dims, int vectors, float factor, float* panel) noexcept {
  const Vec factors = set1(factor);
  for (int j = 0; j < vectors; ++j) {
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const float* row[kLanes];
      for (int i = 0; i < kLanes; ++i) row[i] = rows + (j * kLanes + i) * row_floats + d;
      Vec square[kLanes];
      load_columns(row, square);
      for (int i = 0; i < kLanes && d + i < dims; ++i) store(panel + ((d + i) * vectors + j) * kLanes, mul(factors, square[i]));
    }
  }
}

/// Rows that are read or written once are asked for so many rows before.
constexpr int kRowsAhead = 12;
HEED_INLINE void prefetch_lines(const void* row, std::int64_t bytes) {
  for (std::int64_t line = 0; line < bytes; line += 64) prefetch(static_cast<const std::byte*>(row) + line);
}

/// Keys and values of [first, first + count) to compact rows. Returns a bit for every key block whose keys are all finite; values need no
/// such check, since they only enter dP, which is selected from.
static std::uint64_t load_key_rows(const ForwardProblem& p, std::int64_t first, std::int64_t count, float* keys, std::int64_t key_row,
                                   float* values, std::int64_t value_row) noexcept {
  const std::int64_t width = bytes_of(p.kv.dtype);
  std::int64_t segment = 0, segment_first = 0;
  std::uint64_t finite = 0;
  Vec check = zero(), unused = zero();
  for (std::int64_t i = 0; i < count; ++i) {
    while (first + i >= segment_first + p.kv.segments[segment].rows) segment_first += p.kv.segments[segment++].rows;
    const KvSegment& s = p.kv.segments[segment];
    const std::int64_t row = first + i - segment_first;
    const std::byte* key = static_cast<const std::byte*>(s.k) + (p.kv.k_head + row * s.k_row_stride) * width;
    const std::byte* value = static_cast<const std::byte*>(s.v) + (p.kv.v_head + row * s.v_row_stride) * width;
    if (row + kRowsAhead < s.rows && i + kRowsAhead < count) {
      prefetch_lines(key + kRowsAhead * s.k_row_stride * width, p.head_dim * width);
      prefetch_lines(value + kRowsAhead * s.v_row_stride * width, p.value_dim * width);
    }
    widen_checked(key, p.kv.dtype, p.kv.k_dim_stride, p.head_dim, keys + i * key_row, check);
    widen_checked(value, p.kv.dtype, p.kv.v_dim_stride, p.value_dim, values + i * value_row, unused);
    if ((i + 1) % kBlockKeys != 0 && i + 1 < count) continue;
    if (all(cmp_eq(check, check))) finite |= std::uint64_t{1} << (i / kBlockKeys);
    check = zero();
  }
  return finite;
}

template <class T>
HEED_INLINE void write_contiguous(std::byte* to, std::int64_t dims, const float* from, Vec factor) {
  auto* x = reinterpret_cast<T*>(to);
  std::int64_t d = 0;
  for (; d + kLanes <= dims; d += kLanes) storeu(x + d, mul(factor, load(from + d)));
  if (d < dims) store_partial(x + d, mul(factor, load(from + d)), static_cast<int>(dims - d));
}

/// `dims` float32 at `from`, times `factor`, rounded to the caller's row.
HEED_INLINE void write_row(std::byte* to, DType dtype, std::int64_t stride, std::int64_t dims, const float* from, Vec factor) {
  if (stride == 1) {
    switch (dtype) {
      case DType::kBFloat16: return write_contiguous<bfloat16>(to, dims, from, factor);
      case DType::kFloat16: return write_contiguous<float16>(to, dims, from, factor);
      default: return write_contiguous<float>(to, dims, from, factor);
    }
  }
  for (std::int64_t d = 0; d < dims; d += kLanes) {
    const int n = static_cast<int>(dims - d < kLanes ? dims - d : kLanes);
    store_any(to + d * stride * bytes_of(dtype), dtype, stride, mul(factor, load(from + d)), n);
  }
}

HEED_INLINE void zero_row(std::byte* to, DType dtype, std::int64_t stride, std::int64_t dims) {
  for (std::int64_t d = 0; d < dims; d += kLanes) {
    const int n = static_cast<int>(dims - d < kLanes ? dims - d : kLanes);
    store_any(to + d * stride * bytes_of(dtype), dtype, stride, zero(), n);
  }
}

HEED_INLINE std::byte* key_gradient_row(const KeyGradient& g, std::int64_t key) {
  return static_cast<std::byte*>(g.data) + key * g.row_stride * bytes_of(g.dtype);
}

/// Rows [first, first + count) of dk or dv; the first `held` of them from compact rows, the others, which no query can see, 0.
static void write_key_gradient(const KeyGradient& g, KeyRange range, std::int64_t held, std::int64_t dims, const float* from,
                               std::int64_t row_floats, float factor) noexcept {
  for (std::int64_t i = 0; i < range.count; ++i) {
    std::byte* to = key_gradient_row(g, range.first + i);
    if (i + kRowsAhead < range.count) prefetch_lines(key_gradient_row(g, range.first + i + kRowsAhead), dims * bytes_of(g.dtype));
    if (i < held) {
      write_row(to, g.dtype, g.dim_stride, dims, from + i * row_floats, set1(factor));
    } else {
      zero_row(to, g.dtype, g.dim_stride, dims);
    }
  }
}
