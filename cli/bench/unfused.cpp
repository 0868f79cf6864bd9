// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/unfused.hpp"

#include <cmath>
#include <cstring>
#include <string>

#include <dnnl.h>

#include <heed/kernels.hpp>

#include "base/parallel.hpp"

// The softmax is one text of vector-extension code, inlined into a function for each instruction set.
#if defined(__x86_64__)
#define HEED_BENCH_TARGET(isa) __attribute__((target(isa)))
#else
#define HEED_BENCH_TARGET(isa)
#endif
#define HEED_BENCH_INLINE inline __attribute__((always_inline))

namespace heed::cli::bench {
namespace {

/// Vectors of 4, 8 and 16 floats: as many as a register of the instruction set has, as compilers cut longer ones into scalars here and there.
struct Four {
  using Floats = float __attribute__((vector_size(16)));
  using Ints = std::int32_t __attribute__((vector_size(16)));
};
struct Eight {
  using Floats = float __attribute__((vector_size(32)));
  using Ints = std::int32_t __attribute__((vector_size(32)));
};
struct Sixteen {
  using Floats = float __attribute__((vector_size(64)));
  using Ints = std::int32_t __attribute__((vector_size(64)));
};

template <class Vectors>
struct Lanes {
  using Floats = typename Vectors::Floats;
  using Ints = typename Vectors::Ints;
  static constexpr int kLanes = sizeof(Floats) / sizeof(float);

  static HEED_BENCH_INLINE void load(Floats& to, const float* from) { __builtin_memcpy(&to, from, sizeof(to)); }
  static HEED_BENCH_INLINE void store(float* to, const Floats& from) { __builtin_memcpy(to, &from, sizeof(from)); }

  /// x <- 2^x for x <= 0: round to the nearest integer by adding 1.5 * 2^23, degree-5 Taylor polynomial of the rest, exponent by integer addition.
  static HEED_BENCH_INLINE void exp2_in_place(Floats& x) {
    x = x < -126.0F ? Floats{} - 126.0F : x;
    const Floats shifted = x + 12582912.0F;
    const Floats n = shifted - 12582912.0F, f = x - n;
    Floats p = f * 0.0013333558F + 0.0096181291F;
    p = p * f + 0.055504109F;
    p = p * f + 0.24022651F;
    p = p * f + 0.69314718F;
    p = p * f + 1.0F;
    Ints bits, exponent;
    __builtin_memcpy(&bits, &p, sizeof(bits));
    __builtin_memcpy(&exponent, &shifted, sizeof(exponent));  // the low bits of the shifted number are n
    bits += exponent << 23;
    __builtin_memcpy(&x, &bits, sizeof(x));
  }

  static HEED_BENCH_INLINE float largest(const float* x, std::int64_t width) {
    Floats most = Floats{} - INFINITY;
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      Floats value;
      load(value, x + i);
      most = value > most ? value : most;
    }
    float result = -INFINITY;
    for (int lane = 0; lane < kLanes; ++lane) result = most[lane] > result ? most[lane] : result;
    for (; i < width; ++i) result = x[i] > result ? x[i] : result;
    return result;
  }

  /// Writes exp2((x - most) * scale2) and returns the sum. What is left of a row goes through one padded vector.
  static HEED_BENCH_INLINE float exponentials(float* x, std::int64_t width, float most, float scale2) {
    Floats sum{};
    std::int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) {
      Floats value;
      load(value, x + i);
      value = (value - most) * scale2;
      exp2_in_place(value);
      store(x + i, value);
      sum += value;
    }
    float total = 0;
    for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
    if (i == width) return total;
    Floats rest{};
    for (std::int64_t lane = 0; lane < width - i; ++lane) rest[lane] = (x[i + lane] - most) * scale2;
    exp2_in_place(rest);
    for (std::int64_t lane = 0; lane < width - i; ++lane) total += x[i + lane] = rest[lane];
    return total;
  }

  static HEED_BENCH_INLINE void softmax(float* x, std::int64_t rows, std::int64_t width, float scale) {
    constexpr float kLog2E = 1.44269504F;
    for (std::int64_t row = 0; row < rows; ++row, x += width) {
      const float factor = 1.0F / exponentials(x, width, largest(x, width), scale * kLog2E);
      for (std::int64_t i = 0; i < width; ++i) x[i] *= factor;
    }
  }
};

using SoftmaxRows = void (*)(float*, std::int64_t, std::int64_t, float);

void softmax_plain(float* x, std::int64_t rows, std::int64_t width, float scale) { Lanes<Four>::softmax(x, rows, width, scale); }
#if defined(__x86_64__)
HEED_BENCH_TARGET("avx2,fma")
void softmax_avx2(float* x, std::int64_t rows, std::int64_t width, float scale) { Lanes<Eight>::softmax(x, rows, width, scale); }
HEED_BENCH_TARGET("avx512f,fma")
void softmax_avx512(float* x, std::int64_t rows, std::int64_t width, float scale) { Lanes<Sixteen>::softmax(x, rows, width, scale); }
#endif

SoftmaxRows choose_softmax() {
#if defined(__x86_64__)
  const std::string isa = active_isa();
  if (isa == "avx2") return softmax_avx2;
  if (isa == "avx512" || isa == "avx512bf16") return softmax_avx512;
#endif
  return softmax_plain;
}

/// oneDNN would take the best that the CPU has, whatever HEED_ISA says. Works once, before its first product.
void hold_onednn_to_our_isa() {
#if defined(__x86_64__)
  const std::string isa = active_isa();
  if (isa == "avx2") (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
  if (isa == "generic") (void)dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
#endif
}

}  // namespace

UnfusedAttention::UnfusedAttention(std::int64_t heads, std::int64_t length, std::int64_t head_dim)
    : heads_(heads), length_(length), head_dim_(head_dim) {
  hold_onednn_to_our_isa();
}

void UnfusedAttention::run(const float* q, const float* k, const float* v, float* out) {
  const std::int64_t L = length_, D = head_dim_;
  const int threads = get_num_threads();
  scores_.resize(static_cast<std::size_t>(threads * L * L));
  static const SoftmaxRows softmax = choose_softmax();  // of rows of scores, in place
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
  base::parallel_for(heads_, threads, [&](std::int64_t head, int thread) noexcept {
    const base::SerialOpenMp serial;  // one team is enough
    const std::int64_t at = head * L * D;
    float* scores = scores_.data() + thread * L * L;
    (void)dnnl_sgemm('N', 'T', L, L, D, 1.0F, q + at, D, k + at, D, 0.0F, scores, L);
    softmax(scores, L, L, scale);
    (void)dnnl_sgemm('N', 'N', L, D, L, 1.0F, scores, L, v + at, D, 0.0F, out + at, D);
  });
}

}  // namespace heed::cli::bench
