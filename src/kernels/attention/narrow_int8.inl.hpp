// SPDX-License-Identifier: Apache-2.0
// Decode over keys and values of 8 bits: products of 16-bit with 8-bit integers, summed exactly in 32 bits.
//
// A query row becomes integers of 16 bits with one scale, and so do a row's weights in a piece, each multiplied by its value's scale first.
// What that rounds away, 2^-16 of the row's largest, is 1/256 of what the 8-bit rows have lost already (docs/decisions/0009). Integer sums
// have no order, so the bits are those of every instruction set. The pages' layout is in kernels/attention/int8_page.hpp.

#include "kernels/attention/narrow_piece.inl.hpp"
#include "kernels/attention/narrow_scores.inl.hpp"
#include "kernels/attention/narrow_values.inl.hpp"
#include "kernels/attention/dropout.inl.hpp"
#include "kernels/attention/narrow_dropout.inl.hpp"
#include "kernels/attention/narrow_combine.inl.hpp"

namespace decode {

/// Where the codes and scales of one page and head lie.
struct Int8Page {
  const std::int8_t* keys;
  const float* key_scales;
  const std::int8_t* values;
  const float* value_scales;
  const std::byte* end;
  const std::byte* next;  ///< the page that this thread is likely to read next, or this one
};

/// Beside what the float paths need.
struct Int8Piece {
  Int8Page page;
  std::int64_t dim_pairs;   ///< of a key: (D + 1) / 2
  std::int64_t value_dims;  ///< Dv in whole groups of 16
  std::int16_t* q;          ///< [rows][kUnitStride]
  std::int16_t* weights;    ///< [rows][kUnitStride]
  float* q_scales;          ///< [rows]
  float* weight_scales;     ///< [rows]
};

constexpr int kGroup = 16;  // keys, or dimensions of a value, that lie beside each other
/// Vectors of sums per row: with 4 rows they fill half of the registers.
constexpr int kInt8Vectors = kLanes == 16 ? 4 : 2;
constexpr std::int64_t kPairBytes = 2 * kGroup;
/// Integers of a row of queries or weights, 1024 at most: with a constant distance between rows one register points to all of them.
constexpr std::int64_t kUnitStride = 1024;
/// How far ahead of its use a page is asked for.
constexpr std::int64_t kInt8Ahead = 48 * 1024;
/// Integers that 16 bits hold; half of it where D is so large that 32 bits would not hold the sums.
HEED_INLINE float most_units(std::int64_t dim) { return dim <= 512 ? 32767.0F : 16383.0F; }

static std::int64_t scratch_bytes_int8(const ForwardProblem& problem) noexcept {
  const std::int64_t rows = rows_of(problem);
  return scratch_bytes(problem) + rows * (2 * kUnitStride * 2 + 8) + 64;
}

static const std::byte* page_of(const KvRows& kv, std::int64_t first_key) {
  std::int64_t begin = 0;
  for (std::int64_t s = 0; s < kv.segment_count; ++s) {
    if (first_key < begin + kv.segments[s].rows) return static_cast<const std::byte*>(kv.segments[s].k) + kv.k_head;
    begin += kv.segments[s].rows;
  }
  return nullptr;
}

static Int8Piece make_int8_piece(const ForwardProblem& problem, const Piece& p, std::byte* scratch) {
  Int8Piece n;
  n.dim_pairs = (problem.head_dim + 1) / 2;
  n.value_dims = (problem.value_dim + kGroup - 1) / kGroup * kGroup;
  const std::byte* page = page_of(problem.kv, p.first_key);
  const std::byte* next = page_of(problem.kv, p.first_key + kPieceKeys);
  n.page.keys = reinterpret_cast<const std::int8_t*>(page);
  n.page.key_scales = reinterpret_cast<const float*>(page + kPieceKeys * 2 * n.dim_pairs);
  n.page.values = reinterpret_cast<const std::int8_t*>(n.page.key_scales + kPieceKeys);
  n.page.value_scales = reinterpret_cast<const float*>(n.page.values + kPieceKeys * n.value_dims);
  n.page.end = reinterpret_cast<const std::byte*>(n.page.value_scales + kPieceKeys);
  n.page.next = next != nullptr ? next : page;
  std::byte* memory = scratch + (scratch_bytes(problem) + 63) / 64 * 64;
  n.q = reinterpret_cast<std::int16_t*>(memory);
  n.weights = n.q + p.rows * kUnitStride;
  n.q_scales = reinterpret_cast<float*>(n.weights + p.rows * kUnitStride);
  n.weight_scales = n.q_scales + p.rows;
  return n;
}

/// Where to ask for memory: kInt8Ahead behind `p` in the page, or in the next one where this one ends.
HEED_INLINE const std::byte* behind(const Int8Page& page, const void* p) {
  const std::byte* at = static_cast<const std::byte*>(p) + kInt8Ahead;
  return at < page.end ? at : page.next + (at - page.end);
}

HEED_INLINE bool is_number(float x) { return x - x == 0.0F; }

/// to[i] = from[i] / scale, to the nearest; returns the scale, NaN where some element is no number. `count` is in whole vectors.
static float to_units(std::int16_t* to, const float* from, std::int64_t count, float units) {
  Vec top = zero(), poison = zero();
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const Vec x = loadu(from + i);
    top = max(top, abs(x));
    poison = add(poison, sub(x, x));  // NaN for infinities too
  }
  const float largest_unit = reduce_max(top);
  const bool has_numbers = is_number(reduce_add(poison)) && largest_unit > 0.0F;
  const float inverse = units / largest_unit;
  const Vec factor = set1(has_numbers && is_number(inverse) ? inverse : 0.0F);
  for (std::int64_t i = 0; i < count; i += kLanes) store_int16(to + i, to_int(mul(loadu(from + i), factor)));
  if (!is_number(reduce_add(poison))) return __builtin_nanf("");
  return has_numbers && is_number(inverse) ? largest_unit / units : 0.0F;
}

