// SPDX-License-Identifier: Apache-2.0
// Key tiles: rows of K and V as the register tiles read them. They are read where they lie if that is as fast; otherwise they are copied,
// widened, to compact rows, once for all row blocks of a super-block. Either way the next tile is fetched a row or two at a time between the
// register tiles of this one, so that nobody waits for memory.

/// Keys that a row block meets at once, in blocks of the plan. With one block instead of two, loading and storing O^T for every register
/// tile took another 2 % of the whole.
constexpr int kTileBlocks = 2;
constexpr int kTileKeys = kTileBlocks * kBlockKeys;

/// Some keys as the register tiles read them.
struct KeyTile {
  const std::byte* keys[kTileKeys + kTileBroadcasts];  ///< [count], the last one repeated up to a whole register tile
  const std::byte* values[kTileKeys];                  ///< [words of keys]
  std::int64_t index;                                  ///< keys [index * kTileKeys, + count); -1: none
  int count;                                           ///< keys that exist
  int values_are_finite;                               ///< -1: not looked at yet
};

/// Walks the segments of a sequence forward.
struct SegmentCursor {
  std::int64_t segment;
  std::int64_t first_key;  ///< of that segment
};

/// Raw row pointers of keys [first, first + count).
static void find_rows(const KvRows& kv, SegmentCursor& cursor, std::int64_t first, int count, const std::byte** keys,
                      const std::byte** values) noexcept {
  const std::int64_t width = bytes_of(kv.dtype);
  for (int i = 0; i < count; ++i) {
    while (first + i >= cursor.first_key + kv.segments[cursor.segment].rows) {
      cursor.first_key += kv.segments[cursor.segment].rows;
      ++cursor.segment;
    }
    const KvSegment& s = kv.segments[cursor.segment];
    const std::int64_t row = first + i - cursor.first_key;
    keys[i] = static_cast<const std::byte*>(s.k) + (kv.k_head + row * s.k_row_stride) * width;
    values[i] = static_cast<const std::byte*>(s.v) + (kv.v_head + row * s.v_row_stride) * width;
  }
}

/// Copies a row to float32; the padding up to `padded` elements is 0.
static void widen_row(const std::byte* from, DType dtype, std::int64_t stride, std::int64_t elements, std::int64_t padded,
                      float* to) noexcept {
  for (std::int64_t e = 0; e < padded; e += kLanes) {
    const std::int64_t left = elements - e;
    const int n = static_cast<int>(left < 0 ? 0 : left < kLanes ? left : kLanes);
    store(to + e, load_any(from + e * stride * bytes_of(dtype), dtype, stride, n));
  }
}

/// Copies a bfloat16 row as words, an odd last element paired with 0.
static void copy_words(const std::byte* from, std::int64_t stride, std::int64_t elements, float* to) noexcept {
  for (std::int64_t e = 0; e < elements; e += 2 * kLanes) store(to + e / 2, load_pairs(from + 2 * e * stride, stride, elements - e));
}

/// Two bfloat16 rows as one of words: low half the even key, high half the odd one (0 when there is none: null).
static void pair_rows(const std::byte* even, const std::byte* odd, std::int64_t stride, std::int64_t elements, std::int64_t padded,
                      float* to) noexcept {
  for (std::int64_t e = 0; e < padded; e += kLanes) {
    const std::int64_t left = elements - e;
    const int n = static_cast<int>(left < 0 ? 0 : left < kLanes ? left : kLanes);
    const IVec low = as_int(load_any(even + 2 * e * stride, DType::kBFloat16, stride, n));
    const IVec high = odd != nullptr ? as_int(load_any(odd + 2 * e * stride, DType::kBFloat16, stride, n)) : iset1(0);
    store(to + e, as_float(ior(shift_right<16>(low), high)));
  }
}

/// How rows of one operand get to the register tiles.
enum class Transfer : std::uint8_t { kInPlace, kWiden, kWords, kPairs };

struct Operand {
  Transfer transfer;
  DType dtype;
  std::int64_t dim_stride, elements;
  std::int64_t padded;      ///< elements of a copied row
  std::int64_t row_floats;  ///< from one copied row to the next
  std::int64_t row_bytes;   ///< to prefetch; 0 where the last axis is strided
  float* copies[2];         ///< [kTileKeys][row_floats] of one tile and the next
};

/// The tile at hand and the next one.
struct Loader {
  Operand keys, values;
  KeyTile tiles[2];
  const std::byte* raw_keys[kTileKeys];
  const std::byte* raw_values[kTileKeys];
  int current;
  int moved;                       ///< rows of the next tile that are there: its keys, then its values
  int per_step;                    ///< rows to move at a time
  const FollowingTask* following;  ///< set when the next tile is its first one: that tile's rows and its queries are asked for, no more
};

/// Rows in a [B, L, H, D] tensor lie apart: on pages of their own, which the first-level TLB cannot hold for a whole tile, and where they are a
/// multiple of 2 KB apart also in few sets of the caches. (In place: 77 % of the peak at tokens of 4 KB; compact rows: 87 %.)
HEED_INLINE bool lie_apart(std::int64_t row_stride, std::int64_t elements, DType dtype) {
  const std::int64_t stride_bytes = (row_stride < 0 ? -row_stride : row_stride) * bytes_of(dtype);
  return stride_bytes >= 1024 && stride_bytes >= 2 * elements * bytes_of(dtype);
}

