// SPDX-License-Identifier: Apache-2.0
#include "nn/linear.hpp"

#include <algorithm>
#include <atomic>
#include <new>
#include <string>

#include <dnnl.h>

#include <heed/error.hpp>

#include "base/arena.hpp"
#include "base/cpu.hpp"
#include "base/message.hpp"
#include "base/parallel.hpp"
#include "kernels/registry.hpp"

namespace heed::nn {
namespace {

using kernels::LinearFormatKernels;
using kernels::LinearProblem;
using kernels::WeightFormat;
using model::GgmlType;

WeightFormat format_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return WeightFormat::kF32;
    case GgmlType::kF16: return WeightFormat::kF16;
    case GgmlType::kBF16: return WeightFormat::kBF16;
    case GgmlType::kQ4_0: return WeightFormat::kQ4_0;
    case GgmlType::kQ4_1: return WeightFormat::kQ4_1;
    case GgmlType::kQ5_0: return WeightFormat::kQ5_0;
    case GgmlType::kQ8_0: return WeightFormat::kQ8_0;
    case GgmlType::kQ4_K: return WeightFormat::kQ4_K;
    case GgmlType::kQ5_K: return WeightFormat::kQ5_K;
    case GgmlType::kQ6_K: return WeightFormat::kQ6_K;
  }
  base::throw_invalid("linear", "w.type", "a GgmlType", std::to_string(static_cast<std::uint32_t>(type)));
}

const LinearFormatKernels& active(GgmlType type) {
  const kernels::LinearKernels& kernels = *kernels::linear_kernels_of(base::active_isa());
  return kernels.format[static_cast<int>(format_of(type))];
}

std::int64_t row_bytes(const WeightMatrix& w) { return w.columns / block_values(w.type) * block_bytes(w.type); }

struct Product {
  float* y;  // [n, w.rows]
  std::int64_t y_stride;
  const float* x;  // [n, w.columns]
  std::int64_t x_stride, n;
  const WeightMatrix& w;
  const float* bias;  // [w.rows] or null
};

// From this many rows of x on, decoding weights to memory once and multiplying from there beats decoding them in registers for every
// eight rows: sums of both rates on an Emerald Rapids core cross between 16 (Q5_0) and 32 (Q4_1) rows.
constexpr std::int64_t kGemmRows = 24;

/// Straight from the blocks. Output rows are independent of each other, so they may be cut by the number of threads.
void multiply_blocks(const Product& p) {
  constexpr std::int64_t kLeastRows = 16;      // below, handing out a task costs as much as the task
  constexpr std::int64_t kTasksPerThread = 6;  // so that a thread that lost its core for a while is made up for
  const LinearFormatKernels& kernels = active(p.w.type);
  const LinearProblem problem{.weights = p.w.data,
                              .row_bytes = row_bytes(p.w),
                              .columns = p.w.columns,
                              .x = p.x,
                              .x_stride = p.x_stride,
                              .n = p.n,
                              .y = p.y,
                              .y_stride = p.y_stride,
                              .bias = p.bias};
  const int threads = base::num_threads();
  const std::int64_t rows_per_task = std::max(kLeastRows, p.w.rows / (threads * kTasksPerThread));
  const std::int64_t tasks = (p.w.rows + rows_per_task - 1) / rows_per_task;
  base::parallel_for(tasks, threads, [&](std::int64_t task, int /*thread*/) noexcept {
    kernels.dot(problem, task * rows_per_task, std::min(p.w.rows, (task + 1) * rows_per_task));
  });
}

/// The cut of a large product, by its shape alone: oneDNN runs serially in each tile, so that the bits do not depend on the threads.
struct GemmTiles {
  // 128 output rows: oneDNN 2.6's serial sgemm is at or near its best there (120 to 168 of 175 GFLOP/s on an Emerald Rapids core) for all
  // widths (576 to 2048) and 64 to 512 inputs, out of 64 to 512 rows tried; and 128 * 2048 decoded floats stay in a 2 MiB L2.
  static constexpr std::int64_t kMostRows = 128, kMostInputs = 256;
  static constexpr std::int64_t kMostFloats = 512 * 1024;  // of decoded weights: 2 MiB for each thread
  std::int64_t rows, inputs;                               // of a tile
  std::int64_t row_tiles, input_tiles;