HEED_INLINE std::int32_t pair_at(const std::int16_t* p) {
  std::int32_t pair;
  __builtin_memcpy(&pair, p, sizeof pair);
  return pair;
}

/// Vector v, pair 0 of codes that lie in groups of kGroup with `pairs` pairs each.
HEED_INLINE const std::int8_t* codes_of(const std::int8_t* codes, std::int64_t v, std::int64_t pairs) {
  const std::int64_t element = v * kLanes;
  return codes + element / kGroup * (pairs * kPairBytes) + element % kGroup * 2;
}

/// sums[r][v] = sum over pairs [first, end) of left[r][pair] * codes[v][pair].
template <int kRows, int kVectors>
HEED_INLINE void sum_pairs(const Int8Page& page, const std::int8_t* codes, std::int64_t pairs, const std::int16_t* left, std::int64_t first,
                           std::int64_t end, IVec (&sums)[kRows][kVectors]) {
  constexpr std::int64_t kBytes = 2 * kVectors * kLanes;  // of a pair, in all vectors
  const std::int8_t* from[kVectors];
  for (int v = 0; v < kVectors; ++v) from[v] = codes_of(codes, v, pairs);
  const std::byte* ahead = behind(page, codes + first * kBytes);
  for (std::int64_t i = first; i < end; ++i) {
    for (int byte = 0; byte < kBytes; byte += 64) prefetch_far(ahead + byte);
    ahead += kBytes;
    if (ahead >= page.end && ahead < page.end + kBytes) ahead = page.next;
    IVec code[kVectors];
    for (int v = 0; v < kVectors; ++v) code[v] = load_pairs(from[v] + i * kPairBytes);
    for (int r = 0; r < kRows; ++r) {
      const IVec unit = iset1(pair_at(left + r * kUnitStride + 2 * i));
      for (int v = 0; v < kVectors; ++v) sums[r][v] = dot_pairs(sums[r][v], code[v], unit);
    }
  }
}

template <int kRows, int kVectors>
HEED_INLINE void clear_sums(IVec (&sums)[kRows][kVectors]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) sums[r][v] = iset1(0);
  }
}

/// kRows rows from row r on against the keys of one tile.
template <int kRows>
static void score_int8_rows(const Piece& p, const Int8Piece& n, const Tile& tile, int r) {
  for (int key = tile.first; key < tile.first + tile.keys; key += kInt8Vectors * kLanes) {
    IVec sums[kRows][kInt8Vectors];
    clear_sums(sums);
    const std::int8_t* codes = codes_of(n.page.keys, key / kLanes, n.dim_pairs);
    sum_pairs(n.page, codes, n.dim_pairs, n.q + r * kUnitStride, 0, n.dim_pairs, sums);
    for (int v = 0; v < kInt8Vectors; ++v) {
      const Vec scale = loadu(n.page.key_scales + key + v * kLanes);
      for (int row = 0; row < kRows; ++row) {
        const Vec product = mul(to_float(sums[row][v]), set1(n.q_scales[r + row]));
        store(p.scores + (r + row) * kPieceKeys + key + v * kLanes, mul(product, scale));
      }
    }
  }
}

