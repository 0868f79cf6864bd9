// SPDX-License-Identifier: Apache-2.0
// heed bench --suite masks: a mask should cost what it leaves. Times against the share of 64 x 64 tiles that somebody sees of the dense time.
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

namespace heed::cli::bench {
namespace {

constexpr std::int64_t kTile = 64;

/// Whether some query of [q, q + 64) sees some key of [k, k + 64); by the mask's formula, not by the library's plan.
using TileVisible = std::function<bool(std::int64_t q, std::int64_t k)>;

struct MaskCase {
  std::string name;
  Mask mask;
  TileVisible visible;
};

double visible_share(const TileVisible& visible, std::int64_t length) {
  std::int64_t count = 0, all = 0;
  for (std::int64_t q = 0; q < length; q += kTile) {
    for (std::int64_t k = 0; k < length; k += kTile, ++all) count += visible(q, k) ? 1 : 0;
  }
  return static_cast<double>(count) / static_cast<double>(all);
}

bool causal_tile(std::int64_t q, std::int64_t k) { return k <= q + kTile - 1; }
bool window_tile(std::int64_t q, std::int64_t k, std::int64_t window) { return causal_tile(q, k) && k + kTile - 1 > q - window; }

/// Eight documents of unequal lengths, none of them a multiple of a tile.
MaskCase documents_case(std::int64_t length) {
  Tensor ids(DType::kInt64, {length});
  auto document = std::make_shared<std::vector<std::int64_t>>();
  const std::int64_t unit = length / 36;  // 1 + 2 + ... + 8
  for (std::int64_t d = 0; d < 8; ++d) document->insert(document->end(), static_cast<std::size_t>((d + 1) * unit), d);
  document->resize(static_cast<std::size_t>(length), 7);
  std::copy(document->begin(), document->end(), ids.data_as<std::int64_t>());
  const auto visible = [document](std::int64_t q, std::int64_t k) {
    const auto id = [&](std::int64_t i) { return (*document)[static_cast<std::size_t>(i)]; };
    return causal_tile(q, k) && id(k + kTile - 1) >= id(q);
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
  return {"block-sparse", Mask::block_sparse(layout, kBlock), [shown](std::int64_t q, std::int64_t k) { return shown(q / kBlock, k / kBlock); }};
}

/// The tiles of a causal mask, all of them full: what is left of a causal pass without masked tiles' own cost.
MaskCase block_triangle_case(std::int64_t length) {
  const std::int64_t blocks = length / kTile;
  Tensor layout(DType::kBool, {blocks, blocks});
  for (std::int64_t i = 0; i < blocks * blocks; ++i) layout.data_as<bool>()[i] = i % blocks <= i / blocks;
  return {"", Mask::block_sparse(layout, kTile), causal_tile};
}

std::vector<MaskCase> mask_cases(std::int64_t length) {
  const std::int64_t window = std::min<std::int64_t>(256, length / 4);
  return {{"causal", Mask::causal(), causal_tile},
          {fmt::format("window {}", window), Mask::sliding_window(window),
           [window](std::int64_t q, std::int64_t k) { return window_tile(q, k, window); }},
          {fmt::format("window {}, 4 sinks", window), Mask::causal() & (Mask::sliding_window(window) | Mask::sink_tokens(4)),
           [window](std::int64_t q, std::int64_t k) { return k == 0 || window_tile(q, k, window); }},
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

void add_as_times(Bench& bench, const std::vector<BenchCase>& cases, double seconds) {
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
    const double share = visible_share(m.visible, dense.keys);
    BenchCase c = forward_case(m.name, problem, kTarget);
    c.yardstick = yardstick;
    c.work = whole.work * share;
    c.note = fmt::format("{:.1f} % of the tiles", 100 * share);
    cases.push_back(std::move(c));
  }
  add_as_times(bench, cases, 6);
}

/// An upper bound of what the check for non-finite values costs, which cannot be switched off: everything that partial tiles cost together.
void run_partial_tiles(Bench& bench, Problem problem) {
  constexpr double kTarget = 1.02;
  problem.mask = block_triangle_case(problem.keys).mask;
  const BenchCase full_tiles = forward_case("", problem);
  problem.mask = Mask::causal();
  BenchCase causal = forward_case("causal against as many full tiles", problem, kTarget);
  causal.yardstick = rival_yardstick("full tiles", "GFLOP/s", causal.work, full_tiles.run);
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
