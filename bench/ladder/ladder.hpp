// SPDX-License-Identifier: Apache-2.0
// The kernel ladder: one head of attention without a mask, ten times, from three naive loops to heed::attention. docs/kernel-ladder.md
// walks through the steps. Every step has the same signature and is one file, compiled once per instruction set in a namespace of its own.
#pragma once

#include <cstdint>

namespace ladder {

/// out[i] = sum over j of softmax_j(scale * q[i] . k[j]) * v[j]. To keep the steps short, L is a multiple of 64 and D of 8.
struct Problem {
  std::int64_t length, head_dim;  ///< L, D
  float scale;
  const float *q, *k, *v;  ///< [L][D]
  float* out;              ///< [L][D]
};

using Step = void (*)(const Problem&);

/// Uninitialised floats from a 64-byte line on. Defined once, outside of the instruction sets' files: an inline function in those could be
/// the copy that the linker keeps for everybody, with instructions in it that this machine may lack.
class Buffer {
 public:
  explicit Buffer(std::int64_t count);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  [[nodiscard]] float* data() const { return data_; }

 private:
  float* data_;
};

#define LADDER_STEPS(isa)                       \
  namespace isa {                               \
  void step01_naive(const Problem&);            \
  void step02_contiguous(const Problem&);       \
  void step03_online_softmax(const Problem&);   \
  void step04_cache_tiles(const Problem&);      \
  void step05_queries_in_lanes(const Problem&); \
  void step06_register_tile(const Problem&);    \
  void step07_polynomial_exp2(const Problem&);  \
  void step08_lazy_rescale(const Problem&);     \
  void step09_super_blocks(const Problem&);     \
  }
LADDER_STEPS(baseline)  // what every machine of this architecture has: SSE2, NEON
LADDER_STEPS(avx2)
LADDER_STEPS(avx512)
#undef LADDER_STEPS

void step10_heed(const Problem&);  ///< picks its instruction set itself

}  // namespace ladder
