// SPDX-License-Identifier: Apache-2.0
// The backward pass over one range of keys: see backward.hpp for the formulas and the order of calls. S^T and dP^T come from the forward's
// score tile (rows in lanes, keys broadcast); dV, dK and dQ from one outer product (lanes along D, weights broadcast).
// Source: arXiv 2307.08691, section 3.1.2, algorithm 2.

// The shared texts also hold what only the forward needs.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-function"
#include "kernels/attention/wide_tiles.inl.hpp"
#include "kernels/attention/wide_pack.inl.hpp"
#include "kernels/attention/wide_load.inl.hpp"
#include "kernels/attention/wide_score.inl.hpp"
#include "kernels/attention/dropout.inl.hpp"
#pragma GCC diagnostic pop

/// Row blocks that a key block meets at once. dV and dK then load and store their register tiles half as often.
constexpr int kGroupBlocks = 2;
constexpr int kGroupRows = kGroupBlocks * kBlockRows;

#include "kernels/attention/backward_tiles.inl.hpp"
#include "kernels/attention/backward_rows.inl.hpp"
#include "kernels/attention/backward_score.inl.hpp"

/// Sizes in floats; every part starts on a cache line.
struct BackwardSizes {
  std::int64_t key_row,
      value_row;      ///< of compact rows of D and Dv: one line more than the row, else rows of 1024 floats share few cache sets
  std::int64_t tile;  ///< of a [kBlockKeys + register tile][kBlockRows] buffer
  std::int64_t panel, dout_panel;  ///< of a row block
  std::int64_t row_values;
  std::int64_t task;  ///< of BackwardTask itself
  std::int64_t all;   ///< of a task's scratch
};

/// One row block of the group at hand.
struct GroupBlock {
  RowBlock rows;      ///< its panel is Q^T
  float* dout_panel;  ///< [Dv][vectors * kLanes]
  const float* log2_sums;
  const float* deltas;
  std::uint64_t live_rows;                                  ///< rows that have weights
  bool is_finite;                                           ///< its q and dO
  Visible seen;                                             ///< of the key block at hand
  std::uint64_t visible[kBlockKeys + 1], kept[kBlockKeys];  ///< bits of the tile's live slots; and of the weights that dropout keeps
};

/// A task between its calls, at the start of its scratch.
struct BackwardTask {
  BackwardSizes sizes;
  Recipe recipe;
  bool is_plain;  ///< no softcap, bias, ALiBi, dropout
  std::int64_t first_key;
  std::int64_t keys_held;                  ///< keys of the range that exist
  std::uint64_t finite_keys;               ///< a bit per key block
  float *keys, *values, *dkeys, *dvalues;  ///< [range][row]
  float *queries, *douts, *dqueries;       ///< [kGroupRows][row]
  float *weights, *grads;                  ///< [key][kGroupRows]
  float* bias;                             ///< [key][vectors * kLanes]
  GroupBlock blocks[kGroupBlocks];
  int count;             ///< row blocks at hand
  RowsAhead ahead;       ///< rows of the group that comes next, and dq of this one
  RowsAhead afterwards;  ///< dk and dv of this range, k and v of the task that comes next
};

static BackwardSizes backward_sizes(const BackwardProblem& p, std::int64_t range_keys) noexcept {
  BackwardSizes s;
  s.key_row = round_up(p.forward.head_dim, kLineFloats) + kLineFloats;
  s.value_row = round_up(p.forward.value_dim, kLineFloats) + kLineFloats;
  s.tile = (kBlockKeys + kTileBroadcasts) * kBlockRows;
  s.panel = round_up(p.forward.head_dim * kBlockRows, kLineFloats);
  s.dout_panel = round_up(p.forward.value_dim * kBlockRows, kLineFloats);
  s.row_values = round_up(kBlockRows, kLineFloats);
  s.task = round_up(static_cast<std::int64_t>(sizeof(BackwardTask)) / 4 + 1, kLineFloats);
  const std::int64_t block = s.panel + s.dout_panel + 2 * s.row_values + kBlockRows * (2 * s.key_row + s.value_row) + 2 * s.tile;
  s.all = s.task + 2 * range_keys * (s.key_row + s.value_row) + kGroupBlocks * block + s.tile;
  return s;
}

