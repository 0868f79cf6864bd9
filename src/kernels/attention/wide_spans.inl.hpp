// SPDX-License-Identifier: Apache-2.0
// Which vectors of rows meet which keys of a partly visible tile. A diagonal, a block edge or a document's end mostly divides the rows of a
// block at a vector's edge or near it, so both products leave out the vectors that see none of a register tile's keys: 1 % of a causal
// pass at 2048 tokens, 4 % at 256, a tenth of one over 64x64 blocks.

/// Keys [begin, end) of a tile, in whole register tiles but for the sequence's end, which the vectors [first, first + vectors) see some of.
struct Span {
  int begin, end;
  int first, vectors;  ///< in units of kVectorStep vectors
};

struct Spans {
  Span list[kTileKeys / kTileBroadcasts];
  int count;
};

/// The smallest range of vector steps that holds all of the rows.
HEED_INLINE void cover_rows(std::uint64_t rows, Span& span) {
  constexpr int kStepRows = kVectorStep * kLanes;
  span.first = span.vectors = 0;
  if (rows == 0) return;
  span.first = __builtin_ctzll(rows) / kStepRows;
  span.vectors = (63 - __builtin_clzll(rows)) / kStepRows + 1 - span.first;
}

/// The visible keys as spans; those that no row sees have 0 vectors.
static void list_spans(const RowBlock& b, const Visible& v, Spans& spans) noexcept {
  spans.list[0] = {v.begin, v.end, 0, b.vectors / kVectorStep};
  spans.count = 1;
  if (v.bits == nullptr) return;
  spans.count = 0;
  const std::uint64_t rows = all_rows(b);
  for (int k = v.begin; k < v.end; k += kTileBroadcasts) {
    Span span = {k, k + kTileBroadcasts < v.end ? k + kTileBroadcasts : v.end, 0, 0};
    std::uint64_t seen = 0;
    for (int i = k; i < span.end; ++i) seen |= v.bits[i];
    cover_rows(seen & rows, span);
    Span* last = spans.count > 0 ? &spans.list[spans.count - 1] : nullptr;
    if (last != nullptr && last->first == span.first && last->vectors == span.vectors) {
      last->end = span.end;
    } else {
      spans.list[spans.count++] = span;
    }
  }
}

/// Raw scores of a register tile for a part of the block's vectors. `max_of` is of use only for a whole block: masks make it again.
template <class Product, int NV, int kPart>
HEED_INLINE void score_part(const RowBlock& b, const Span& span, const std::byte* const* keys, std::int64_t words, float* scores) {
  const int offset = span.first * kVectorStep * kLanes;
  Vec unused[kPart];
  for (int j = 0; j < kPart; ++j) unused[j] = zero();
  score_tile<Product, kPart, NV>(b.panel + offset, keys, words, scores + offset, unused);
}

/// Scores of one span; slots of the vectors that see none of its keys get -inf.
template <class Product, int NV>
static void score_span(const RowBlock& b, const Span& span, const KeyTile& tile, std::int64_t words, Loader& loader, float* scores,
                       Vec (&max_of)[NV]) noexcept {
  for (int k = span.begin; k < span.end; k += kTileBroadcasts) {
    move_rows(loader, loader.per_step);
    float* to = scores + k * NV * kLanes;
    if (span.vectors * kVectorStep == NV) {
      score_tile<Product, NV, NV>(b.panel, tile.keys + k, words, to, max_of);
      continue;
    }
    for (int i = 0; i < kTileBroadcasts * NV; ++i) store(to + i * kLanes, set1(-__builtin_inff()));
    if (span.vectors == 1) score_part<Product, NV, kVectorStep>(b, span, tile.keys + k, words, to);
    if constexpr (NV > 2 * kVectorStep) {
      if (span.vectors == 2) score_part<Product, NV, 2 * kVectorStep>(b, span, tile.keys + k, words, to);
    }
  }
}

/// O^T += V^T P^T over the words that hold a span's keys.
template <class Product, int NV, int kPart>
static void add_part(const Span& span, const KeyTile& tile, std::int64_t dims, const float* weights, float* out, bool fresh) noexcept {
  const int offset = span.first * kVectorStep * kLanes;
  const int first = span.begin / Product::kElements;
  const int words = (span.end + Product::kElements - 1) / Product::kElements - first;
  const float* from = weights + first * NV * kLanes + offset;
  for (std::int64_t d = 0; d < dims; d += kTileBroadcasts) {
    output_tile<Product, kPart, NV>(from, tile.values + first, 4 * d, words, out + d * NV * kLanes + offset, fresh);
  }
}

template <class Product, int NV>
static void add_span(const Span& span, const KeyTile& tile, std::int64_t dims, const float* weights, float* out, bool fresh) noexcept {
  if (span.vectors * kVectorStep == NV) return add_part<Product, NV, NV>(span, tile, dims, weights, out, fresh);
  if (span.vectors == 1) add_part<Product, NV, kVectorStep>(span, tile, dims, weights, out, fresh);
  if constexpr (NV > 2 * kVectorStep) {
    if (span.vectors == 2) add_part<Product, NV, 2 * kVectorStep>(span, tile, dims, weights, out, fresh);
  }
}
