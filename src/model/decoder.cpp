// SPDX-License-Identifier: Apache-2.0
#include "model/decoder_state.hpp"

namespace heed::model {

Decoder::Decoder(const GgufFile& file, const RopeOverride& rope) {
  DecoderConfig config = read_config(file, rope);
  DecoderWeights weights = load_weights(file, config);
  state_ = std::make_unique<const State>(State{std::move(config), std::move(weights)});
}

Decoder::Decoder(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

const DecoderConfig& Decoder::config() const noexcept { return state_->config; }

}  // namespace heed::model
