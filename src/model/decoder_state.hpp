// SPDX-License-Identifier: Apache-2.0
// What stands behind a Decoder.
#pragma once

#include <heed/model/decoder.hpp>

#include "model/weights.hpp"

namespace heed::model {

struct Decoder::State {
  DecoderConfig config;
  DecoderWeights weights;
};

}  // namespace heed::model
