// SPDX-License-Identifier: Apache-2.0
// The wide forward path: 16 or more packed rows. Rows sit in SIMD lanes for both products, so keys and values are read as they lie, never
// transposed, and softmax needs no reduction across lanes. A super-block of row blocks shares one pass over the keys.
// Source: online softmax, arXiv 1805.02867; tiling, arXiv 2307.08691, section 3.
#include "kernels/attention/wide_tiles.inl.hpp"
#include "kernels/attention/wide_pack.inl.hpp"
#include "kernels/attention/wide_score.inl.hpp"

constexpr int kBlockRows = kTileVectors * kLanes;
/// Row blocks that share one pass over K and V: about 192 rows keep the traffic to memory below 3 GB/s a core, and Q^T and O^T of all of
/// them (8 * D * 192 bytes, 200 KB at D 128) within L2.
constexpr int kSuperBlock = 192 / kBlockRows;
constexpr int kVectorStep = kTileVectors / 3;  ///< widths that get a tile of their own: a third, two thirds, all
constexpr int kLineFloats = 16;

HEED_INLINE std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

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
  s.scores = (kBlockKeys + kTileBroadcasts) * kBlockRows;
  s.keys = kBlockKeys * s.key_row;
  s.values = kBlockKeys * s.value_row;
  return s;
}

/// One call of the kernel.
struct WideCall {
  const ForwardProblem* problem;
  WideSizes sizes;
  Recipe recipe;
  RowBlock blocks[kSuperBlock];
  int count;
  float* scores;  ///< [kBlockKeys + tile][kBlockRows], then the weights
  float* bias;    ///< [kBlockKeys][kBlockRows]
  float* keys;    ///< copies
  float* values;
  Prefetcher ahead;
  std::uint64_t visible[kBlockKeys + 1];  ///< mask bits and the bias's -inf together
};

template <class Product>
static std::int64_t wide_scratch_bytes(const ForwardProblem& p, std::int32_t row_blocks) noexcept {
  const WideSizes s = wide_sizes<Product>(p);
  return 4 * (row_blocks * s.block + 2 * s.scores + s.keys + s.values);
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
  b.first_row = index * kBlockRows;
  b.rows = static_cast<int>(plan.rows - b.first_row < kBlockRows ? plan.rows - b.first_row : kBlockRows);
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

/// Row pointers of a key block, copied where the tiles cannot read the memory as it lies. Rows a multiple of 4 KB apart share few cache sets, but
/// copying them costs more than it saves (75 against 79 % of the peak at [B, L, H, D] with tokens of 4 KB, prefetching on in both).
HEED_INLINE void load_tile(FloatProduct, WideCall& call, SegmentCursor& cursor, KeyTile& tile) noexcept {
  const ForwardProblem& p = *call.problem;
  const KvRows& kv = p.kv;
  const WideSizes& s = call.sizes;
  find_rows(kv, cursor, tile);
  if (kv.dtype != DType::kFloat32 || kv.k_dim_stride != 1) {
    widen_rows(tile.keys, tile.count, kv.dtype, kv.k_dim_stride, p.head_dim, p.head_dim, call.keys, s.key_row);
  }
  if (kv.dtype != DType::kFloat32 || kv.v_dim_stride != 1 || p.value_dim % kTileBroadcasts != 0) {
    widen_rows(tile.values, tile.count, kv.dtype, kv.v_dim_stride, p.value_dim, s.padded_dims, call.values, s.value_row);
  }
}

HEED_INLINE void load_tile(Bf16Product, WideCall& call, SegmentCursor& cursor, KeyTile& tile) noexcept {
  const ForwardProblem& p = *call.problem;
  const KvRows& kv = p.kv;
  const WideSizes& s = call.sizes;
  find_rows(kv, cursor, tile);
  if (kv.k_dim_stride != 1 || p.head_dim % 2 != 0) {
    copy_pair_rows(tile.keys, tile.count, kv.k_dim_stride, p.head_dim, call.keys, s.key_row);
  }
  pair_value_rows(tile.values, tile.count, kv.v_dim_stride, p.value_dim, s.padded_dims, call.values, s.value_row);
}

/// Bias into call.bias and its -inf into call.visible; returns the bits that hold for the tile, null when nothing is hidden.
static const std::uint64_t* tile_bits(WideCall& call, const RowBlock& b, const KeyTile& tile, const std::uint64_t* plan_bits) noexcept {
  if (call.problem->scoring.bias == nullptr) return plan_bits;
  load_bias(*call.problem, b, tile.block * kBlockKeys, tile.count, call.bias);
  const bool hidden = bias_bits(b, plan_bits, call.bias, tile.count, call.visible);
  return hidden ? call.visible : nullptr;
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
    b.positions[i] = static_cast<float>(position - tile.block * kBlockKeys);
  }
  add_alibi(b, v, call.scores);
}

template <class Product, int NV>
static void add_values(const WideCall& call, RowBlock& b, KeyTile& tile, const Visible& v) noexcept {
  const int first_word = v.begin / Product::kElements;
  const int words = (v.end + Product::kElements - 1) / Product::kElements - first_word;
  const float* weights = call.scores + first_word * NV * kLanes;
  if (v.bits != nullptr && tile.values_are_finite < 0) {
    tile.values_are_finite = all_finite<Product>(tile, call.problem->value_dim) ? 1 : 0;
  }
  if (v.bits != nullptr && tile.values_are_finite == 0) {
    output_hiding<Product, NV>(weights, tile.values + first_word, call.problem->value_dim, words, v.bits + v.begin, b.out, b.fresh);
  } else {
    for (std::int64_t d = 0; d < call.problem->value_dim; d += kTileBroadcasts) {
      output_tile<Product, NV>(weights, tile.values + first_word, 4 * d, words, b.out + d * NV * kLanes, b.fresh);
    }
  }
  b.fresh = false;
}