static std::int64_t backward_scratch_bytes(const BackwardProblem& p, std::int64_t range_keys) noexcept {
  return 4 * backward_sizes(p, range_keys).all;
}

HEED_INLINE float* take(float*& next, std::int64_t count) {
  float* part = next;
  next += count;
  return part;
}

static void place_buffers(BackwardTask& t, std::int64_t range_keys, std::byte* scratch) noexcept {
  const BackwardSizes& s = t.sizes;
  float* next = reinterpret_cast<float*>(scratch) + s.task;
  t.keys = take(next, range_keys * s.key_row);
  t.values = take(next, range_keys * s.value_row);
  t.dkeys = take(next, range_keys * s.key_row);
  t.dvalues = take(next, range_keys * s.value_row);
  t.queries = take(next, kGroupRows * s.key_row);
  t.douts = take(next, kGroupRows * s.value_row);
  t.dqueries = take(next, kGroupRows * s.key_row);
  t.weights = take(next, kGroupBlocks * s.tile);
  t.grads = take(next, kGroupBlocks * s.tile);
  t.bias = take(next, s.tile);
  for (GroupBlock& g : t.blocks) {
    g.rows.panel = take(next, s.panel);
    g.dout_panel = take(next, s.dout_panel);
    g.rows.slopes = take(next, s.row_values);
    g.rows.positions = take(next, s.row_values);
  }
}

HEED_INLINE std::int64_t rows_of_block(const TilePlan& plan, std::int64_t block) {
  const std::int64_t left = plan.rows - block * kBlockRows;
  return left < kBlockRows ? left : kBlockRows;
}

/// sum + x * y; y 0 counts as nothing, whatever x holds: the output of a row that sees its sink alone.
HEED_INLINE Vec add_product(Vec x, Vec y, Vec sum) { return fma(select(cmp_eq(y, zero()), zero(), x), y, sum); }

template <class T>
HEED_INLINE float contiguous_delta(const std::byte* dout, const std::byte* out, std::int64_t dims) {
  const auto* x = reinterpret_cast<const T*>(dout);
  const auto* y = reinterpret_cast<const T*>(out);
  Vec sum = zero();
  std::int64_t d = 0;
  for (; d + kLanes <= dims; d += kLanes) sum = add_product(loadu(x + d), loadu(y + d), sum);
  const int left = static_cast<int>(dims - d);
  if (left > 0) sum = add_product(load_partial(x + d, left), load_partial(y + d, left), sum);
  return reduce_add(sum);
}

/// Sum over Dv of dO * O.
static float row_delta(const BackwardProblem& p, std::int64_t row) noexcept {
  const std::byte* dout = query_row(p.dout, row);
  const std::byte* out = query_row(p.out, row);
  const std::int64_t dims = p.forward.value_dim;
  if (p.dout.dim_stride == 1 && p.out.dim_stride == 1 && p.dout.dtype == p.out.dtype) {
    switch (p.out.dtype) {
      case DType::kBFloat16: return contiguous_delta<bfloat16>(dout, out, dims);
      case DType::kFloat16: return contiguous_delta<float16>(dout, out, dims);
      default: return contiguous_delta<float>(dout, out, dims);
    }
  }
  Vec sum = zero();
  for (std::int64_t d = 0; d < dims; d += kLanes) {
    const int n = static_cast<int>(dims - d < kLanes ? dims - d : kLanes);
    sum = add_product(load_any(dout + d * p.dout.dim_stride * bytes_of(p.dout.dtype), p.dout.dtype, p.dout.dim_stride, n),
                      load_any(out + d * p.out.dim_stride * bytes_of(p.out.dtype), p.out.dtype, p.out.dim_stride, n), sum);
  }
  return reduce_add(sum);
}

