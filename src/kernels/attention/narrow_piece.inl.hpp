// SPDX-License-Identifier: Apache-2.0
// One piece of a narrow problem: its visible tiles, where its keys lie, its scratch, and the packed queries.

namespace decode {

constexpr int kTiles = static_cast<int>(kPieceKeys) / kBlockKeys;
/// Keys scored while their K rows are in the first-level cache, and rows gathered at a time where the last axis is strided.
constexpr int kChunkKeys = 16;
/// How far ahead of their use rows are asked for, in bytes and, for short and long rows, in keys. Tried at D 128: 2, 4, 8, 16 and 24 KB.
constexpr std::int64_t kAheadBytes = 8 * 1024;
constexpr int kMostAheadKeys = 64;
constexpr float kLog2E = 1.44269504088896340736F;
constexpr float kMinusInfinity = -__builtin_inff();

/// Visible keys of one block. `first` counts from the start of the piece.
struct Tile {
  int first;
  int keys;
  const std::uint64_t* bits;  // null: every row sees every key
};

struct Piece {
  std::int64_t first_key = 0;
  int keys = 0;  // that exist in the piece
  int rows = 0;
  int tile_count = 0;
  Tile tiles[kTiles] = {};
  bool may_hide[kTiles] = {};      // some slot of the tile is masked: by bits, or by a bias of -inf
  std::int64_t q_stride = 0;       // D in whole lines
  float* q = nullptr;              // [rows][q_stride], zeros behind D
  float* scores = nullptr;         // [rows][kPieceKeys], then the weights
  std::uint64_t* shown = nullptr;  // [rows][kTiles], bit j: the row sees key j of the tile; set where may_hide
  int chunk_keys = 0;              // keys in whole chunks: the last key's rows are repeated up to there
  int ahead_keys = 0;
  const void** k = nullptr;   // [chunk_keys] row of each key
  const void** v = nullptr;   // [chunk_keys + kMostAheadKeys], right behind k, so that one stream of prefetches runs through both
  float* gathered = nullptr;  // room for kChunkKeys rows of K or V
};

HEED_INLINE std::int64_t whole_lines(std::int64_t floats) { return (floats + 15) / 16 * 16; }
HEED_INLINE std::int64_t largest(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
HEED_INLINE std::int64_t smallest(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
HEED_INLINE std::int64_t rows_of(const ForwardProblem& problem) { return problem.q.tokens * problem.q.group; }

HEED_INLINE std::int64_t gathered_floats(const ForwardProblem& problem) {
  return kChunkKeys * whole_lines(largest(problem.head_dim, problem.value_dim));
}

static std::int64_t scratch_bytes(const ForwardProblem& problem) noexcept {
  const std::int64_t rows = rows_of(problem);
  const std::int64_t floats = rows * whole_lines(problem.head_dim) + rows * kPieceKeys + gathered_floats(problem);
  return floats * 4 + (2 * kPieceKeys + kMostAheadKeys) * 8 + rows * kTiles * 8;
}

/// The run that holds `block` or, if none does, the first one behind it.
static std::int64_t find_run(const TilePlan& plan, std::int64_t block) {
  std::int64_t low = plan.run_begin[0];
  std::int64_t high = plan.run_begin[1];
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (plan.runs[middle].first_block + plan.runs[middle].block_count > block) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

static void find_tiles(const TilePlan& plan, Piece& p) {
  const std::int64_t first_block = p.first_key / kBlockKeys;
  std::int64_t run = find_run(plan, first_block);
  for (int i = 0; i * kBlockKeys < p.keys; ++i) {
    const std::int64_t block = first_block + i;
    while (run < plan.run_begin[1] && plan.runs[run].first_block + plan.runs[run].block_count <= block) ++run;
    if (run == plan.run_begin[1]) return;
    const TileRun& r = plan.runs[run];
    if (r.first_block > block) continue;
    const int first = i * kBlockKeys;
    const int keys = static_cast<int>(smallest(kBlockKeys, p.keys - first));
    p.tiles[p.tile_count++] = {first, keys, r.bits < 0 ? nullptr : plan.bits + r.bits * kBlockKeys};
  }
}

static Piece make_piece(const ForwardProblem& problem, std::int64_t piece, std::byte* scratch, int element_bytes) {
  Piece p;
  p.first_key = piece * kPieceKeys;
  p.keys = static_cast<int>(largest(0, smallest(kPieceKeys, problem.plan->keys - p.first_key)));
  p.rows = static_cast<int>(rows_of(problem));
  p.q_stride = whole_lines(problem.head_dim);
  p.q = reinterpret_cast<float*>(scratch);
  p.scores = p.q + p.rows * p.q_stride;
  p.gathered = p.scores + p.rows * kPieceKeys;
  p.k = reinterpret_cast<const void**>(p.gathered + gathered_floats(problem));
  p.chunk_keys = (p.keys + kChunkKeys - 1) / kChunkKeys * kChunkKeys;
  p.ahead_keys = static_cast<int>(largest(kChunkKeys, smallest(kMostAheadKeys, kAheadBytes / (problem.head_dim * element_bytes))));
  p.v = p.k + p.chunk_keys;
  p.shown = reinterpret_cast<std::uint64_t*>(p.v + p.chunk_keys + kMostAheadKeys);
  find_tiles(*problem.plan, p);
  return p;
}

/// rows[i] = first + i * stride_bytes. A loop of its own, so that the compiler makes it one of vectors.
HEED_INLINE void list_rows(const void** rows, const std::byte* first, std::int64_t stride_bytes, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) rows[i] = first + i * stride_bytes;
}

/// Rows of keys [first, first + count) of the sequence, segment by segment, as far as there are any; returns how many. v may be null.
static int find_rows(const KvRows& kv, std::int64_t width, std::int64_t first, std::int64_t count, const void** k, const void** v) {
  std::int64_t found = 0;
  std::int64_t begin = 0;  // first key of the segment
  for (std::int64_t s = 0; s < kv.segment_count && found < count; ++s) {
    const KvSegment& segment = kv.segments[s];
    const std::int64_t end = begin + segment.rows;
    if (first + found < end) {
      const std::int64_t row = first + found - begin;
      const std::int64_t n = smallest(count - found, segment.rows - row);
      const std::int64_t k_stride = segment.k_row_stride * width, v_stride = segment.v_row_stride * width;
      list_rows(k + found, static_cast<const std::byte*>(segment.k) + kv.k_head * width + row * k_stride, k_stride, n);
      if (v != nullptr) list_rows(v + found, static_cast<const std::byte*>(segment.v) + kv.v_head * width + row * v_stride, v_stride, n);
      found += n;
    }
    begin = end;
  }
  return static_cast<int>(found);
}

/// Writes the row of every key of the piece; behind its values the keys of the next piece, which the prefetches run into.
[[maybe_unused]] static void locate_keys(const ForwardProblem& problem, std::int64_t width, Piece& p) {
  find_rows(problem.kv, width, p.first_key, p.keys, p.k, p.v);
  for (int key = p.keys; key < p.chunk_keys; ++key) {
    p.k[key] = p.k[p.keys - 1];
    p.v[key] = p.v[p.keys - 1];
  }
  const std::int64_t following = smallest(kMostAheadKeys, problem.plan->keys - p.first_key - p.keys);
  int ahead = p.chunk_keys;
  if (following > 0) ahead += find_rows(problem.kv, width, p.first_key + p.keys, following, p.v + p.chunk_keys, nullptr);
  for (; ahead < p.chunk_keys + kMostAheadKeys; ++ahead) p.v[ahead] = p.v[p.keys - 1];
}

/// 2 kLanes consecutive elements as two vectors, in the order that costs least: bfloat16 falls apart into even and odd elements with two
/// operations, where widening in order takes four. Packed q and a piece's out follow that order up to the last whole pair of vectors.
template <class T>
constexpr bool kEvenOdd = __is_same(T, bfloat16);  // not a specialization: two texts include this, and Clang would define that twice
constexpr int kPair = 2 * kLanes;

template <class T>
HEED_INLINE void load_pair(const T* p, Vec& a, Vec& b) {
  if constexpr (kEvenOdd<T>) {
    const IVec pairs = iload(p);
    a = low_of_pairs(pairs);
    b = high_of_pairs(pairs);
  } else {
    a = loadu(p);
    b = loadu(p + kLanes);
  }
}
/// Into the second-level cache: a request of the first level keeps one of its few fill buffers for as long as memory takes, and with all of
/// them taken one core reached 0.78 of the read bandwidth in place of 0.93 (float32, D 128, Emerald Rapids).
HEED_INLINE void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
template <class T>
HEED_INLINE void prefetch_pair(const T* p) {
  prefetch_far(p);
  if constexpr (kPair * sizeof(T) > 64) prefetch_far(p + kLanes);
}
template <class T>
HEED_INLINE Vec load_some(const T* p, std::int64_t n) {
  return n >= kLanes ? loadu(p) : load_partial(p, static_cast<int>(n));
}

/// to[i] = from[i * stride], widened and times `factor`; zeros up to whole lines.
template <class T>
HEED_INLINE void pack_row(float* to, const T* from, std::int64_t stride, std::int64_t count, Vec factor) {
  std::int64_t i = 0;
  if (stride == 1) {
    for (; i + kLanes <= count; i += kLanes) store(to + i, loadu(from + i));
  }
  for (; i < count; ++i) to[i] = widen(from[i * stride]);
  for (; i < whole_lines(count); ++i) to[i] = 0.0F;
  for (i = 0; i < count; i += kLanes) store(to + i, mul(load(to + i), factor));
}

template <class T>
static void pack_queries_of(const ForwardProblem& problem, const Piece& p, Vec factor) {
  const QueryRows& q = problem.q;
  for (int r = 0; r < p.rows; ++r) {
    const T* from = static_cast<const T*>(q.data) + r / q.group * q.token_stride + r % q.group * q.head_stride;
    pack_row(p.q + r * p.q_stride, from, q.dim_stride, problem.head_dim, factor);
  }
}

[[maybe_unused]] static void deinterleave_rows(float* rows, std::int64_t stride, int count, std::int64_t dim) {
  for (int r = 0; r < count; ++r) {
    for (float* at = rows + r * stride; at + kPair <= rows + r * stride + dim; at += kPair) {
      Vec a = loadu(at), b = loadu(at + kLanes);
      deinterleave(a, b);
      storeu(at, a);
      storeu(at + kLanes, b);
    }
  }
}
[[maybe_unused]] static void interleave_rows(float* rows, std::int64_t stride, int count, std::int64_t dim) {
  for (int r = 0; r < count; ++r) {
    for (float* at = rows + r * stride; at + kPair <= rows + r * stride + dim; at += kPair) {
      Vec a = loadu(at), b = loadu(at + kLanes);
      interleave(a, b);
      storeu(at, a);
      storeu(at + kLanes, b);
    }
  }
}

/// Queries in float32, times what turns a product into a score: in units of log2, or of the softcap.
static void pack_queries(const ForwardProblem& problem, const Piece& p) {
  const Scoring& s = problem.scoring;
  const Vec factor = set1(s.softcap > 0.0F ? s.scale / s.softcap : s.scale * kLog2E);
  switch (problem.q.dtype) {
    case DType::kBFloat16: return pack_queries_of<bfloat16>(problem, p, factor);
    case DType::kFloat16: return pack_queries_of<float16>(problem, p, factor);
    default: return pack_queries_of<float>(problem, p, factor);
  }
}

/// Copies rows whose last axis is strided behind each other, so that they take the same way as all others, to the same bits.
template <class T>
static void gather_rows(const void* const* from, int count, std::int64_t dim, std::int64_t dim_stride, const Piece& p, const void** rows) {
  T* to = reinterpret_cast<T*>(p.gathered);
  for (int j = 0; j < count; ++j, to += whole_lines(dim)) {
    const T* row = static_cast<const T*>(from[j]);
    for (std::int64_t d = 0; d < dim; ++d) to[d] = row[d * dim_stride];
    rows[j] = to;
  }
}

}  // namespace decode
