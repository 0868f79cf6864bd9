// SPDX-License-Identifier: Apache-2.0
// The two register-tiled products of the backward pass.
//
//   inner   S^T[key][row] = sum over d   K[key][d] * Q^T[d][row]        rows in lanes, keys broadcast; dP^T = V dO^T likewise
//   outer   C[i][:] += sum over k   A[i][k] * B[k][:]                   lanes along the head dimension, A broadcast; dV, dK and dQ
//
// Both read their next operands from L2 into L1 while they compute: K, V, dK and dV of a range of keys fill L2, not L1. Without that the
// outer product ran at 76 % of the peak at D 64, most of it in the first loads of C.

/// kTileBroadcasts rows of `keys` (the last one repeated where `count` is smaller) meet the panel [dims][NV * kLanes].
struct InnerProduct {
  const float* panel;
  const float* keys;
  std::int64_t key_row, dims;
  float* to;  ///< [key][to_row]
  std::int64_t to_row;
};

template <int NV>
[[gnu::noinline]] static void inner_tile(const InnerProduct& p, int count) noexcept {
  Vec sum[kTileBroadcasts][NV];
  const float* key[kTileBroadcasts];
  HEED_UNROLL
  for (int i = 0; i < kTileBroadcasts; ++i) {
    key[i] = p.keys + (i < count ? i : count - 1) * p.key_row;
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) sum[i][j] = zero();
  }
  const float* panel = p.panel;
  const std::int64_t dims = p.dims, ahead = kTileBroadcasts * p.key_row;
  for (std::int64_t line = 0; line < dims; line += kLineFloats) {
    HEED_UNROLL
    for (int i = 0; i < kTileBroadcasts; ++i) prefetch(key[i] + ahead + line);
    const std::int64_t end = line + kLineFloats < dims ? line + kLineFloats : dims;
    for (std::int64_t d = line; d < end; ++d) {
      Vec q[NV];
      HEED_UNROLL
      for (int j = 0; j < NV; ++j) q[j] = load(panel + j * kLanes);
      panel += NV * kLanes;
      HEED_UNROLL
      for (int i = 0; i < kTileBroadcasts; ++i) {
        Vec k = set1(key[i][d]);
        keep(k);
        HEED_UNROLL
        for (int j = 0; j < NV; ++j) sum[i][j] = fma(k, q[j], sum[i][j]);
      }
    }
  }
  float* to = p.to;
  const std::int64_t to_row = p.to_row;
  HEED_UNROLL
  for (int i = 0; i < kTileBroadcasts; ++i, to += to_row) {
    HEED_UNROLL
    for (int j = 0; j < NV; ++j) store(to + j * kLanes, sum[i][j]);
  }
}

/// Strides in floats; B and C in whole, aligned vectors.
struct OuterProduct {
  const float* a;
  std::int64_t a_row, a_step;  ///< A[i][k] = a[i * a_row + k * a_step]
  const float* b;
  std::int64_t b_row;
  float* c;
  std::int64_t c_row;
};

constexpr int kOuterAccumulators = kTileBroadcasts * kTileVectors;
constexpr int kOuterVectors = kOuterAccumulators >= 24 ? 4 : 2;
/// Rows of C per register tile with N vectors: 6 x 4, 8 x 3, 12 x 2, or 6 x 2, 4 x 3 where there are 16 registers.
template <int N>
constexpr int kOuterRows = N == 1 ? 12 : kOuterAccumulators / N;

template <int M, int N>
[[gnu::noinline]] static void outer_tile(const OuterProduct& p, std::int64_t count) noexcept {
  Vec sum[M][N];
  const float* a[M];
  float* const c = p.c;
  const std::int64_t c_row = p.c_row, a_row = p.a_row, a_step = p.a_step, b_row = p.b_row;
  HEED_UNROLL
  for (int i = 0; i < M; ++i) {
    a[i] = p.a + i * a_row;
    HEED_UNROLL
    for (int j = 0; j < N; ++j) sum[i][j] = load(c + i * c_row + j * kLanes);
  }
  HEED_UNROLL
  for (int i = 0; i < M; ++i) {
    HEED_UNROLL
    for (int j = 0; j < N * kLanes; j += kLineFloats) prefetch(c + (M + i) * c_row + j);
  }
  const float* b = p.b;
  for (std::int64_t k = 0; k < count * a_step; k += a_step) {
    Vec x[N];
    HEED_UNROLL
    for (int j = 0; j < N; ++j) x[j] = load(b + j * kLanes);
    b += b_row;
    HEED_UNROLL
    for (int i = 0; i < M; ++i) {
      Vec w = set1(a[i][k]);
      keep(w);
      HEED_UNROLL
      for (int j = 0; j < N; ++j) sum[i][j] = fma(w, x[j], sum[i][j]);
    }
  }
  HEED_UNROLL
  for (int i = 0; i < M; ++i) {
    HEED_UNROLL
    for (int j = 0; j < N; ++j) store(c + i * c_row + j * kLanes, sum[i][j]);
  }
}

HEED_INLINE void skip_rows(OuterProduct& p, int rows) {
  p.a += rows * p.a_row;
  p.c += rows * p.c_row;
}

template <int N>
static void outer_strip(OuterProduct p, int rows, std::int64_t count) noexcept {
  constexpr int kRows = kOuterRows<N>;
  for (; rows >= kRows; rows -= kRows, skip_rows(p, kRows)) outer_tile<kRows, N>(p, count);
  for (; rows >= 4; rows -= 4, skip_rows(p, 4)) outer_tile<4, N>(p, count);
  for (; rows >= 2; rows -= 2, skip_rows(p, 2)) outer_tile<2, N>(p, count);
  if (rows == 1) outer_tile<1, N>(p, count);
}

/// Vectors of the next strip when `left` are left: five are 3 + 2, not 4 + 1.
HEED_INLINE int strip_width(std::int64_t left) {
  if (kOuterVectors == 2) return left == 1 ? 1 : left == 3 ? 3 : 2;
  return left <= 4 ? static_cast<int>(left) : left <= 6 ? 3 : 4;
}

/// `rows` rows of C, all `vectors` of them, over `count` rows of B.
static void outer_product(OuterProduct p, int rows, std::int64_t count, std::int64_t vectors) noexcept {
  while (vectors > 0) {
    const int width = strip_width(vectors);
    switch (width) {
      case 1: outer_strip<1>(p, rows, count); break;
      case 2: outer_strip<2>(p, rows, count); break;
      case 3: outer_strip<3>(p, rows, count); break;
      default: outer_strip<kOuterVectors>(p, rows, count); break;
    }
    p.b += width * kLanes;
    p.c += width * kLanes;
    vectors -= width;
  }
}