static void backward_prepare(const BackwardProblem& p, std::int64_t block) noexcept {
  const ForwardProblem& f = p.forward;
  const TilePlan& plan = *f.plan;
  const std::int64_t first = block * kBlockRows, rows = rows_of_block(plan, block);
  const bool sees_nothing = plan.run_begin[block] == plan.run_begin[block + 1];
  RowsAhead ahead;
  const std::int64_t next_end = first + 2 * kBlockRows < plan.rows ? first + 2 * kBlockRows : plan.rows;
  ahead.count = 0;
  add_strip(ahead, p.dout, first + kBlockRows, next_end, f.value_dim);
  add_strip(ahead, p.out, first + kBlockRows, next_end, f.value_dim);
  start_strips(ahead);
  const auto lines = static_cast<int>(2 * f.value_dim * bytes_of(f.q.dtype) / 64 + 2);
  for (std::int64_t row = first; row < first + kBlockRows; ++row) {
    prefetch_rows(ahead, lines);
    float lse = -__builtin_inff();
    if (row < plan.rows) lse = p.lse[row / f.q.group * p.lse_token_stride + row % f.q.group * p.lse_head_stride];
    const bool dead = lse == -__builtin_inff();
    // A bias of float32's lowest number is -2.3e38 in the forward: times log2(e) it stays finite.
    p.log2_sums[row] = dead ? __builtin_inff() : (lse < -2.3e38F ? -2.3e38F : lse) * kLog2E;
    p.deltas[row] = dead ? 0.0F : row_delta(p, row);
  }
  for (std::int64_t row = first; sees_nothing && row < first + rows; ++row) {
    zero_row(output_row(f.output, f.q.group, row), f.output.dtype, f.output.dim_stride, f.head_dim);
  }
}

static void backward_open(const BackwardProblem& p, KeyRange range, const NextTask& next, std::byte* scratch) noexcept {
  const ForwardProblem& f = p.forward;
  auto& t = *reinterpret_cast<BackwardTask*>(scratch);
  t.sizes = backward_sizes(p, range.count);
  t.recipe = make_recipe<FloatProduct>(f.scoring);
  t.is_plain = t.recipe.cap == 0.0F && f.scoring.bias == nullptr && f.scoring.alibi_slopes == nullptr && f.scoring.dropout.factor == 0.0F;
  place_buffers(t, range.count, scratch);
  const std::int64_t left = f.plan->keys - range.first;
  t.first_key = range.first;
  t.keys_held = left < 0 ? 0 : left < range.count ? left : range.count;
  t.finite_keys = load_key_rows(f, range.first, t.keys_held, t.keys, t.sizes.key_row, t.values, t.sizes.value_row);
  clear(t.dkeys, t.keys_held * t.sizes.key_row);
  clear(t.dvalues, t.keys_held * t.sizes.value_row);
  t.afterwards.count = 0;
  add_strip(t.afterwards, p.dk.data, p.dk.dtype, p.dk.row_stride, p.dk.dim_stride, range, f.head_dim);
  add_strip(t.afterwards, p.dv.data, p.dv.dtype, p.dv.row_stride, p.dv.dim_stride, range, f.value_dim);
  if (next.problem != nullptr && next.problem->forward.kv.segment_count == 1) {
    const KvRows& kv = next.problem->forward.kv;
    const KvSegment& s = kv.segments[0];
    const std::int64_t there = s.rows - next.range.first;
    const KeyRange keys = {next.range.first, there < next.range.count ? there : next.range.count};
    add_strip(t.afterwards, s.k, kv.dtype, s.k_row_stride, kv.k_dim_stride, keys, f.head_dim);
    add_strip(t.afterwards, s.v, kv.dtype, s.v_row_stride, kv.v_dim_stride, keys, f.value_dim);
  }
  start_strips(t.afterwards);
}

