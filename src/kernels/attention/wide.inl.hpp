// SPDX-License-Identifier: Apache-2.0
// The wide forward path: many packed rows; front::is_narrow says how many. Rows sit in SIMD lanes for both products, so keys and values are read as they lie, never
// transposed, and softmax needs no reduction across lanes. A super-block of row blocks shares one pass over the keys.
// Source: online softmax, arXiv 1805.02867; tiling, arXiv 2307.08691, section 3.
#include "kernels/attention/wide_tiles.inl.hpp"
#include "kernels/attention/wide_pack.inl.hpp"
#include "kernels/attention/wide_load.inl.hpp"
#include "kernels/attention/wide_score.inl.hpp"
#include "kernels/attention/wide_spans.inl.hpp"
#include "kernels/attention/dropout.inl.hpp"
#include "kernels/attention/wide_dropout.inl.hpp"

/// Row blocks that share one pass over K and V, at most: 768 rows on AVX-512. With 192 rows K and V were read four times as often, and the
/// last-level cache of a shared machine is slow enough for that to cost 4 to 6 % of the peak. The caller takes fewer where L2 is small.
constexpr int kSuperBlock = 16;

/// Sizes of the scratch parts, in floats; every part starts on a cache line.
struct WideSizes {
  std::int64_t words;                   ///< of D
  std::int64_t padded_dims;             ///< Dv in whole register tiles
  std::int64_t key_row, value_row;      ///< of copied rows: one line more than the row, else rows of 1024 floats share few cache sets
  std::int64_t panel, out, row_values;  ///< of one row block
  std::int64_t block, scores, keys, values;
};

template <class Product>
static WideSizes wide_sizes(const ForwardProblem& p) noexcept {
  WideSizes s;
  s.words = (p.head_dim + Product::kElements - 1) / Product::kElements;
  s.padded_dims = round_up(p.value_dim, kTileBroadcasts);
  s.key_row = round_up(s.words, kLineFloats) + kLineFloats;
  s.value_row = round_up(s.padded_dims, kLineFloats) + kLineFloats;
  s.panel = round_up(s.words * kBlockRows, kLineFloats);
  s.out = round_up(s.padded_dims * kBlockRows, kLineFloats);
  s.row_values = round_up(kBlockRows, kLineFloats);
  s.block = s.panel + s.out + 6 * s.row_values;
  s.scores = (kTileKeys + kTileBroadcasts) * kBlockRows;
  s.keys = kTileKeys * s.key_row;
  s.values = kTileKeys * s.value_row;
  return s;
}

/// One call of the kernel.
struct WideCall {
  const ForwardProblem* problem;
  WideSizes sizes;
  Recipe recipe;
  RowBlock blocks[kSuperBlock];
  int count;
  float* scores;  ///< [kTileKeys + tile][kBlockRows], then the weights
  float* bias;    ///< [kTileKeys][kBlockRows]
  Loader loader;
  std::uint64_t visible[kTileKeys + 1];  ///< mask bits and the bias's -inf together; one word more than keys, for pairs
  std::uint64_t kept[kTileKeys + 1];     ///< what dropout leaves of them
};

template <class Product>
static std::int64_t wide_scratch_bytes(const ForwardProblem& p, std::int32_t row_blocks) noexcept {
  const WideSizes s = wide_sizes<Product>(p);
  return 4 * (row_blocks * s.block + 2 * s.scores + 2 * s.keys + 2 * s.values);
}

/// Per-row numbers that options need.
static void prepare_options(const ForwardProblem& p, RowBlock& b) noexcept {
  if (p.scoring.alibi_slopes == nullptr) return;
  for (int i = 0; i < b.vectors * kLanes; ++i) {
    const std::int64_t row = b.first_row + i;
    b.slopes[i] = i < b.rows ? p.scoring.alibi_slopes[row % p.q.group] * kLog2E : 0.0F;
  }
}

