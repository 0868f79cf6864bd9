// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/targets.hpp"

#include <string>

#include <heed/kernels.hpp>

namespace heed::cli::bench {
namespace {

enum class Machine { kAvx512, kAvx512Bf16, kAvx2, kOther };

Machine machine() {
  const std::string isa = active_isa();
  if (isa == "avx512bf16") return Machine::kAvx512Bf16;
  if (isa == "avx512") return Machine::kAvx512;
  return isa == "avx2" ? Machine::kAvx2 : Machine::kOther;
}

// 16 vector registers leave AVX2 a smaller tile: more loads for each FMA.
double float32_target(Pass pass, Machine on) {
  const bool avx2 = on == Machine::kAvx2;
  switch (pass) {
    case Pass::kForward: return avx2 ? 0.80 : 0.85;
    case Pass::kCausal: return avx2 ? 0.75 : 0.80;
    case Pass::kDecode: return 0.85;
    case Pass::kBackward: return avx2 ? 0.62 : 0.70;
  }
  return 0;
}

// Of the bf16 dot's peak where that is native: softmax's share of the time doubles as the products' halves, and again at D = 64.
// Widened, of float32's peak.
std::optional<double> bfloat16_target(Pass pass, std::int64_t head_dim, Machine on) {
  const bool native = on == Machine::kAvx512Bf16;
  switch (pass) {
    case Pass::kForward: return native && head_dim < 128 ? 0.70 : 0.78;
    case Pass::kCausal: return {};
    case Pass::kDecode: return 0.80;
    case Pass::kBackward: return 0.60;
  }
  return {};
}

// Head dimensions between and above the two of the table come within so many points of D = 128.
double allowance(DType dtype, std::int64_t head_dim, Machine on) {
  if (head_dim == 128 || head_dim == 64) return 0;
  return dtype == DType::kBFloat16 && on == Machine::kAvx512Bf16 ? 0.08 : 0.05;
}

std::optional<double> at_table_dims(Pass pass, DType dtype, std::int64_t head_dim, Machine on) {
  switch (dtype) {
    case DType::kFloat32: return float32_target(pass, on);
    case DType::kBFloat16: return bfloat16_target(pass, head_dim, on);
    default: return {};
  }
}

}  // namespace

std::optional<double> target_of(Pass pass, DType dtype, std::int64_t head_dim) {
  const Machine on = machine();
  if (on == Machine::kOther) return {};
  const bool in_table = head_dim == 128 || head_dim == 64;
  const auto target = at_table_dims(pass, dtype, in_table ? head_dim : 128, on);
  if (!target) return {};
  return *target - allowance(dtype, head_dim, on);
}

}  // namespace heed::cli::bench