/// Rows, panels and row values of one row block, at `index` of the group.
static void open_block(const BackwardProblem& p, std::int64_t block, BackwardTask& t, int index) noexcept {
  const ForwardProblem& f = p.forward;
  GroupBlock& g = t.blocks[index];
  RowBlock& b = g.rows;
  b.first_row = block * kBlockRows;
  b.rows = static_cast<int>(rows_of_block(*f.plan, block));
  b.vectors = static_cast<int>(round_up((b.rows + kLanes - 1) / kLanes, kVectorStep));
  b.run = f.plan->run_begin[block];
  b.run_end = f.plan->run_begin[block + 1];
  float* queries = t.queries + index * kBlockRows * t.sizes.key_row;
  float* douts = t.douts + index * kBlockRows * t.sizes.value_row;
  const bool finite_queries = load_query_rows(f.q, b.first_row, b.rows, f.head_dim, queries, t.sizes.key_row);
  const bool finite_douts = load_query_rows(p.dout, b.first_row, b.rows, f.value_dim, douts, t.sizes.value_row);
  g.is_finite = finite_queries && finite_douts;
  make_panel(queries, t.sizes.key_row, f.head_dim, b.vectors, t.recipe.panel_factor, b.panel);
  make_panel(douts, t.sizes.value_row, f.value_dim, b.vectors, 1.0F, g.dout_panel);
  clear(t.dqueries + index * kBlockRows * t.sizes.key_row, kBlockRows * t.sizes.key_row);
  g.log2_sums = p.log2_sums + b.first_row;
  g.deltas = p.deltas + b.first_row;
  g.live_rows = 0;
  for (int i = 0; i < b.rows; ++i) {
    if (g.log2_sums[i] != __builtin_inff()) g.live_rows |= std::uint64_t{1} << i;
    if (f.scoring.alibi_slopes != nullptr) b.slopes[i] = f.scoring.alibi_slopes[(b.first_row + i) % f.q.group] * kLog2E;
  }
}

/// Bits of the slots that count: the mask's, without the bias's -inf and the rows without weights; null when that is all of them.
static const std::uint64_t* live_bits(const BackwardProblem& p, const BackwardTask& t, GroupBlock& g, std::int64_t first_key, int count,
                                      const std::uint64_t* bits) noexcept {
  const RowBlock& b = g.rows;
  if (p.forward.scoring.bias != nullptr) {
    load_bias(p.forward, b, first_key, count, t.bias);
    bits = bias_bits(b, bits, t.bias, count, g.visible) ? g.visible : nullptr;
  }
  if (g.live_rows == all_rows(b)) return bits;
  for (int k = 0; k < count; ++k) g.visible[k] = (bits != nullptr ? bits[k] : ~std::uint64_t{0}) & g.live_rows;
  return g.visible;
}

/// Prefetches that a register tile hides: twice as many in a burst take the buffers that its own misses need.
constexpr int kLinesPerTile = kTileBroadcasts / 2;

/// The visible keys' rows times the panel, to columns of `to` [key][kGroupRows]. Register tiles that no row sees become 0.
template <int NV>
static void multiply_rows(InnerProduct product, const Visible& v, BackwardTask& t) noexcept {
  product.keys += v.begin * product.key_row;
  product.to += v.begin * product.to_row;
  for (int k = v.begin; k < v.end; k += kTileBroadcasts) {
    prefetch_rows(t.ahead, kLinesPerTile);
    prefetch_rows(t.afterwards, kLinesPerTile);
    const int count = v.end - k < kTileBroadcasts ? v.end - k : kTileBroadcasts;
    std::uint64_t seen = v.bits == nullptr ? 1U : 0U;
    for (int i = 0; v.bits != nullptr && i < count; ++i) seen |= v.bits[k + i];
    if (seen != 0) {
      inner_tile<NV>(product, count);
    } else {
      for (int i = 0; i < kTileBroadcasts; ++i) clear(product.to + i * product.to_row, NV * kLanes);
    }
    product.keys += kTileBroadcasts * product.key_row;
    product.to += kTileBroadcasts * product.to_row;
  }
}

/// Adds the tile's dS. Where keys share a bias they are summed first: over a whole row the sum is 0 but for a sink's share.
static void add_bias_gradient(const BackwardProblem& p, const RowBlock& b, std::int64_t first_key, const Visible& v,
                              const float* grads) noexcept {
  const BiasGradient& g = p.dbias;
  const std::int64_t width = b.vectors * kLanes;
  for (int i = 0; i < b.rows; ++i) {
    const std::int64_t row = b.first_row + i;
    float* to = g.data + row / p.forward.q.group * g.token_stride + row % p.forward.q.group * g.head_stride + first_key * g.key_stride;
    if (g.key_stride == 0) {
      float sum = 0.0F;
      for (int k = v.begin; k < v.end; ++k) sum += grads[k * width + i];
      *to += sum;
    } else {
      for (int k = v.begin; k < v.end; ++k) to[k * g.key_stride] += grads[k * width + i];
    }
  }
}