  GemmTiles(std::int64_t n, std::int64_t all_rows, std::int64_t columns) {
    const std::int64_t most = std::clamp<std::int64_t>(kMostFloats / columns, 16, kMostRows);
    row_tiles = (all_rows + most - 1) / most;
    row_tiles += row_tiles % 2;  // an even number of nearly equal tiles: two threads finish together
    rows = ((all_rows + row_tiles - 1) / row_tiles + 15) / 16 * 16;
    row_tiles = (all_rows + rows - 1) / rows;
    input_tiles = (n + kMostInputs - 1) / kMostInputs;
    inputs = (n + input_tiles - 1) / input_tiles;
  }
};

void add_bias(float* y, std::int64_t y_stride, std::int64_t n, const float* bias, std::int64_t rows) {
  for (std::int64_t r = 0; r < n; ++r) {
    for (std::int64_t i = 0; i < rows; ++i) y[r * y_stride + i] += bias[i];
  }
}

/// One tile: rows [first, first + count) of W are decoded into `decoded` [count, columns], then multiplied with inputs [begin, begin + n).
dnnl_status_t multiply_tile(const Product& p, std::int64_t first, std::int64_t count, std::int64_t begin, std::int64_t n, float* decoded) {
  dequantize_rows(p.w, first, count, decoded);
  float* y = p.y + begin * p.y_stride + first;
  const base::SerialOpenMp serial;
  const dnnl_status_t status =
      dnnl_sgemm('N', 'T', n, count, p.w.columns, 1.0F, p.x + begin * p.x_stride, p.x_stride, decoded, p.w.columns, 0.0F, y, p.y_stride);
  if (p.bias != nullptr) add_bias(y, p.y_stride, n, p.bias + first, count);
  return status;
}

void multiply_decoded(const Product& p) {
  const GemmTiles tiles(p.n, p.w.rows, p.w.columns);
  const std::int64_t tasks = tiles.row_tiles * tiles.input_tiles;
  const auto threads = static_cast<int>(std::min<std::int64_t>(base::num_threads(), tasks));
  const std::int64_t tile_bytes = base::round_up_to_line(tiles.rows * p.w.columns * static_cast<std::int64_t>(sizeof(float)));
  const base::Scratch scratch(threads * tile_bytes);
  std::atomic<bool> failed{false};
  base::parallel_for(tasks, threads, [&](std::int64_t task, int thread) noexcept {
    const std::int64_t first = task / tiles.input_tiles * tiles.rows;
    const std::int64_t begin = task % tiles.input_tiles * tiles.inputs;
    auto* decoded = reinterpret_cast<float*>(scratch.data() + thread * tile_bytes);
    const dnnl_status_t status =
        multiply_tile(p, first, std::min(tiles.rows, p.w.rows - first), begin, std::min(tiles.inputs, p.n - begin), decoded);
    if (status != dnnl_success) failed.store(true, std::memory_order_relaxed);
  });
  if (failed) throw std::bad_alloc();  // the arguments are right, so memory is all that oneDNN can lack
}

}  // namespace

WeightMatrix weight_matrix(const model::GgufTensor& tensor, std::int64_t rows, std::int64_t columns) {
  const auto fits = [](std::int64_t wanted, std::int64_t got) { return wanted == -1 || wanted == got; };
  const auto text = [](std::int64_t size) { return size == -1 ? std::string("any") : std::to_string(size); };
  if (tensor.shape.rank() != 2 || !fits(rows, tensor.shape[0]) || !fits(columns, tensor.shape[1])) {
    throw FormatError("tensor \"" + tensor.name + "\": shape: expected [" + text(rows) + ", " + text(columns) + "], got " +
                      to_string(tensor.shape));
  }
  if (tensor.shape[1] % block_values(tensor.type) != 0) {
    throw FormatError("tensor \"" + tensor.name + "\": shape: expected rows of whole blocks of " +
                      std::to_string(block_values(tensor.type)) + " values, got " + to_string(tensor.shape));
  }
  return {tensor.type, tensor.data, tensor.shape[0], tensor.shape[1]};
}

void dequantize_rows(const WeightMatrix& w, std::int64_t first, std::int64_t count, float* out) {
  active(w.type).dequantize(out, w.data + first * row_bytes(w), count * w.columns);
}

void linear(float* y, std::int64_t y_stride, const float* x, std::int64_t x_stride, std::int64_t n, const WeightMatrix& w,
            const float* bias) {
  if (n == 0 || w.rows == 0) return;
  const Product product{y, y_stride, x, x_stride, n, w, bias};
  if (n < kGemmRows || w.columns == 0 || !base::SerialOpenMp::works()) {
    multiply_blocks(product);
  } else {
    multiply_decoded(product);
  }
}

}  // namespace heed::nn
