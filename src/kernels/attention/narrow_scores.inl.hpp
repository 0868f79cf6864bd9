// SPDX-License-Identifier: Apache-2.0
// scores[row][key] of a piece: K q, then softcap, bias, ALiBi and mask; and the weights that follow from them.

namespace decode {

/// Rows that share one pass over K, and sums in registers: 4 keys x 4 rows where there are 32 registers, 4 keys x 2 rows where there are 16.
constexpr int kTileRows = kLanes == 16 ? 4 : 2;
constexpr int kSums = kLanes == 16 ? 16 : 8;

/// K or V rows in use, and the ones to ask memory for meanwhile: the hardware's prefetcher stops at the end of a page, and the rows of a
/// [B, L, H, D] tensor may lie on a page each. Spread over the arithmetic, because a burst of prefetches would stop it.
struct Rows {
  const void* const* now;
  const void* const* ahead;
};
HEED_INLINE Rows skip(Rows rows, int n) { return {rows.now + n, rows.ahead + n}; }

/// The keys, out of some, that one group of rows asks memory for. If the first group asked for all of them, memory would be busy with that group
/// and idle with the others. Left-over rows ask for nothing: a tile of theirs has more keys than a share.
struct Share {
  int first, end;
};
HEED_INLINE Share share_of(int row, int rows, int keys) {
  const int group = row / kTileRows, groups = rows < kTileRows ? 1 : rows / kTileRows;
  if (group >= groups) return {0, 0};
  return {keys * group / groups, keys * (group + 1) / groups};
}

/// Dot products of kRows rows of q with kSums / kSlots keys, kSlots = kRows rounded up to a power of two: out[row * kPieceKeys + key].
template <class T, int kRows>
HEED_INLINE void score_tile(Rows k, const float* q, std::int64_t q_stride, std::int64_t dim, float* out) {
  constexpr int kSlots = kRows == 3 ? 4 : kRows;
  constexpr int kKeys = kSums / kSlots;
  Vec sums[kSums / kLanes][kLanes];
  for (int i = 0; i < kSums; ++i) sums[i / kLanes][i % kLanes] = zero();
  std::int64_t d = 0;
  for (; d + kPair <= dim; d += kPair) {
    for (int j = 0; j < kKeys; ++j) {
      Vec low, high;
      load_pair(static_cast<const T*>(k.now[j]) + d, low, high);
      prefetch_pair(static_cast<const T*>(k.ahead[j]) + d);
      for (int r = 0; r < kRows; ++r) {
        Vec& sum = sums[(r * kKeys + j) / kLanes][(r * kKeys + j) % kLanes];
        sum = fma(load(q + r * q_stride + d), low, sum);
        sum = fma(load(q + r * q_stride + d + kLanes), high, sum);
      }
    }
  }
  for (; d < dim; d += kLanes) {
    for (int j = 0; j < kKeys; ++j) {
      const Vec y = load_some(static_cast<const T*>(k.now[j]) + d, dim - d);
      for (int r = 0; r < kRows; ++r) {
        Vec& sum = sums[(r * kKeys + j) / kLanes][(r * kKeys + j) % kLanes];
        sum = fma(load(q + r * q_stride + d), y, sum);
      }
    }
  }
  alignas(64) float totals[kSums];
  for (int i = 0; i < kSums / kLanes; ++i) store(totals + i * kLanes, sum_lanes(sums[i]));
  for (int r = 0; r < kRows; ++r) __builtin_memcpy(out + r * kPieceKeys, totals + r * kKeys, sizeof(float) * kKeys);
}

template <class T, int kRows>
static void score_chunk(Rows k, Share ahead, const float* q, std::int64_t q_stride, std::int64_t dim, float* out) {
  constexpr int kKeys = kSums / (kRows == 3 ? 4 : kRows);
  for (int key = 0; key < kChunkKeys; key += kKeys) {
    Rows tile = skip(k, key);
    if (key < ahead.first || key >= ahead.end) tile.ahead = tile.now;
    score_tile<T, kRows>(tile, q, q_stride, dim, out + key);
  }
}

/// kRows rows from row r on.
template <class T, int kRows>
HEED_INLINE void score_group(Rows k, const ForwardProblem& problem, const Piece& p, int r, float* out) {
  const Share ahead = share_of(r, p.rows, kChunkKeys);
  score_chunk<T, kRows>(k, ahead, p.q + r * p.q_stride, p.q_stride, problem.head_dim, out + r * kPieceKeys);
}

/// All rows against one chunk of keys, whose K rows come from memory once and then from the first-level cache.
template <class T>
static void score_rows(Rows k, const ForwardProblem& problem, const Piece& p, float* out) {
  int r = 0;
  if constexpr (kTileRows == 4) {
    for (; r + 4 <= p.rows; r += 4) score_group<T, 4>(k, problem, p, r, out);
    if (r + 3 == p.rows) return score_group<T, 3>(k, problem, p, r, out);
  }
  for (; r + 2 <= p.rows; r += 2) score_group<T, 2>(k, problem, p, r, out);
  if (r < p.rows) score_group<T, 1>(k, problem, p, r, out);
}

/// Bias of keys first .. first + n for one row, 0 in the lanes behind them.
template <class T>
HEED_INLINE Vec load_bias_of(const Scoring& s, std::int64_t row_offset, std::int64_t first, int n) {
  const T* from = static_cast<const T*>(s.bias) + row_offset + first * s.bias_key_stride;
  if (s.bias_key_stride == 1) return n == kLanes ? loadu(from) : load_partial(from, n);
  alignas(64) float lanes[kLanes] = {};
  for (int i = 0; i < n; ++i) lanes[i] = widen(from[i * s.bias_key_stride]);
  return load(lanes);
}

HEED_INLINE Vec load_bias(const Scoring& s, std::int64_t row_offset, std::int64_t first, int n) {
  switch (s.bias_dtype) {
    case DType::kBFloat16: return load_bias_of<bfloat16>(s, row_offset, first, n);
    case DType::kFloat16: return load_bias_of<float16>(s, row_offset, first, n);
    default: return load_bias_of<float>(s, row_offset, first, n);
  }
}

/// Bit j: row r sees key j.
static std::uint64_t shown_keys(const Tile& tile, int r) {
  const std::uint64_t existing = tile.keys == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << tile.keys) - 1U;
  if (tile.bits == nullptr) return existing;
  std::uint64_t shown = 0;
  for (int j = 0; j < tile.keys; ++j) shown |= (tile.bits[j] >> r & 1U) << j;
  return shown;
}