/// Scores and dP to weights and dS.
template <int NV>
static void weigh_block(const BackwardProblem& p, const BackwardTask& t, GroupBlock& g, const WeightTile& tile,
                        std::int64_t first_key) noexcept {
  if (t.is_plain) return weigh_plain<NV>(tile, g.seen);
  const Scoring& s = p.forward.scoring;
  RowBlock& b = g.rows;
  if (s.alibi_slopes != nullptr) {
    for (int i = 0; i < b.rows; ++i) {
      const std::int64_t position = s.query_offset + (b.first_row + i) / p.forward.q.group;
      b.positions[i] = static_cast<float>(position - first_key);
    }
  }
  const bool drops = s.dropout.factor != 0.0F;
  if (drops) {
    const int begin = g.seen.begin / 4 * 4;
    kept_rows(s.dropout, {b.first_row, b.rows, p.forward.q.group}, first_key + begin, g.seen.end - begin, g.kept + begin);
  }
  const WeightOptions options = {t.recipe.cap, s.bias != nullptr,        s.alibi_slopes != nullptr ? b.slopes : nullptr,
                                 b.positions,  drops ? g.kept : nullptr, s.dropout.factor};
  weigh_any<NV>(tile, options, g.seen);
  if (p.dbias.data != nullptr) add_bias_gradient(p, b, first_key, g.seen, t.bias);
}

/// P and dS of a row block over the key block that starts at key `local` of the range.
template <int NV>
static void score_block(const BackwardProblem& p, BackwardTask& t, int index, std::int64_t local, int count,
                        const std::uint64_t* plan_bits) noexcept {
  GroupBlock& g = t.blocks[index];
  const std::int64_t first_key = t.first_key + local;
  g.seen = visible_range(g.rows, live_bits(p, t, g, first_key, count, plan_bits), count);
  if (g.seen.begin >= g.seen.end) return;
  const WeightTile tile = {t.weights + index * kBlockRows, t.grads + index * kBlockRows, kGroupRows, t.bias, g.log2_sums, g.deltas};
  const std::int64_t key_row = t.sizes.key_row, value_row = t.sizes.value_row;
  multiply_rows<NV>({g.rows.panel, t.keys + local * key_row, key_row, p.forward.head_dim, tile.scores, kGroupRows}, g.seen, t);
  multiply_rows<NV>({g.dout_panel, t.values + local * value_row, value_row, p.forward.value_dim, tile.grads, kGroupRows}, g.seen, t);
  weigh_block<NV>(p, t, g, tile, first_key);
}

/// Rows [first, first + count) of the group and keys [begin, end) of the key block: their share of dV and dK.
static void add_to_keys(const BackwardProblem& p, const BackwardTask& t, std::int64_t local, int begin, int end, int first,
                        int count) noexcept {
  const std::int64_t key_row = t.sizes.key_row, value_row = t.sizes.value_row, key = local + begin;
  const float* weights = t.weights + begin * kGroupRows + first;
  const float* grads = t.grads + begin * kGroupRows + first;
  outer_product({weights, kGroupRows, 1, t.douts + first * value_row, value_row, t.dvalues + key * value_row, value_row}, end - begin,
                count, (p.forward.value_dim + kLanes - 1) / kLanes);
  outer_product({grads, kGroupRows, 1, t.queries + first * key_row, key_row, t.dkeys + key * key_row, key_row}, end - begin, count,
                (p.forward.head_dim + kLanes - 1) / kLanes);
}

/// dQ of a row block += dS^T K.
static void add_to_queries(const BackwardProblem& p, const BackwardTask& t, std::int64_t local, int index) noexcept {
  const Visible& v = t.blocks[index].seen;
  const std::int64_t key_row = t.sizes.key_row;
  outer_product({t.grads + v.begin * kGroupRows + index * kBlockRows, 1, kGroupRows, t.keys + (local + v.begin) * key_row, key_row,
                 t.dqueries + index * kBlockRows * key_row, key_row},
                t.blocks[index].rows.rows, v.end - v.begin, (p.forward.head_dim + kLanes - 1) / kLanes);
}

HEED_INLINE void add_scaled(float* to, float factor, const float* from, std::int64_t dims) {
  for (std::int64_t d = 0; d < dims; d += kLanes) store(to + d, fma(set1(factor), load(from + d), load(to + d)));
}