template <class Product>
static void start_block(const WideCall& call, RowBlock& b, std::int64_t index, float* memory) noexcept {
  const ForwardProblem& p = *call.problem;
  const WideSizes& s = call.sizes;
  const TilePlan& plan = *p.plan;
  b.panel = memory;
  b.out = b.panel + s.panel;
  b.max = b.out + s.out;
  b.true_max = b.max + s.row_values;
  b.sum = b.true_max + s.row_values;
  b.exact_sum = b.sum + s.row_values;
  b.slopes = b.exact_sum + s.row_values;
  b.positions = b.slopes + s.row_values;
  b.first_row = index * plan.block_rows;
  b.rows = static_cast<int>(plan.rows - b.first_row < plan.block_rows ? plan.rows - b.first_row : plan.block_rows);
  b.vectors = static_cast<int>(round_up((b.rows + kLanes - 1) / kLanes, kVectorStep));
  b.fresh = true;
  b.run = plan.run_begin[index];
  b.run_end = plan.run_begin[index + 1];
  b.next_block = b.run < b.run_end ? plan.runs[b.run].first_block : -1;
  for (int i = 0; i < b.vectors * kLanes; ++i) {
    b.max[i] = -__builtin_inff();
    b.true_max[i] = -__builtin_inff();
    b.sum[i] = 0.0F;
    b.exact_sum[i] = 0.0F;
  }
  prepare_options(p, b);
  pack_queries<Product>(p, b.first_row, b.rows, b.vectors, call.recipe.panel_factor, b.panel);
}

/// Where the register tiles read K and V.
HEED_INLINE void choose_transfers(FloatProduct, const ForwardProblem& p, Operand& keys, Operand& values) noexcept {
  const KvRows& kv = p.kv;
  const bool is_float = kv.dtype == DType::kFloat32;
  const KvSegment& first = kv.segments[0];
  const bool keys_fit = is_float && kv.k_dim_stride == 1 && !lie_apart(first.k_row_stride, p.head_dim, kv.dtype);
  const bool values_fit =
      is_float && kv.v_dim_stride == 1 && p.value_dim % kTileBroadcasts == 0 && !lie_apart(first.v_row_stride, p.value_dim, kv.dtype);
  keys.transfer = keys_fit ? Transfer::kInPlace : Transfer::kWiden;
  values.transfer = values_fit ? Transfer::kInPlace : Transfer::kWiden;
}

HEED_INLINE void choose_transfers(Bf16Product, const ForwardProblem& p, Operand& keys, Operand& values) noexcept {
  const KvRows& kv = p.kv;
  const bool keys_fit = kv.k_dim_stride == 1 && p.head_dim % 2 == 0 && !lie_apart(kv.segments[0].k_row_stride, p.head_dim, kv.dtype);
  keys.transfer = keys_fit ? Transfer::kInPlace : Transfer::kWords;
  values.transfer = Transfer::kPairs;
}

template <class Product>
static void prepare_loader(WideCall& call, float* memory) noexcept {
  const ForwardProblem& p = *call.problem;
  const WideSizes& s = call.sizes;
  const std::int64_t width = bytes_of(p.kv.dtype);
  Loader& l = call.loader;
  Operand& k = l.keys;
  Operand& v = l.values;
  k = {Transfer::kInPlace, p.kv.dtype, p.kv.k_dim_stride, p.head_dim, p.head_dim, s.key_row, 0, {memory, memory + s.keys}};
  memory += 2 * s.keys;
  v = {Transfer::kInPlace, p.kv.dtype, p.kv.v_dim_stride, p.value_dim, s.padded_dims, s.value_row, 0, {memory, memory + s.values}};
  if (k.dim_stride == 1) k.row_bytes = p.head_dim * width;
  if (v.dim_stride == 1) v.row_bytes = p.value_dim * width;
  choose_transfers(Product{}, p, k, v);
  l.current = 1;
  l.following = nullptr;
  l.per_step = 4;  // of the first tile, which nothing else covers
}

