// SPDX-License-Identifier: Apache-2.0
// What an architecture's name implies beyond the file's own numbers.
#pragma once

#include <heed/model/decoder.hpp>

namespace heed::model {

struct ArchitectureTraits {
  const char* name = "";
  RopePairing pairing = RopePairing::kHalf;
  Activation activation = Activation::kSilu;
  bool scaled_embedding = false;     ///< embeddings times sqrt(width)
  bool qkv_bias = false;             ///< q, k and v have biases
  bool qk_norm = false;              ///< q and k are RMS-normed per head before RoPE
  bool post_norms = false;           ///< a norm after attention and after the FFN, before each residual add
  bool alternating_windows = false;  ///< local (windowed) and global layers, each with its own RoPE base
};

/// Throws FormatError for an architecture that is not known.
[[nodiscard]] const ArchitectureTraits& architecture_traits(const GgufFile& file);

}  // namespace heed::model
