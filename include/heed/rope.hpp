// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding (arXiv 2104.09864) and its length extensions.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include <heed/export.hpp>
#include <heed/tensor.hpp>

namespace heed {

/// Which elements form a pair. The angles are the same.
enum class RopePairing : std::uint8_t {
  kHalf,         ///< (i, i + d/2): GPT-NeoX, Hugging Face Llama, Qwen, Gemma
  kInterleaved,  ///< (2i, 2i + 1): GPT-J, Meta's Llama, GGUF files of the llama architecture
};

// Scaling rules. Formulas: d rotary dim, i = 0 .. d/2-1, b base, theta_i = b^(-2i/d), s factor, L original length, m magnitude.

/// theta_i / s (position interpolation, arXiv 2306.15595).
struct RopeLinear {
  double factor = 1.0;
};
/// b' = b * alpha^(d/(d-2)) ("NTK-aware": lowest frequency divided by exactly alpha, highest unchanged).
struct RopeNtk {
  double alpha = 1.0;
};
/// n = max(length, max_positions); b' = b * (s*n/max_positions - (s-1))^(d/(d-2)).
struct RopeDynamic {
  double factor = 1.0;
  std::int64_t max_positions = 0;
};
/// arXiv 2309.00071, ramp over the index as its code (and Transformers, vLLM, ggml) has it.
/// m = attention_factor if given; else g(s,mscale)/g(s,mscale_all_dim) if both are non-zero; else g(s,1); g(s,k) = s<=1 ? 1 : 0.1*k*ln(s)+1.
struct RopeYarn {
  double factor = 1.0;
  std::int64_t original_length = 0;
  double beta_fast = 32.0, beta_slow = 1.0;
  std::optional<double> attention_factor = {};
  double mscale = 0.0, mscale_all_dim = 0.0;
  enum class Truncate : std::uint8_t { kYes, kNo } truncate = Truncate::kYes;  ///< kNo: correction range not floored/ceiled (gpt-oss)
};
/// theta_i / e_i with e = long_factors when length > L, else short_factors; lists of d/2 (arXiv 2402.13753).
/// m = attention_factor if given, else s<=1 ? 1 : sqrt(1 + ln(s)/ln(L)).
struct RopeLong {
  std::vector<double> short_factors, long_factors;
  double factor = 1.0;
  std::int64_t original_length = 0;
  std::optional<double> attention_factor = {};
};
/// Llama 3.1: wavelength bands; below L/high_freq_factor unchanged, above L/low_freq_factor divided by s, blended between.
struct RopeLlama3 {
  double factor = 8.0, low_freq_factor = 1.0, high_freq_factor = 4.0;
  std::int64_t original_length = 8192;
};
/// Gemma 4: the first int(proportion * head_dim / 2) pairs rotate with b^(-2i/head_dim), the others do not; divided by factor.
struct RopeProportional {
  double proportion = 1.0, factor = 1.0;
};
/// One divisor per pair, d/2 of them: GGUF's `rope_freqs.weight`.
struct RopeDivisors {
  std::vector<double> divisors;
};

using RopeScaling =
    std::variant<std::monostate, RopeLinear, RopeNtk, RopeDynamic, RopeYarn, RopeLong, RopeLlama3, RopeProportional, RopeDivisors>;

struct RopeConfig {
  std::int64_t rotary_dim = 0;  ///< even; smaller than the head dim for partial rotary: the elements past it pass through
  double base = 10000.0;
  RopeScaling scaling = {};
};

/// What a config comes to at a given sequence length (only RopeDynamic and RopeLong depend on it).
struct RopeFrequencies {
  std::vector<double> radians_per_token;  ///< [rotary_dim / 2]
  double magnitude = 1.0;                 ///< multiplies both cos and sin, so the rotated part of the logits gains its square
};
/// Throws InvalidArgument naming the field.
[[nodiscard]] HEED_API RopeFrequencies rope_frequencies(const RopeConfig& config, std::int64_t length);

/// Whether all frequencies change as a sequence grows (RopeDynamic, RopeLong). Keys that were rotated for a shorter length are wrong then:
/// cache them un-rotated, and rotate what a query looks at by the table of the length.
[[nodiscard]] HEED_API bool depends_on_length(const RopeConfig& config) noexcept;

/// cos and sin, float32 [length, rotary_dim / 2], magnitude included; angles computed in float64.
struct RopeTable {
  Tensor cos, sin;
};
/// Table for positions 0 .. length-1 of a sequence of `length` tokens.
[[nodiscard]] HEED_API RopeTable rope_table(const RopeConfig& config, std::int64_t length);

/// Rotates x [B, L, H, D] into `out` (same shape; x itself, or memory apart from every argument).
/// positions: int64 or int32, [L] or [B, L]; not given: 0 .. L-1.
/// cos and sin: float32 [table length, rotary_dim / 2] or full width [table length, rotary_dim] (column of element e; for tables whose halves differ).
/// A table of at most D/2 columns is taken as half width.
/// Types as in attention; arithmetic is float32 (float64 for float64). Throws InvalidArgument, also for a position outside of the table.
HEED_API void apply_rope_into(const MutableTensorView& out, const TensorView& x, const TensorView& cos, const TensorView& sin,
                              RopePairing pairing, const TensorView& positions = {});
[[nodiscard]] HEED_API Tensor apply_rope(const TensorView& x, const TensorView& cos, const TensorView& sin, RopePairing pairing,
                                         const TensorView& positions = {});

}  // namespace heed