/// Takes the tile's key blocks off the row block's list: the keys that they hold, and bits where rows see some of these only. call.visible gets
/// the bits of all keys of the tile either way.
static Visible listed_keys(WideCall& call, RowBlock& b, const KeyTile& tile) noexcept {
  const TilePlan& plan = *call.problem->plan;
  Visible keys = {tile.count, 0, nullptr};
  for (int part = 0; part * kBlockKeys < tile.count; ++part) {
    const int first = part * kBlockKeys;
    const bool listed = b.next_block == tile.index * kTileBlocks + part;
    const TileRun& run = plan.runs[b.run];
    const std::uint64_t* bits = listed && run.bits >= 0 ? plan.bits + run.bits * kBlockKeys : nullptr;
    for (int k = 0; k < kBlockKeys; ++k) call.visible[first + k] = bits != nullptr ? bits[k] : listed ? ~std::uint64_t{0} : 0U;
    if (!listed) continue;
    if (bits != nullptr) keys.bits = call.visible;
    if (keys.begin > first) keys.begin = first;
    keys.end = first + kBlockKeys < tile.count ? first + kBlockKeys : tile.count;
    if (++b.next_block < run.first_block + run.block_count) continue;
    b.next_block = ++b.run < b.run_end ? plan.runs[b.run].first_block : -1;
  }
  return keys;
}

/// What the row block sees of the tile, the bias's -inf included.
static Visible visible_keys(WideCall& call, RowBlock& b, const KeyTile& tile) noexcept {
  const Visible listed = listed_keys(call, b, tile);
  if (call.problem->scoring.bias == nullptr) return listed.bits == nullptr ? listed : visible_range(b, listed.bits, tile.count);
  load_bias(*call.problem, b, tile.index * kTileKeys, tile.count, call.bias);
  const bool hidden = bias_bits(b, call.visible, call.bias, tile.count, call.visible);
  return visible_range(b, hidden ? call.visible : nullptr, tile.count);
}

/// Softcap, bias and ALiBi: scores end in the log2 domain.
static void finish_scores(const WideCall& call, RowBlock& b, const KeyTile& tile, const Visible& v) noexcept {
  const Scoring& s = call.problem->scoring;
  const std::int64_t width = b.vectors * kLanes;
  float* scores = call.scores + v.begin * width;
  const std::int64_t count = (v.end - v.begin) * width;
  if (call.recipe.cap != 0.0F) {
    cap_scores(call.recipe, scores, count);
  } else if (call.recipe.score_factor != 1.0F) {
    multiply_scores(call.recipe, scores, count);
  }
  if (s.bias != nullptr) add_bias(scores, call.bias + v.begin * width, count);
  if (s.alibi_slopes == nullptr) return;
  for (int i = 0; i < width; ++i) {
    const std::int64_t position = s.query_offset + (b.first_row + i) / call.problem->q.group;
    b.positions[i] = static_cast<float>(position - tile.index * kTileKeys);
  }
  add_alibi(b, v, call.scores);
}

/// `v` may hide more than the spans do (dropout), never less.
template <class Product, int NV>
static void add_values(const WideCall& call, RowBlock& b, KeyTile& tile, const Visible& v, const Spans& spans) noexcept {
  const std::int64_t dims = call.problem->value_dim;
  if (v.bits != nullptr && tile.values_are_finite < 0) tile.values_are_finite = all_finite<Product>(tile, dims) ? 1 : 0;
  if (v.bits != nullptr && tile.values_are_finite == 0) {
    const int first = v.begin / Product::kElements;
    const int words = (v.end + Product::kElements - 1) / Product::kElements - first;
    output_hiding<Product, NV>(call.scores + first * NV * kLanes, tile.values + first, dims, words, v.bits + v.begin, b.out, b.fresh);
  } else {
    bool fresh = b.fresh;
    if (fresh && spans.list[0].vectors * kVectorStep < NV) {  // the first span would leave the other vectors as they are
      for (std::int64_t i = 0; i < call.sizes.padded_dims * NV; ++i) store(b.out + i * kLanes, zero());
      fresh = false;
    }
    for (int i = 0; i < spans.count; ++i) {
      add_span<Product, NV>(spans.list[i], tile, dims, call.scores, b.out, fresh);
      fresh = false;
    }
  }
  b.fresh = false;
}