/// Turns products into scores in units of log2, -inf where the row does not see the key. Returns the keys that the row sees.
static std::uint64_t finish_row(const ForwardProblem& problem, const Piece& p, const Tile& tile, int r) {
  const Scoring& s = problem.scoring;
  const std::int64_t token = r / problem.q.group;
  const std::int64_t head = r % problem.q.group;
  const std::int64_t first = p.first_key + tile.first;
  const std::int64_t bias_offset = token * s.bias_token_stride + head * s.bias_head_stride;
  const Vec slope = set1(s.alibi_slopes != nullptr ? s.alibi_slopes[head] * kLog2E : 0.0F);
  std::uint64_t shown = shown_keys(tile, r);
  for (int j = 0; j < tile.keys; j += kLanes) {
    const int n = static_cast<int>(smallest(kLanes, tile.keys - j));
    float* at = p.scores + r * kPieceKeys + tile.first + j;
    Vec x = load(at);
    if (s.softcap > 0.0F) x = mul(tanh(x), set1(s.softcap * kLog2E));
    if (s.bias != nullptr) {
      const Vec bias = load_bias(s, bias_offset, first + j, n);
      x = fma(max(set1(-2.3e38F), bias), set1(kLog2E), x);  // a finite bias stays finite: only -inf itself masks; NaN passes
      shown &= ~(mask_bits(cmp_eq(bias, set1(kMinusInfinity))) << j);
    }
    if (s.alibi_slopes != nullptr) {
      const Vec distance = sub(set1(static_cast<float>(s.query_offset + token - first - j)), iota());
      x = fnma(slope, abs(distance), x);
    }
    store(at, select(mask_from_bits(shown >> j), x, set1(kMinusInfinity)));
  }
  return shown;
}

static void finish_tile(const ForwardProblem& problem, Piece& p, int t) {
  const Scoring& s = problem.scoring;
  const Tile& tile = p.tiles[t];
  p.may_hide[t] = tile.bits != nullptr || s.bias != nullptr;
  const bool is_plain = s.softcap <= 0.0F && s.alibi_slopes == nullptr && !p.may_hide[t];
  if (is_plain && tile.keys % kLanes == 0) return;
  for (int r = 0; r < p.rows; ++r) p.shown[r * kTiles + t] = finish_row(problem, p, tile, r);
}

template <class T>
static void score_piece(const ForwardProblem& problem, Piece& p) {
  for (int t = 0; t < p.tile_count; ++t) {
    const Tile& tile = p.tiles[t];
    for (int key = tile.first; key < tile.first + tile.keys; key += kChunkKeys) {
      Rows k = {p.k + key, p.k + key + p.ahead_keys};
      const void* rows[kChunkKeys];
      if (problem.kv.k_dim_stride != 1) {
        gather_rows<T>(k.now, kChunkKeys, problem.head_dim, problem.kv.k_dim_stride, p, rows);
        k = {rows, rows};
      }
      score_rows<T>(k, problem, p, p.scores + key);
    }
    finish_tile(problem, p, t);
  }
}

/// Memory would stand still while weights are computed: asks for a share of the V rows behind those that score_piece has asked for.
static void prefetch_values(const Piece& p, std::int64_t row_bytes, int r) {
  const int first = p.ahead_keys + r * kChunkKeys / p.rows;
  const int end = p.ahead_keys + (r + 1) * kChunkKeys / p.rows;
  for (int key = first; key < end && key < p.chunk_keys; ++key) {
    for (std::int64_t offset = 0; offset < row_bytes; offset += 64) prefetch_far(static_cast<const std::byte*>(p.v[key]) + offset);
  }
}

/// Largest visible score of each row, weights 2^(score - largest) in place of the scores, and their sums.
static void weigh_rows(const Piece& p, std::int64_t value_row_bytes, const PartialState& state) {
  for (int r = 0; r < p.rows; ++r) {
    if (p.tile_count > 0) prefetch_values(p, value_row_bytes, r);
    float* scores = p.scores + r * kPieceKeys;
    Vec top = set1(kMinusInfinity);
    for (int t = 0; t < p.tile_count; ++t) {
      for (int j = 0; j < p.tiles[t].keys; j += kLanes) top = max(top, load(scores + p.tiles[t].first + j));
    }
    const float largest_score = reduce_max(top);
    // A row that sees nothing subtracts 0, so that -inf - -inf is never formed.
    const Vec reference = set1(largest_score == kMinusInfinity ? 0.0F : largest_score);
    Vec sum = zero();
    for (int t = 0; t < p.tile_count; ++t) {
      for (int j = 0; j < p.tiles[t].keys; j += kLanes) {
        float* at = scores + p.tiles[t].first + j;
        const Vec weight = exp2(sub(load(at), reference));
        sum = add(sum, weight);
        store(at, weight);
      }
    }
    state.max[r] = largest_score;
    state.true_max[r] = largest_score;
    state.sum[r] = reduce_add(sum);
  }
}

}  // namespace decode
