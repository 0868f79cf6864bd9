// SPDX-License-Identifier: Apache-2.0
// heed bench --suite masks: a mask should cost what it leaves. Times against the dense time's share of tiles that
// some query sees.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/bench/bench.hpp"
#include "cli/bench/inputs.hpp"
#include "cli/io.hpp"
#include "kernels/attention/plan.hpp"
#include "kernels/registry.hpp"

namespace heed::cli::bench {
namespace {

/// Queries and keys of one tile: [first query, last query] x [first key, last key].
struct Tile {
  std::int64_t q, q_last, k, k_last;
};
/// Whether some query of the tile sees some key of it; by the mask's formula, not by the library's plan.
using TileVisible = std::function<bool(const Tile& tile)>;

/// The kernels' tile: as many rows as the active instruction set's block has, 64 keys.
constexpr std::int64_t kTileKeys = kernels::kBlockKeys;
std::int64_t tile_rows(DType dtype) {
  const auto type = static_cast<int>(dtype);
  return kernels::wide_kernels_of(base::active_isa())->by_type[type][type]->block_rows;
}

struct MaskCase {
  std::string name;
  Mask mask;
  TileVisible visible;
};

double visible_share(const TileVisible& visible, std::int64_t length, std::int64_t rows) {
  std::int64_t count = 0, all = 0;
  for (std::int64_t q = 0; q < length; q += rows) {
    for (std::int64_t k = 0; k < length; k += kTileKeys, ++all) {
      count += visible({q, std::min(q + rows, length) - 1, k, std::min(k + kTileKeys, length) - 1}) ? 1 : 0;
    }
  }
  return static_cast<double>(count) / static_cast<double>(all);
}

bool causal_tile(const Tile& t) { return t.k <= t.q_last; }
bool window_tile(const Tile& t, std::int64_t window) { return causal_tile(t) && t.k_last > t.q - window; }

/// Eight documents of unequal lengths, none of them a multiple of a tile.
MaskCase documents_case(std::int64_t length) {
  Tensor ids(DType::kInt64, {length});
  auto document = std::make_shared<std::vector<std::int64_t>>();
  const std::int64_t unit = length / 36;  // 1 + 2 + ... + 8
  for (std::int64_t d = 0; d < 8; ++d) document->insert(document->end(), static_cast<std::size_t>((d + 1) * unit), d);
  document->resize(static_cast<std::size_t>(length), 7);
  std::copy(document->begin(), document->end(), ids.data_as<std::int64_t>());
  const auto visible = [document](const Tile& t) {
    const auto id = [&](std::int64_t i) { return (*document)[static_cast<std::size_t>(i)]; };
    return causal_tile(t) && id(t.k_last) >= id(t.q);
  };
  return {"causal in documents", Mask::documents(ids) & Mask::causal(), visible};
}

/// Blocks of 128 on the diagonal, and about every tenth elsewhere.
MaskCase block_sparse_case(std::int64_t length) {
  constexpr std::int64_t kBlock = 128;
  const std::int64_t blocks = length / kBlock;
  Tensor layout(DType::kBool, {blocks, blocks});
  const auto shown = [](std::int64_t row, std::int64_t column) { return row == column || (row * 7 + column * 13) % 10 == 0; };
  for (std::int64_t i = 0; i < blocks * blocks; ++i) layout.data_as<bool>()[i] = shown(i / blocks, i % blocks);
  const auto visible = [shown](const Tile& t) { return shown(t.q / kBlock, t.k / kBlock) || shown(t.q_last / kBlock, t.k / kBlock); };
  return {"block-sparse", Mask::block_sparse(layout, kBlock), visible};
}

/// The tiles of a causal mask, all of them full: what is left of a causal pass without masked tiles' own cost. Blocks of 192 are whole
/// tiles of 24, 48 or 64 rows.
constexpr std::int64_t kTriangleBlock = 192;
Mask block_triangle(std::int64_t length) {
  const std::int64_t blocks = (length + kTriangleBlock - 1) / kTriangleBlock;
  Tensor layout(DType::kBool, {blocks, blocks});
  for (std::int64_t i = 0; i < blocks * blocks; ++i) layout.data_as<bool>()[i] = i % blocks <= i / blocks;
  return Mask::block_sparse(layout, kTriangleBlock);
}

std::vector<MaskCase> mask_cases(std::int64_t length) {
  const std::int64_t window = std::min<std::int64_t>(256, length / 4);
  return {{"causal", Mask::causal(), causal_tile},
          {fmt::format("window {}", window), Mask::sliding_window(window), [window](const Tile& t) { return window_tile(t, window); }},
          {fmt::format("window {}, 4 sinks", window), Mask::causal() & (Mask::sliding_window(window) | Mask::sink_tokens(4)),
           [window](const Tile& t) { return t.k == 0 || window_tile(t, window); }},
          documents_case(length),
          block_sparse_case(length)};
}

/// From speeds to times: milliseconds of a call, and of the yardstick for as much work.
BenchRow as_times(BenchRow row, double work) {
  const double ms = work * 1e-6;
  const Spread speed = inverse(row.value);
  row.value = {ms * speed.median, ms * speed.least, ms * speed.most, ms * speed.low, ms * speed.high};
  row.peak = Peak{ms / row.peak->value, row.peak->of, ms / row.peak->best};
  row.ratio = inverse(*row.ratio);
  row.unit = "ms";
  row.better = Better::kLower;
  return row;
}

void add_as_times(Bench& bench, const std::vector<BenchCase>& all, double seconds) {
  const auto cases = bench.wanted(all);
  for (const int n : bench.threads()) {
    auto rows = measure(cases, n, bench.effort(seconds));
    for (std::size_t i = 0; i < rows.size(); ++i) bench.add(as_times(std::move(rows[i]), cases[i].work));
  }
}

void run_shares(Bench& bench, const Problem& dense) {
  constexpr double kTarget = 1.15;
  const BenchCase whole = forward_case("dense", dense);
  const YardstickPtr yardstick = rival_yardstick("share of dense", "GFLOP/s", whole.work, whole.run);
  std::vector<BenchCase> cases;
  for (const MaskCase& m : mask_cases(dense.keys)) {
    Problem problem = dense;
    problem.mask = m.mask;
    const double share = visible_share(m.visible, dense.keys, tile_rows(dense.dtype));
    BenchCase c = forward_case(m.name, problem, kTarget);
    c.yardstick = yardstick;
    c.work = whole.work * share;
    c.note = fmt::format("{:.1f} % of the tiles", 100 * share);
    cases.push_back(std::move(c));
  }
  add_as_times(bench, cases, 6);
}

/// What masked tiles cost beyond full ones, as a share of a causal pass: an upper bound of the check for non-finite values, which cannot be
/// switched off. A triangle of full blocks shows what a full tile costs.
void run_partial_tiles(Bench& bench, Problem problem) {
  constexpr double kTarget = 1.02;
  const std::int64_t rows = tile_rows(problem.dtype);
  const auto in_triangle = [](const Tile& t) { return t.k / kTriangleBlock <= t.q_last / kTriangleBlock; };
  problem.mask = block_triangle(problem.keys);
  const BenchCase full_tiles = forward_case("", problem);
  problem.mask = Mask::causal();
  BenchCase causal = forward_case("causal against as many full tiles", problem, kTarget);
  const double flop = 4.0 * static_cast<double>(problem.q_heads * problem.keys * problem.keys * problem.head_dim);
  causal.work = flop * visible_share(causal_tile, problem.keys, rows);
  causal.yardstick = rival_yardstick("full tiles", "GFLOP/s", flop * visible_share(in_triangle, problem.keys, rows), full_tiles.run);
  causal.note = "mask bits and the non-finite check together";
  add_as_times(bench, {causal}, 3);
}

}  // namespace

void run_masks(Bench& bench) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (interrupted()) return;
    Problem dense = self_attention(dtype, bench.pick(8192, 512), 64);
    dense.q_heads = dense.kv_heads = 2;
    run_shares(bench, dense);
    if (interrupted()) return;
    run_partial_tiles(bench, dense);
  }
}

}  // namespace heed::cli::bench