/// One row block meets one key block.
template <class Product, int NV>
static void visit_tile(WideCall& call, RowBlock& b, KeyTile& tile, const std::uint64_t* plan_bits) noexcept {
  const Visible v = visible_range(b, tile_bits(call, b, tile, plan_bits), tile.count);
  if (v.begin >= v.end) return;
  Vec max_of[NV];
  for (int j = 0; j < NV; ++j) max_of[j] = set1(-__builtin_inff());
  score_keys<Product, NV>(b, tile, v, call.sizes.words, call.ahead, call.scores, max_of);
  float factor = call.recipe.score_factor;
  if (!call.recipe.plain) {
    finish_scores(call, b, tile, v);
    factor = 1.0F;
  }
  if (!call.recipe.plain || v.bits != nullptr) mask_scores<NV>(v, call.scores, max_of);
  for (int j = 0; j < NV; ++j) max_of[j] = mul(max_of[j], set1(factor));
  move_reference<NV>(b, call.sizes.padded_dims, max_of);
  weigh<Product, NV>(b, v, factor, call.scores);
  add_values<Product, NV>(call, b, tile, v);
}

template <class Product>
static void visit(WideCall& call, RowBlock& b, KeyTile& tile) noexcept {
  const TilePlan& plan = *call.problem->plan;
  const TileRun& run = plan.runs[b.run];
  const std::uint64_t* bits = run.bits < 0 ? nullptr : plan.bits + run.bits * kBlockKeys;
  switch (b.vectors / kVectorStep) {
    case 1: visit_tile<Product, kVectorStep>(call, b, tile, bits); break;
    case 2: visit_tile<Product, 2 * kVectorStep>(call, b, tile, bits); break;
    default: visit_tile<Product, kTileVectors>(call, b, tile, bits); break;
  }
  if (++b.next_block < run.first_block + run.block_count) return;
  b.next_block = ++b.run < b.run_end ? plan.runs[b.run].first_block : -1;
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
  return b.fresh || sum == 0.0 ? 0.0F : static_cast<float>(keep_out / sum);
}

static void finish_block(const WideCall& call, RowBlock& b) noexcept {
  for (int i = 0; i < b.vectors * kLanes; ++i) b.slopes[i] = i < b.rows ? finish_row(*call.problem, b, i) : 0.0F;
  write_rows(*call.problem, b.first_row, b.rows, b.vectors, b.out, b.slopes);
}

/// Smallest key block that a row block still has to visit; -1: none.
HEED_INLINE std::int64_t next_key_block(const WideCall& call) {
  std::int64_t next = -1;
  for (int i = 0; i < call.count; ++i) {
    const std::int64_t block = call.blocks[i].next_block;
    if (block >= 0 && (next < 0 || block < next)) next = block;
  }
  return next;
}

HEED_INLINE int keys_in_block(const ForwardProblem& p, std::int64_t block) {
  const std::int64_t left = p.plan->keys - block * kBlockKeys;
  return static_cast<int>(left < 0 ? 0 : left < kBlockKeys ? left : kBlockKeys);
}

/// Aims the prefetcher at the key block after `block`, spread over the register tiles of `visits` row blocks.
static void look_ahead(WideCall& call, SegmentCursor cursor, std::int64_t block, int visits) noexcept {
  const ForwardProblem& p = *call.problem;
  Prefetcher& f = call.ahead;
  const std::int64_t width = bytes_of(p.kv.dtype);
  f.rows.block = block + 1;
  f.rows.count = keys_in_block(p, block + 1);
  f.row = 0;
  f.offset = 0;
  f.key_bytes = p.kv.k_dim_stride == 1 ? p.head_dim * width : 0;
  f.value_bytes = p.kv.v_dim_stride == 1 ? p.value_dim * width : 0;
  const std::int64_t lines = f.rows.count * ((f.key_bytes + 63) / 64 + (f.value_bytes + 63) / 64);
  const int steps = visits * (kBlockKeys / kTileBroadcasts);
  f.lines_per_step = static_cast<int>((lines + steps - 1) / steps);
  if (f.rows.count > 0) find_rows(p.kv, cursor, f.rows);
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
  call.keys = call.bias + call.sizes.scores;
  call.values = call.keys + call.sizes.keys;
  float* memory = call.values + call.sizes.values;
  for (int i = 0; i < count; ++i) start_block<Product>(call, call.blocks[i], first + i, memory + i * call.sizes.block);

  SegmentCursor cursor = {0, 0};
  KeyTile tile;
  for (tile.block = next_key_block(call); tile.block >= 0; tile.block = next_key_block(call)) {
    tile.count = keys_in_block(p, tile.block);
    tile.values_are_finite = -1;
    load_tile(Product{}, call, cursor, tile);
    look_ahead(call, cursor, tile.block, count);
    for (int i = 0; i < kTileBroadcasts; ++i) tile.keys[tile.count + i] = tile.keys[tile.count - 1];
    for (int i = 0; i < count; ++i) {
      if (call.blocks[i].next_block == tile.block) visit<Product>(call, call.blocks[i], tile);
    }
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