/// One row block meets one key tile.
template <class Product, int NV>
static void visit_tile(WideCall& call, RowBlock& b, KeyTile& tile) noexcept {
  const Visible v = visible_keys(call, b, tile);
  if (v.begin >= v.end) return;
  Vec max_of[NV];
  for (int j = 0; j < NV; ++j) max_of[j] = set1(-__builtin_inff());
  Spans spans;
  list_spans(b, v, spans);
  for (int i = 0; i < spans.count; ++i) {
    score_span<Product, NV>(b, spans.list[i], tile, call.sizes.words, call.loader, call.scores, max_of);
  }
  float factor = call.recipe.score_factor;
  if (!call.recipe.plain) {
    finish_scores(call, b, tile, v);
    factor = 1.0F;
  }
  if (!call.recipe.plain || v.bits != nullptr) mask_scores<NV>(v, call.scores, max_of);
  for (int j = 0; j < NV; ++j) max_of[j] = mul(max_of[j], set1(factor));
  move_reference<NV>(b, call.sizes.padded_dims, max_of);
  weigh<Product, NV>(b, v, factor, call.scores);
  const bool drops = call.problem->scoring.dropout.factor != 0.0F;
  const Visible kept = drops ? drop_weights<Product, NV>(*call.problem, b, tile, v, call.scores, call.kept) : v;
  add_values<Product, NV>(call, b, tile, kept, spans);
}

template <class Product>
static void visit(WideCall& call, RowBlock& b, KeyTile& tile) noexcept {
  switch (b.vectors / kVectorStep) {
    case 1: return visit_tile<Product, kVectorStep>(call, b, tile);
    case 2: return visit_tile<Product, 2 * kVectorStep>(call, b, tile);
    default: return visit_tile<Product, kTileVectors>(call, b, tile);
  }
}

/// The sink joins the denominator; it may exceed every score. Writes lse and row max; returns what O^T is multiplied by, 0 for a row without weight.
static float finish_row(const ForwardProblem& p, const RowBlock& b, int i) noexcept {
  const std::int64_t row = b.first_row + i, token = row / p.q.group, head = row % p.q.group;
  constexpr double kLn2 = 0.693147180559945309417;
  double reference = b.max[i], sum = b.sum[i], exact_sum = b.exact_sum[i], keep_out = 1.0;
  if (p.scoring.sink_logits != nullptr) {
    const double sink = p.scoring.sink_logits[head] / kLn2;
    const double top = sink > reference ? sink : reference;
    if (top > -__builtin_inf()) {
      keep_out = __builtin_exp2(reference - top);
      const double sink_weight = __builtin_exp2(sink - top);
      sum = sum * keep_out + sink_weight;
      exact_sum = exact_sum * keep_out + sink_weight;
      reference = top;
    }
  }
  if (p.output.lse != nullptr) {
    p.output.lse[token * p.output.lse_token_stride + head * p.output.lse_head_stride] =
        exact_sum == 0.0 ? -__builtin_inff() : static_cast<float>(reference * kLn2 + __builtin_log(exact_sum));
  }
  if (p.output.row_max != nullptr) {
    p.output.row_max[token * p.output.row_max_token_stride + head * p.output.row_max_head_stride] =
        static_cast<float>(b.true_max[i] * kLn2);
  }
  if (p.scoring.dropout.factor != 0.0F) keep_out *= p.scoring.dropout.factor;
  return b.fresh || sum == 0.0 ? 0.0F : static_cast<float>(keep_out / sum);
}

static void finish_block(const WideCall& call, RowBlock& b) noexcept {
  for (int i = 0; i < b.vectors * kLanes; ++i) b.slopes[i] = i < b.rows ? finish_row(*call.problem, b, i) : 0.0F;
  write_rows(*call.problem, b.first_row, b.rows, b.vectors, b.out, b.slopes);
}

/// First key block of a row block's list at or behind `block`, which is not behind more than its next one; -1: none.
HEED_INLINE std::int64_t block_from(const TilePlan& plan, const RowBlock& b, std::int64_t block) {
  for (std::int64_t run = b.run; b.next_block >= 0 && run < b.run_end; ++run) {
    const TileRun& r = plan.runs[run];
    if (block < r.first_block + r.block_count) return block < r.first_block ? r.first_block : block;
  }
  return -1;
}

