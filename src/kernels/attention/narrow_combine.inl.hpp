// SPDX-License-Identifier: Apache-2.0
// Joins the states of all pieces in rising order, adds the sink, divides, rounds once and writes the outputs.

namespace decode {

constexpr double kLn2 = 0.693147180559945309417;
/// Columns joined at a time: one pass over the pieces' weights serves this many vectors.
constexpr int kCombineVectors = 8;

/// State i of one row.
struct RowStates {
  const float* max;       // stride rows
  const float* true_max;  // stride rows
  const float* sum;       // stride rows
  const float* out;       // stride rows * dim
  std::int64_t rows, dim, pieces;
};

HEED_INLINE float exp2_of(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, exp2(set1(x)));
  return lanes[0];
}

/// Reference maximum and denominator of a whole row, and what `out` is divided by: less than the denominator where dropout kept a share.
struct Total {
  float reference;
  float sum;
  float divisor;
};

static Total total_of(const RowStates& row, const float* sink, float dropout_factor) {
  float top = sink != nullptr ? *sink * kLog2E : kMinusInfinity;
  for (std::int64_t i = 0; i < row.pieces; ++i) top = row.max[i * row.rows] > top ? row.max[i * row.rows] : top;
  // Without any visible key and sink the reference is 0, so that -inf - -inf is never formed.
  const float reference = top == kMinusInfinity ? 0.0F : top;
  float sum = 0.0F;
  for (std::int64_t i = 0; i < row.pieces; ++i) sum += exp2_of(row.max[i * row.rows] - reference) * row.sum[i * row.rows];
  if (sink != nullptr) sum += exp2_of(*sink * kLog2E - reference);
  const float divisor = sum == 0.0F ? 1.0F : sum;
  return {reference, sum, dropout_factor != 0.0F ? divisor / dropout_factor : divisor};
}

template <class T>
HEED_INLINE void write_columns(T* to, std::int64_t stride, Vec x, int n) {
  if (stride == 1) {
    if (n == kLanes) return storeu(to, x);
    return store_partial(to, x, n);
  }
  alignas(64) float lanes[kLanes];
  store(lanes, x);
  for (int i = 0; i < n; ++i) narrow(to + i * stride, lanes[i]);
}

/// Columns column .. of one row: sum of weight * out over the pieces, divided by the row's sum.
template <class T, int kVectors>
HEED_INLINE void join_columns(const RowStates& row, const Total& total, std::int64_t column, int n, T* to, std::int64_t stride) {
  Vec sums[kVectors];
  for (int c = 0; c < kVectors; ++c) sums[c] = zero();
  for (std::int64_t i = 0; i < row.pieces; ++i) {
    const Vec weight = exp2(set1(row.max[i * row.rows] - total.reference));
    const float* from = row.out + i * row.rows * row.dim + column;
    for (int c = 0; c < kVectors; ++c) {
      const Vec x = kVectors == 1 && n < kLanes ? load_partial(from, n) : loadu(from + c * kLanes);
      sums[c] = fma(weight, x, sums[c]);
    }
  }
  const Vec divisor = set1(total.divisor);
  for (int c = 0; c < kVectors; ++c) write_columns(to + c * kLanes * stride, stride, div(sums[c], divisor), n);
}

template <class T>
static void join_row(const RowStates& row, const Total& total, T* to, std::int64_t stride) {
  std::int64_t column = 0;
  for (; column + kCombineVectors * kLanes <= row.dim; column += kCombineVectors * kLanes) {
    join_columns<T, kCombineVectors>(row, total, column, kLanes, to + column * stride, stride);
  }
  for (; column < row.dim; column += kLanes) {
    const int n = static_cast<int>(smallest(kLanes, row.dim - column));
    join_columns<T, 1>(row, total, column, n, to + column * stride, stride);
  }
}

static void write_statistics(const OutputRows& o, std::int64_t token, std::int64_t head, const RowStates& row, const Total& total) {
  if (o.lse != nullptr) {
    const double lse = (static_cast<double>(total.reference) + __builtin_log2(static_cast<double>(total.sum))) * kLn2;
    o.lse[token * o.lse_token_stride + head * o.lse_head_stride] = static_cast<float>(lse);
  }
  if (o.row_max != nullptr) {
    float top = kMinusInfinity;
    for (std::int64_t i = 0; i < row.pieces; ++i) top = row.true_max[i * row.rows] > top ? row.true_max[i * row.rows] : top;
    o.row_max[token * o.row_max_token_stride + head * o.row_max_head_stride] = static_cast<float>(static_cast<double>(top) * kLn2);
  }
}

static void combine(const ForwardProblem& problem, const PartialState& base, std::int64_t pieces) noexcept {
  const OutputRows& o = problem.output;
  const std::int64_t rows = rows_of(problem);
  const std::int64_t dim = problem.value_dim;
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t token = r / problem.q.group;
    const std::int64_t head = r % problem.q.group;
    const RowStates row{base.max + r, base.true_max + r, base.sum + r, base.out + r * dim, rows, dim, pieces};
    const float* sinks = problem.scoring.sink_logits;
    const Total total = total_of(row, sinks != nullptr ? sinks + head : nullptr, problem.scoring.dropout.factor);
    const std::int64_t offset = token * o.token_stride + head * o.head_stride;
    switch (o.dtype) {
      case DType::kBFloat16: join_row(row, total, static_cast<bfloat16*>(o.out) + offset, o.dim_stride); break;
      case DType::kFloat16: join_row(row, total, static_cast<float16*>(o.out) + offset, o.dim_stride); break;
      default: join_row(row, total, static_cast<float*>(o.out) + offset, o.dim_stride); break;
    }
    write_statistics(o, token, head, row, total);
  }
}

}  // namespace decode
