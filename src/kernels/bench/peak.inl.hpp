// SPDX-License-Identifier: Apache-2.0
// Register-only loops and a read loop. Sources of the accumulators are hidden from the compiler once a round, else it would fold the loop;
// a listing with memory operands in peak_fma's loop means spilled accumulators and half the true peak.

constexpr int kChains = kTileBroadcasts * kTileVectors;

static double peak_fma(std::int64_t rounds, float* sink) noexcept {
  Vec a = set1(0.999F), b = set1(1e-3F);
  keep(a);
  keep(b);
  Vec c[kChains];
  HEED_UNROLL
  for (int i = 0; i < kChains; ++i) c[i] = set1(1e-8F * static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
    HEED_UNROLL
    for (int i = 0; i < kChains; ++i) {
      c[i] = fma(a, b, c[i]);
      keep(c[i]);
    }
  }
  HEED_UNROLL
  for (int i = 1; i < kChains; ++i) c[0] = add(c[0], c[i]);
  *sink = reduce_add(c[0]);
  return 2.0 * kLanes * kChains * static_cast<double>(rounds);
}

static double peak_read(const float* data, std::int64_t count, float* sink) noexcept {
  IVec sum[4] = {iset1(0), iset1(0), iset1(0), iset1(0)};
  for (std::int64_t i = 0; i < count; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) sum[j] = ior(sum[j], iload(data + i + j * kLanes));
  }
  *sink = reduce_max(as_float(ior(ior(sum[0], sum[1]), ior(sum[2], sum[3]))));
  return 4.0 * static_cast<double>(count);
}

static double peak_bf16_dot(std::int64_t rounds, float* sink) noexcept {
  IVec a = iset1(0x3f003f00), b = iset1(0x3a003a00);
  keep(a);
  keep(b);
  Vec c[kChains];
  HEED_UNROLL
  for (int i = 0; i < kChains; ++i) c[i] = set1(1e-8F * static_cast<float>(i));
  for (std::int64_t round = 0; round < rounds; ++round) {
    HEED_UNROLL
    for (int i = 0; i < kChains; ++i) {
      c[i] = dot_bf16(c[i], a, b);
      keep(c[i]);
    }
  }
  HEED_UNROLL
  for (int i = 1; i < kChains; ++i) c[0] = add(c[0], c[i]);
  *sink = reduce_add(c[0]);
  return 4.0 * kLanes * kChains * static_cast<double>(rounds);
}

extern const PeakKernels peak_kernels = {peak_fma, kHasBf16Dot ? peak_bf16_dot : nullptr, peak_read};
