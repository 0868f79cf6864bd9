// SPDX-License-Identifier: Apache-2.0
// What a scaling rule does to each pair of a rotation, in bands of neighbours that fare alike, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <heed/rope.hpp>

namespace heed::cli {

enum class Treatment : std::uint8_t {
  kKept,          ///< turns as trained
  kBlended,       ///< slower than trained, by less than the whole factor
  kInterpolated,  ///< slower by the factor, or more
  kFaster,        ///< faster than trained
  kStopped,       ///< does not turn
};
[[nodiscard]] const char* to_string(Treatment treatment) noexcept;

/// One pair. The wavelength and the turns are those of the unscaled rotation: what training showed.
struct RopePair {
  double wavelength_tokens = 0;
  double trained_turns = 0;  ///< within the trained length
  double divisor = 1;        ///< unscaled over scaled frequency; infinite where the pair does not turn
  Treatment treatment = Treatment::kKept;
};

/// Pairs [first, last].
struct RopeBand {
  std::size_t first = 0, last = 0;
  Treatment treatment = Treatment::kKept;
  std::string why;
};

struct RopeExplanation {
  double factor = 1;  ///< the rule's, at this length; 1 for none
  double magnitude = 1;
  std::vector<RopePair> pairs;
  std::vector<RopeBand> bands;
};

/// For a sequence of `length` tokens. Throws what rope_frequencies throws.
[[nodiscard]] RopeExplanation explain_rope(const RopeConfig& config, std::int64_t length, std::int64_t trained_length);

}  // namespace heed::cli
