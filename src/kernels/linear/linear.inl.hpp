// SPDX-License-Identifier: Apache-2.0
// Products with 1, 4 or 8 rows of x at a time, and plain decoding, for every block format.

namespace linear {

#include "kernels/linear/formats.inl.hpp"

/// Scales of this many values are widened ahead of the loop that uses them: a stack buffer of at most 1 KiB.
constexpr int kChunkValues = 2048;
/// widen_four_halves() writes past the scales of a block; the next block's overwrite it.
constexpr int kScaleSlack = 4;

/// How far ahead of the scales weights are asked for. On an Emerald Rapids core, from L3: Q8_0 13 -> 16 GB/s, the others up to 5 %; 1 KiB
/// ahead is worse than nothing. The hardware does float types better alone.
constexpr int kPrefetchBytes = 3072;
template <class Format>
HEED_INLINE void prefetch_block(const std::uint8_t* block) {
  if constexpr (Format::kScales > 0) {
    for (int line = 0; line < Format::kBytes; line += 64) prefetch(block + line + kPrefetchBytes);
  }
}

/// Decoded values go to memory.
struct StoreSink {
  float* out;
};
HEED_INLINE void take(StoreSink& sink, Vec values, int index, int) { storeu(sink.out + index, values); }

/// Decoded values meet kRows rows of x. Several independent sums per row hide the FMA's latency where there are few rows.
template <int kRows>
struct DotSink {
  static constexpr int kSums = kRows == 1 ? 4 : 1;
  const float* x;
  std::int64_t stride;
  Vec sums[kRows][kSums];
};
template <int kRows>
HEED_INLINE void take(DotSink<kRows>& sink, Vec values, int index, int slot) {
  HEED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    Vec& sum = sink.sums[r][slot % DotSink<kRows>::kSums];
    sum = fma(values, loadu(sink.x + r * sink.stride + index), sum);
  }
}

/// The values of a row that do not fill a block; float types only.
template <class Format, int kRows>
HEED_INLINE void take_tail(DotSink<kRows>& sink, const std::uint8_t* block, int count) {
  using Element = typename Format::Element;
  for (int i = 0; i < count; i += kLanes) {
    const int lanes = count - i < kLanes ? count - i : kLanes;
    const Vec values = load_partial(reinterpret_cast<const Element*>(block) + i, lanes);
    HEED_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sink.sums[r][0] = fma(values, load_partial(sink.x + r * sink.stride + i, lanes), sink.sums[r][0]);
    }
  }
}

template <class Format, int kRows>
HEED_INLINE void take_row(DotSink<kRows>& sink, const std::uint8_t* block, std::int64_t columns) {
  constexpr int kChunkBlocks = kChunkValues / Format::kValues;
  float scales[kChunkBlocks * Format::kScales + kScaleSlack];
  std::int64_t blocks = columns / Format::kValues;
  while (blocks > 0) {
    const int count = blocks < kChunkBlocks ? static_cast<int>(blocks) : kChunkBlocks;
    for (int b = 0; b < count; ++b) {
      prefetch_block<Format>(block + b * Format::kBytes);
      Format::scales(scales + b * Format::kScales, block + b * Format::kBytes);
    }
    for (int b = 0; b < count; ++b) {
      Format::decode(sink, block, scales + b * Format::kScales);
      block += Format::kBytes;
      sink.x += Format::kValues;
    }
    blocks -= count;
  }
  if constexpr (Format::kScales == 0) take_tail<Format>(sink, block, static_cast<int>(columns % Format::kValues));
}

/// kRows rows of x, from row `first_x` on, with one row of weights.
template <class Format, int kRows>
HEED_INLINE void dot_row(const LinearProblem& p, std::int64_t first_x, std::int64_t row) {
  constexpr int kSums = DotSink<kRows>::kSums;
  DotSink<kRows> sink;
  sink.x = p.x + first_x * p.x_stride;
  sink.stride = p.x_stride;
  HEED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    HEED_UNROLL
    for (int s = 0; s < kSums; ++s) sink.sums[r][s] = zero();
  }
  take_row<Format>(sink, reinterpret_cast<const std::uint8_t*>(p.weights) + row * p.row_bytes, p.columns);
  const float bias = p.bias != nullptr ? p.bias[row] : 0.0F;
  HEED_UNROLL
  for (int r = 0; r < kRows; ++r) {
    Vec total = sink.sums[r][0];
    HEED_UNROLL
    for (int s = 1; s < kSums; ++s) total = add(total, sink.sums[r][s]);
    p.y[(first_x + r) * p.y_stride + row] = reduce_add(total) + bias;
  }
}

template <class Format, int kRows>
void dot_rows(const LinearProblem& p, std::int64_t first_x, std::int64_t first, std::int64_t last) noexcept {
  for (std::int64_t row = first; row < last; ++row) dot_row<Format, kRows>(p, first_x, row);
}

template <class Format>
void dot(const LinearProblem& p, std::int64_t first, std::int64_t last) noexcept {
  std::int64_t r = 0;
  for (; r + 8 <= p.n; r += 8) dot_rows<Format, 8>(p, r, first, last);
  if (r + 4 <= p.n) {
    dot_rows<Format, 4>(p, r, first, last);
    r += 4;
  }
  for (; r < p.n; ++r) dot_rows<Format, 1>(p, r, first, last);
}

template <class Format>
void dequantize(float* out, const std::byte* blocks, std::int64_t count) noexcept {
  const auto* block = reinterpret_cast<const std::uint8_t*>(blocks);
  StoreSink sink{out};
  for (; count >= Format::kValues; count -= Format::kValues) {
    float scales[Format::kScales + kScaleSlack];
    Format::scales(scales, block);
    Format::decode(sink, block, scales);
    block += Format::kBytes;
    sink.out += Format::kValues;
  }
  if constexpr (Format::kScales == 0) {
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const int lanes = count - i < kLanes ? static_cast<int>(count - i) : kLanes;
      store_partial(sink.out + i, load_partial(reinterpret_cast<const typename Format::Element*>(block) + i, lanes), lanes);
    }
  }
}

template <class Format>
constexpr LinearFormatKernels kernels_of = {dot<Format>, dequantize<Format>};

}  // namespace linear

extern const LinearKernels linear_kernels = {
    {linear::kernels_of<linear::Plain<float>>, linear::kernels_of<linear::Plain<float16>>, linear::kernels_of<linear::Plain<bfloat16>>,
     linear::kernels_of<linear::Q4_0>, linear::kernels_of<linear::Q4_1>, linear::kernels_of<linear::Q5_0>, linear::kernels_of<linear::Q8_0>,
     linear::kernels_of<linear::Q4_K>, linear::kernels_of<linear::Q5_K>, linear::kernels_of<linear::Q6_K>}};