/// The same sums in the same order over the visible slots alone, so that 0 * NaN is never formed. Rare, so not tiled.
[[gnu::noinline]] static void add_visible_products(const BackwardProblem& p, const BackwardTask& t, std::int64_t local,
                                                   int index) noexcept {
  const std::int64_t key_row = t.sizes.key_row, value_row = t.sizes.value_row;
  const Visible& v = t.blocks[index].seen;
  for (int k = v.begin; k < v.end; ++k) {
    for (int i = 0; i < t.blocks[index].rows.rows; ++i) {
      if ((v.bits[k] >> i & 1U) == 0) continue;
      const int row = index * kBlockRows + i;
      const float weight = t.weights[k * kGroupRows + row], grad = t.grads[k * kGroupRows + row];
      add_scaled(t.dvalues + (local + k) * value_row, weight, t.douts + row * value_row, p.forward.value_dim);
      add_scaled(t.dkeys + (local + k) * key_row, grad, t.queries + row * key_row, p.forward.head_dim);
      add_scaled(t.dqueries + row * key_row, grad, t.keys + (local + k) * key_row, p.forward.head_dim);
    }
  }
}

HEED_INLINE bool sees(const GroupBlock& g, int key) { return g.seen.begin <= key && key < g.seen.end; }

/// dV, dK and dQ of the group where no sum can meet 0 * NaN: row blocks that see the same keys are one product.
static void add_products(const BackwardProblem& p, const BackwardTask& t, std::int64_t local) noexcept {
  for (int key = 0; key < kBlockKeys;) {
    int end = kBlockKeys;  // up to which the same row blocks see keys
    for (int i = 0; i < t.count; ++i) {
      const Visible& v = t.blocks[i].seen;
      if (v.begin > key && v.begin < end) end = v.begin;
      if (v.end > key && v.end < end) end = v.end;
    }
    for (int i = 0; i < t.count;) {
      int last = i;
      while (last < t.count && sees(t.blocks[last], key)) ++last;
      if (last > i) {
        const int rows = (last - 1 - i) * kBlockRows + t.blocks[last - 1].rows.rows;
        add_to_keys(p, t, local, key, end, i * kBlockRows, rows);
      }
      i = last + 1;
    }
    key = end;
  }
  for (int i = 0; i < t.count; ++i) {
    if (t.blocks[i].seen.begin < t.blocks[i].seen.end) add_to_queries(p, t, local, i);
  }
}

/// Row block by row block, in the order in which add_products goes through the rows of each key.
static void add_products_selecting(const BackwardProblem& p, const BackwardTask& t, std::int64_t local, bool finite_keys) noexcept {
  for (int i = 0; i < t.count; ++i) {
    const GroupBlock& g = t.blocks[i];
    if (g.seen.begin >= g.seen.end) continue;
    if (g.seen.bits != nullptr && !(finite_keys && g.is_finite)) {
      add_visible_products(p, t, local, i);
    } else {
      add_to_keys(p, t, local, g.seen.begin, g.seen.end, i * kBlockRows, g.rows.rows);
      add_to_queries(p, t, local, i);
    }
  }
}

/// Whether the row block's list has this key block, and its bits. Key blocks come in rising order.
static bool find_tile(const TilePlan& plan, RowBlock& b, std::int64_t key_block, const std::uint64_t*& bits) noexcept {
  while (b.run < b.run_end && plan.runs[b.run].first_block + plan.runs[b.run].block_count <= key_block) ++b.run;
  if (b.run >= b.run_end || plan.runs[b.run].first_block > key_block) return false;
  const std::int64_t index = plan.runs[b.run].bits;
  bits = index < 0 ? nullptr : plan.bits + index * kBlockKeys;
  return true;
}