HEED_INLINE const std::byte* row_of(const Operand& o, const std::byte* const* raw, int i, const float* copies) {
  return o.transfer == Transfer::kInPlace ? raw[i] : reinterpret_cast<const std::byte*>(copies + i * o.row_floats);
}

/// Points the next tile at where its rows will be.
static void aim(Loader& l, const KvRows& kv, SegmentCursor& cursor, std::int64_t index, int count) noexcept {
  const int next = 1 - l.current;
  KeyTile& tile = l.tiles[next];
  tile.index = index;
  tile.count = count;
  tile.values_are_finite = -1;
  l.moved = 0;
  find_rows(kv, cursor, index * kTileKeys, count, l.raw_keys, l.raw_values);
  for (int i = 0; i < count; ++i) {
    tile.keys[i] = row_of(l.keys, l.raw_keys, i, l.keys.copies[next]);
    tile.values[i] = row_of(l.values, l.raw_values, i, l.values.copies[next]);
  }
  for (int i = 0; i < kTileBroadcasts && count > 0; ++i) tile.keys[count + i] = tile.keys[count - 1];
}

/// Spreads the next tile's rows over the register tiles of `visits` row blocks.
HEED_INLINE void pace(Loader& l, int visits) {
  const int steps = visits * (kTileKeys / kTileBroadcasts);
  const std::int64_t queries = l.following != nullptr ? l.following->rows : 0;
  l.per_step = static_cast<int>((2 * l.tiles[1 - l.current].count + queries + steps - 1) / steps);
}

HEED_INLINE void prefetch_row(const Operand& o, const std::byte* row) {
  for (std::int64_t offset = 0; offset < o.row_bytes; offset += 64) prefetch_to_l2(row + offset);
}

/// Moves row i of `count`, and asks for the one `ahead` of it.
static void move_row(const Operand& o, const std::byte* const* raw, int i, int count, int ahead, float* copies) noexcept {
  if (i + ahead < count) prefetch_row(o, raw[i + ahead]);
  switch (o.transfer) {
    case Transfer::kWords: return copy_words(raw[i], o.dim_stride, o.elements, copies + i * o.row_floats);
    case Transfer::kPairs: {
      if (i % 2 == 0 && i + 1 < count) return;
      const int even = i / 2 * 2;
      return pair_rows(raw[even], even < i ? raw[i] : nullptr, o.dim_stride, o.elements, o.padded, copies + even / 2 * o.row_floats);
    }
    default: return widen_row(raw[i], o.dtype, o.dim_stride, o.elements, o.padded, copies + i * o.row_floats);
  }
}

/// Row `i` of what comes next: keys, then values.
HEED_INLINE void move_next(Loader& l, int i, int count) {
  const bool is_key = i < count;
  const Operand& o = is_key ? l.keys : l.values;
  const std::byte* const* raw = is_key ? l.raw_keys : l.raw_values;
  const int row = is_key ? i : i - count;
  if (l.following != nullptr || o.transfer == Transfer::kInPlace) return prefetch_row(o, raw[row]);
  move_row(o, raw, row, count, 2 * l.per_step, o.copies[1 - l.current]);
}

/// Some rows of the next tile, or of the next task's first tile and its queries.
static void move_rows(Loader& l, int rows) noexcept {
  const int count = l.tiles[1 - l.current].count;
  for (; rows > 0 && l.moved < 2 * count; --rows) move_next(l, l.moved++, count);
  if (l.following == nullptr) return;
  for (; rows > 0 && l.moved < 2 * count + l.following->rows; --rows) {
    prefetch_query(l.following->problem, l.following->first_row + l.moved++ - 2 * count);
  }
}

/// sum + 0 * word: x * 0 is NaN exactly for an x that is not finite.
HEED_INLINE Vec add_test(FloatProduct, Vec word, Vec sum) { return fma(word, zero(), sum); }
HEED_INLINE Vec add_test(Bf16Product, Vec word, Vec sum) {
  return fma(high_of_pairs(as_int(word)), zero(), fma(low_of_pairs(as_int(word)), zero(), sum));
}

/// Whether all values of the tile are finite, in whichever form they lie. Four rows at a time: in a single sum every addition would wait for the
/// one before, which took 1 % of a causal pass at D 64.
template <class Product>
static bool all_finite(const KeyTile& tile, std::int64_t dims) noexcept {
  constexpr int kRows = 4;
  const int words = (tile.count + Product::kElements - 1) / Product::kElements;
  Vec sums[kRows] = {zero(), zero(), zero(), zero()};
  for (int w = 0; w < words; w += kRows) {
    const float* rows[kRows];
    for (int i = 0; i < kRows; ++i) rows[i] = reinterpret_cast<const float*>(tile.values[w + i < words ? w + i : words - 1]);
    for (std::int64_t d = 0; d < dims; d += kLanes) {
      const int n = static_cast<int>(dims - d < kLanes ? dims - d : kLanes);
      HEED_UNROLL
      for (int i = 0; i < kRows; ++i) {
        const Vec word = n == kLanes ? loadu(rows[i] + d) : load_partial(rows[i] + d, n);
        sums[i] = add_test(Product{}, word, sums[i]);
      }
    }
  }
  const Vec sum = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
  return all(cmp_eq(sum, sum));
}
