// SPDX-License-Identifier: Apache-2.0
// out[row][:] = sum of weight * V row over the visible tiles of a piece.

namespace decode {

/// V rows worked on at a time stay in the first-level cache while every group of rows and columns passes over them. With 16 keys at a time,
/// loading and storing the sums took a tenth of this step.
constexpr std::int64_t kValueBlockBytes = 16 * 1024;
/// V vectors per pass, so that rows x vectors fill the accumulators.
template <int kRows>
constexpr int kColumnVectors = kRows == 1 ? 8 : kSums / (kRows == 3 ? 4 : kRows);

HEED_INLINE void store_some(float* p, Vec x, std::int64_t n) {
  if (n >= kLanes) {
    storeu(p, x);
  } else {
    store_partial(p, x, static_cast<int>(n));
  }
}

/// Some keys of one tile.
struct Block {
  Rows v;
  const float* weights;  // [rows][kPieceKeys]
  int keys;
  Share ahead;
};

/// out[row][column ..] += weights V for kRows rows and kVectors vectors of columns; n < kLanes: columns of a single, partial vector.
template <class T, int kRows, int kVectors>
HEED_INLINE void add_columns(const Block& block, std::int64_t column, std::int64_t n, float* out, std::int64_t out_stride) {
  static_assert(kVectors == 1 || kVectors % 2 == 0);
  Vec sums[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) sums[r][c] = load_some(out + r * out_stride + column + c * kLanes, n);
  }
  for (int key = 0; key < block.keys; ++key) {
    const T* v = static_cast<const T*>(block.v.now[key]) + column;
    const bool asks = key >= block.ahead.first && key < block.ahead.end;
    const T* ahead = static_cast<const T*>((asks ? block.v.ahead : block.v.now)[key]) + column;
    Vec y[kVectors];
    if constexpr (kVectors == 1) {
      y[0] = load_some(v, n);
    } else {
      for (int c = 0; c < kVectors; c += 2) {
        load_pair(v + c * kLanes, y[c], y[c + 1]);
        prefetch_pair(ahead + c * kLanes);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      Vec weight = set1(block.weights[r * kPieceKeys + key]);
      keep(weight);
      for (int c = 0; c < kVectors; ++c) sums[r][c] = fma(weight, y[c], sums[r][c]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int c = 0; c < kVectors; ++c) store_some(out + r * out_stride + column + c * kLanes, sums[r][c], n);
  }
}

template <class T, int kRows>
static void add_rows(const Block& block, std::int64_t dim, float* out) {
  constexpr int kVectors = kColumnVectors<kRows>;
  std::int64_t column = 0;
  for (; column + kVectors * kLanes <= dim; column += kVectors * kLanes) {
    add_columns<T, kRows, kVectors>(block, column, kLanes, out, dim);
  }
  for (; column + kPair <= dim; column += kPair) add_columns<T, kRows, 2>(block, column, kLanes, out, dim);
  for (; column < dim; column += kLanes) add_columns<T, kRows, 1>(block, column, dim - column, out, dim);
}

HEED_INLINE Block from_row(const Block& block, int r, int rows) {
  return {block.v, block.weights + r * kPieceKeys, block.keys, share_of(r, rows, block.keys)};
}

template <class T>
static void add_block(const Block& block, int rows, std::int64_t dim, float* out) {
  int r = 0;
  if constexpr (kTileRows == 4) {
    for (; r + 4 <= rows; r += 4) add_rows<T, 4>(from_row(block, r, rows), dim, out + r * dim);
    if (r + 3 == rows) return add_rows<T, 3>(from_row(block, r, rows), dim, out + r * dim);
  }
  for (; r + 2 <= rows; r += 2) add_rows<T, 2>(from_row(block, r, rows), dim, out + r * dim);
  if (r < rows) add_rows<T, 1>(from_row(block, r, rows), dim, out + r * dim);
}

template <class T>
static bool has_non_finite(const Block& block, std::int64_t dim) {
  for (int key = 0; key < block.keys; ++key) {
    const T* v = static_cast<const T*>(block.v.now[key]);
    std::int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) {
      if (!all(is_finite(loadu(v + d)))) return true;
    }
    if (d < dim && !all(is_finite(load_partial(v + d, static_cast<int>(dim - d))))) return true;
  }
  return false;
}

/// The same sums in the same order, but without the keys that a row does not see: 0 * NaN is NaN.
template <class T>
static void add_shown(const Block& block, const Piece& p, int t, int first, std::int64_t dim, float* out) {
  for (int r = 0; r < p.rows; ++r) {
    const std::uint64_t shown = p.shown[r * kTiles + t] >> first;
    for (int key = 0; key < block.keys; ++key) {
      if ((shown >> key & 1U) == 0) continue;
      const T* v = static_cast<const T*>(block.v.now[key]);
      const Vec weight = set1(block.weights[r * kPieceKeys + key]);
      float* to = out + r * dim;
      std::int64_t d = 0;
      for (; d + kPair <= dim; d += kPair) {
        Vec low, high;
        load_pair(v + d, low, high);
        storeu(to + d, fma(weight, low, loadu(to + d)));
        storeu(to + d + kLanes, fma(weight, high, loadu(to + d + kLanes)));
      }
      for (; d < dim; d += kLanes) store_some(to + d, fma(weight, load_some(v + d, dim - d), load_some(to + d, dim - d)), dim - d);
    }
  }
}

template <class T>
static void add_block_checked(const Block& block, const Piece& p, int t, int first, std::int64_t dim, float* out) {
  if (p.may_hide[t] && has_non_finite<T>(block, dim)) return add_shown<T>(block, p, t, first, dim, out);
  add_block<T>(block, p.rows, dim, out);
}

template <class T>
static void add_values(const ForwardProblem& problem, const Piece& p, float* out) {
  const std::int64_t dim = problem.value_dim;
  for (std::int64_t i = 0; i < p.rows * dim; ++i) out[i] = 0.0F;
  const std::int64_t fitting = kValueBlockBytes / (dim * static_cast<std::int64_t>(sizeof(T))) / 4 * 4;
  const int most_keys = problem.kv.v_dim_stride == 1 ? kBlockKeys : kChunkKeys;
  const int block_keys = static_cast<int>(largest(4, smallest(most_keys, fitting)));
  for (int t = 0; t < p.tile_count; ++t) {
    const Tile& tile = p.tiles[t];
    for (int first = 0; first < tile.keys; first += block_keys) {
      const int keys = static_cast<int>(smallest(block_keys, tile.keys - first));
      const int key = tile.first + first;
      Rows v = {p.v + key, p.v + smallest(key + p.ahead_keys, p.chunk_keys)};
      const void* rows[kChunkKeys];
      if (problem.kv.v_dim_stride != 1) {
        gather_rows<T>(v.now, keys, dim, problem.kv.v_dim_stride, p, rows);
        v = {rows, rows};
      }
      add_block_checked<T>({v, p.scores + key, keys, {}}, p, t, first, dim, out);
    }
  }
  if constexpr (kEvenOdd<T>) interleave_rows(out, dim, p.rows, dim);
}

}  // namespace decode