/// The row blocks of the group meet the key block that starts at key `local` of the range.
static void visit_key_block(const BackwardProblem& p, BackwardTask& t, std::int64_t local) noexcept {
  const std::int64_t left = t.keys_held - local;
  const int count = static_cast<int>(left < kBlockKeys ? left : kBlockKeys);
  const bool finite_keys = (t.finite_keys >> (local / kBlockKeys) & 1U) != 0;
  bool any_seen = false, selects = false;
  for (int i = 0; i < t.count; ++i) {
    GroupBlock& g = t.blocks[i];
    g.seen = {0, 0, nullptr};
    const std::uint64_t* bits = nullptr;
    if (!find_tile(*p.forward.plan, g.rows, (t.first_key + local) / kBlockKeys, bits)) continue;
    switch (g.rows.vectors / kVectorStep) {
      case 1: score_block<kVectorStep>(p, t, i, local, count, bits); break;
      case 2: score_block<2 * kVectorStep>(p, t, i, local, count, bits); break;
      default: score_block<kTileVectors>(p, t, i, local, count, bits); break;
    }
    any_seen = any_seen || g.seen.begin < g.seen.end;
    selects = selects || (g.seen.bits != nullptr && !(finite_keys && g.is_finite));
  }
  if (!any_seen) return;
  if (selects) {
    add_products_selecting(p, t, local, finite_keys);
  } else {
    add_products(p, t, local);
  }
}

static void backward_visit(const BackwardProblem& p, std::int64_t first_block, std::int32_t count, std::byte* scratch) noexcept {
  auto& t = *reinterpret_cast<BackwardTask*>(scratch);
  t.count = count;
  for (int i = 0; i < count; ++i) open_block(p, first_block + i, t, i);
  const std::int64_t first_row = first_block * kBlockRows;  // the group before this one comes next
  const std::int64_t next_row = first_row < kGroupRows ? 0 : first_row - kGroupRows;
  const OutputRows& dq = p.forward.output;
  const QueryRows gradient = {dq.out, dq.dtype, dq.token_stride, dq.head_stride, dq.dim_stride, p.forward.q.tokens, p.forward.q.group};
  t.ahead.count = 0;
  add_strip(t.ahead, p.forward.q, next_row, first_row, p.forward.head_dim);
  add_strip(t.ahead, p.dout, next_row, first_row, p.forward.value_dim);
  add_strip(t.ahead, gradient, first_row, t.blocks[count - 1].rows.first_row + t.blocks[count - 1].rows.rows, p.forward.head_dim);
  start_strips(t.ahead);
  for (std::int64_t local = 0; local < t.keys_held; local += kBlockKeys) visit_key_block(p, t, local);
}

static void backward_add_queries(const BackwardProblem& p, QueryStep step, std::int32_t index, float* sum, std::byte* scratch) noexcept {
  const auto& t = *reinterpret_cast<const BackwardTask*>(scratch);
  const ForwardProblem& f = p.forward;
  const RowBlock& b = t.blocks[index].rows;
  const std::int64_t sum_row = round_up(f.head_dim, kSumUnit);
  for (int i = 0; i < b.rows; ++i) {
    float* from = t.dqueries + (index * kBlockRows + i) * t.sizes.key_row;
    float* to = sum + i * sum_row;
    if (i + kRowsAhead < b.rows && step.is_last) {
      prefetch_lines(output_row(f.output, f.q.group, b.first_row + i + kRowsAhead), f.head_dim * bytes_of(f.output.dtype));
    }
    for (std::int64_t d = 0; !step.is_first && d < f.head_dim; d += kLanes) store(from + d, add(load(to + d), load(from + d)));
    if (step.is_last) {
      write_row(output_row(f.output, f.q.group, b.first_row + i), f.output.dtype, f.output.dim_stride, f.head_dim, from,
                set1(f.scoring.scale));
    } else {
      for (std::int64_t d = 0; d < f.head_dim; d += kLanes) store(to + d, load(from + d));
    }
  }
}

static void backward_close(const BackwardProblem& p, KeyRange range, std::byte* scratch) noexcept {
  const auto& t = *reinterpret_cast<const BackwardTask*>(scratch);
  write_key_gradient(p.dk, range, t.keys_held, p.forward.head_dim, t.dkeys, t.sizes.key_row, p.forward.scoring.scale);
  write_key_gradient(p.dv, range, t.keys_held, p.forward.value_dim, t.dvalues, t.sizes.value_row, 1.0F);
}

extern const BackwardKernel backward_kernels = {kBlockRows,    kGroupBlocks,   backward_scratch_bytes, backward_prepare,
                                                backward_open, backward_visit, backward_add_queries,   backward_close};