/// First key tile at or behind `from` that some row block still has to visit; -1: none.
static std::int64_t next_tile(const WideCall& call, std::int64_t from) noexcept {
  std::int64_t next = -1;
  for (int i = 0; i < call.count; ++i) {
    const std::int64_t block = block_from(*call.problem->plan, call.blocks[i], from * kTileBlocks);
    if (block >= 0 && (next < 0 || block / kTileBlocks < next)) next = block / kTileBlocks;
  }
  return next;
}

HEED_INLINE bool visits_tile(const RowBlock& b, std::int64_t tile) { return b.next_block >= 0 && b.next_block / kTileBlocks == tile; }

/// Row blocks that will visit the tile.
HEED_INLINE int visits_of(const WideCall& call, std::int64_t tile) {
  int visits = 0;
  for (int i = 0; i < call.count; ++i) visits += visits_tile(call.blocks[i], tile) ? 1 : 0;
  return visits;
}

HEED_INLINE int keys_in_tile(const ForwardProblem& p, std::int64_t tile) {
  if (tile < 0) return 0;
  const std::int64_t left = p.plan->keys - tile * kTileKeys;
  return static_cast<int>(left < 0 ? 0 : left < kTileKeys ? left : kTileKeys);
}

/// The first keys of the task that comes after this one, and its queries: a task of 128 keys and rows otherwise waits for memory for a third of
/// its time.
static void aim_at_next(Loader& l, const FollowingTask& next) noexcept {
  const TilePlan& plan = *next.problem.plan;
  if (plan.run_begin[0] == plan.run_begin[1]) return;
  SegmentCursor cursor = {0, 0};
  const std::int64_t tile = plan.runs[plan.run_begin[0]].first_block / kTileBlocks;
  aim(l, next.problem.kv, cursor, tile, keys_in_tile(next.problem, tile));
  l.following = &next;
}

template <class Product>
static void wide_run(const ForwardProblem& p, std::int64_t first, std::int32_t count, std::byte* scratch) noexcept {
  WideCall call;
  call.problem = &p;
  call.sizes = wide_sizes<Product>(p);
  call.recipe = make_recipe<Product>(p.scoring);
  call.count = count;
  call.scores = reinterpret_cast<float*>(scratch);
  call.bias = call.scores + call.sizes.scores;
  prepare_loader<Product>(call, call.bias + call.sizes.scores);
  float* memory = call.bias + call.sizes.scores + 2 * (call.sizes.keys + call.sizes.values);
  for (int i = 0; i < count; ++i) start_block<Product>(call, call.blocks[i], first + i, memory + i * call.sizes.block);

  Loader& loader = call.loader;
  SegmentCursor cursor = {0, 0};
  std::int64_t index = next_tile(call, 0);
  aim(loader, p.kv, cursor, index, keys_in_tile(p, index));
  while (index >= 0) {
    move_rows(loader, 2 * kTileKeys);
    loader.current = 1 - loader.current;
    const std::int64_t next = next_tile(call, index + 1);
    aim(loader, p.kv, cursor, next, keys_in_tile(p, next));
    if (next < 0 && p.following != nullptr) aim_at_next(loader, *p.following);
    pace(loader, visits_of(call, index));
    for (int i = 0; i < count; ++i) {
      if (visits_tile(call.blocks[i], index)) visit<Product>(call, call.blocks[i], loader.tiles[loader.current]);
    }
    index = next;
  }
  for (int i = 0; i < count; ++i) finish_block(call, call.blocks[i]);
}

static const WideKernel wide_float = {kBlockRows, kSuperBlock, wide_scratch_bytes<FloatProduct>, wide_run<FloatProduct>};

/// The native pair dot where there is one.
template <bool kNative>
struct Bf16ProductOf {
  using Type = FloatProduct;
};
template <>
struct Bf16ProductOf<true> {
  using Type = Bf16Product;
};
using NativeBf16 = Bf16ProductOf<kHasBf16Dot>::Type;
static const WideKernel wide_bf16 = {kBlockRows, kSuperBlock, wide_scratch_bytes<NativeBf16>, wide_run<NativeBf16>};

extern const WideKernels wide_kernels = {{
    {&wide_float, &wide_float, &wide_float},
    {nullptr, &wide_bf16, &wide_float},
    {nullptr, &wide_float, &wide_float},
}};