static void score_int8(const ForwardProblem& problem, Piece& p, Int8Piece& n) {
  for (int r = 0; r < p.rows; ++r) {
    n.q_scales[r] = to_units(n.q + r * kUnitStride, p.q + r * p.q_stride, p.q_stride, most_units(problem.head_dim));
  }
  for (int t = 0; t < p.tile_count; ++t) {
    int r = 0;
    for (; r + 4 <= p.rows; r += 4) score_int8_rows<4>(p, n, p.tiles[t], r);
    for (; r + 2 <= p.rows; r += 2) score_int8_rows<2>(p, n, p.tiles[t], r);
    if (r < p.rows) score_int8_rows<1>(p, n, p.tiles[t], r);
    finish_tile(problem, p, t);
  }
}

/// Weights times the scales of their values, as integers; those of keys that nobody visits are 0.
static void weigh_int8(const Piece& p, const Int8Piece& n) {
  alignas(64) float scaled[kPieceKeys];
  for (int j = 0; j < kPieceKeys; ++j) scaled[j] = 0.0F;
  for (int r = 0; r < p.rows; ++r) {
    for (int t = 0; t < p.tile_count; ++t) {
      const Tile& tile = p.tiles[t];
      for (int j = tile.first; j < tile.first + tile.keys; j += kLanes) {
        const Vec weight = load(p.scores + r * kPieceKeys + j);
        const Vec product = mul(weight, loadu(n.page.value_scales + j));
        // A masked value's scale may be NaN, and one that does not exist anything.
        store(scaled + j, select(cmp_eq(weight, zero()), zero(), product));
      }
    }
    n.weight_scales[r] = to_units(n.weights + r * kUnitStride, scaled, kPieceKeys, most_units(0));
  }
}

/// kRows rows from row r on, kVectors vectors of dimensions from vector v on.
template <int kRows, int kVectors>
static void add_int8_columns(const Piece& p, const Int8Piece& n, std::int64_t dim, int r, std::int64_t v, float* out) {
  IVec sums[kRows][kVectors];
  clear_sums(sums);
  constexpr std::int64_t kPairs = kPieceKeys / 2;
  const std::int8_t* codes = codes_of(n.page.values, v, kPairs);
  for (int t = 0; t < p.tile_count; ++t) {
    const Tile& tile = p.tiles[t];
    sum_pairs(n.page, codes, kPairs, n.weights + r * kUnitStride, tile.first / 2, (tile.first + tile.keys + 1) / 2, sums);
  }
  for (int row = 0; row < kRows; ++row) {
    for (int c = 0; c < kVectors; ++c) {
      const std::int64_t column = (v + c) * kLanes;
      if (column >= dim) break;
      const Vec x = mul(to_float(sums[row][c]), set1(n.weight_scales[r + row]));
      store_some(out + (r + row) * dim + column, x, dim - column);
    }
  }
}

template <int kRows>
static void add_int8_rows(const Piece& p, const Int8Piece& n, std::int64_t dim, int r, float* out) {
  const std::int64_t vectors = n.value_dims / kLanes;
  std::int64_t v = 0;
  for (; v + kInt8Vectors <= vectors; v += kInt8Vectors) add_int8_columns<kRows, kInt8Vectors>(p, n, dim, r, v, out);
  for (; v < vectors; ++v) add_int8_columns<kRows, 1>(p, n, dim, r, v, out);
}

static void add_int8(const Piece& p, const Int8Piece& n, std::int64_t dim, float* out) {
  int r = 0;
  for (; r + 4 <= p.rows; r += 4) add_int8_rows<4>(p, n, dim, r, out);
  for (; r + 2 <= p.rows; r += 2) add_int8_rows<2>(p, n, dim, r, out);
  if (r < p.rows) add_int8_rows<1>(p, n, dim, r, out);
}

static void run_int8_piece(const ForwardProblem& problem, std::int64_t piece, const PartialState& state, std::byte* scratch) noexcept {
  Piece p = make_piece(problem, piece, scratch, 1);
  if (p.tile_count == 0) {
    weigh_rows(p, 0, state);
    for (std::int64_t i = 0; i < p.rows * problem.value_dim; ++i) state.out[i] = 0.0F;
    return;
  }
  Int8Piece n = make_int8_piece(problem, p, scratch);
  pack_queries(problem, p);
  score_int8(problem, p, n);
  weigh_rows(p, 0, state);
  if (problem.scoring.dropout.factor != 0.0F) drop_weights(problem, p);
  weigh_int8(p, n);
  add_int8(p, n, problem.value_dim, state.out);
}

}  // namespace decode

/// The wide path widens integers once per call, so it pays as late as for 16 bits.
extern const NarrowKernel narrow_int8_kernels = {kLanes == 16 ? 31 : 15, decode::scratch_bytes_int8, decode::run_int8_piece,
                                                 decode::combine};
