// SPDX-License-Identifier: Apache-2.0
// A decoder's weights: matrices stay in the mapped file, norms and biases are float32 copies.
#pragma once

#include <vector>

#include <heed/model/decoder.hpp>

#include "nn/linear.hpp"

namespace heed::model {

/// Empty where the architecture has none.
using Vector = std::vector<float>;

struct LayerWeights {
  Vector attention_norm;     // [width]
  nn::WeightMatrix q, k, v;  // [Hq*D, width] [Hkv*D, width] [Hkv*Dv, width]
  Vector q_bias, k_bias, v_bias;
  Vector q_norm, k_norm;       // [D]
  nn::WeightMatrix output;     // [width, Hq*Dv]
  Vector post_attention_norm;  // [width]
  Vector ffn_norm;             // [width]
  nn::WeightMatrix gate, up;   // [ffn_width, width]
  nn::WeightMatrix down;       // [width, ffn_width]
  Vector post_ffn_norm;        // [width]
};

struct DecoderWeights {
  nn::WeightMatrix embedding;  // [vocabulary, width]
  std::vector<LayerWeights> layer;
  Vector output_norm;     // [width]
  nn::WeightMatrix head;  // [vocabulary, width]; the embedding itself where the file has no output.weight
};

/// Throws FormatError for a tensor that is missing, has another shape, or is not understood: a weight that is silently left out
/// would change the model without anybody noticing.
[[nodiscard]] DecoderWeights load_weights(const GgufFile& file, const DecoderConfig& config);

}  // namespace heed::model
