// SPDX-License-Identifier: Apache-2.0
// Tables of cosines and sines. Angles are float64: in float32 the angle of position 100 000 is already wrong in its third decimal.
#include <cmath>

#include <heed/rope.hpp>

#include "base/parallel.hpp"

namespace heed {

RopeTable rope_table(const RopeConfig& config, std::int64_t length) {
  const RopeFrequencies frequencies = rope_frequencies(config, length);
  const std::vector<double>& theta = frequencies.radians_per_token;
  const auto pairs = static_cast<std::int64_t>(theta.size());
  RopeTable table{Tensor(DType::kFloat32, {length, pairs}), Tensor(DType::kFloat32, {length, pairs})};
  auto* cos = table.cos.data_as<float>();
  auto* sin = table.sin.data_as<float>();
  base::parallel_for(length, base::num_threads(), [&](std::int64_t position, int) noexcept {
    for (std::int64_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(position) * theta[static_cast<std::size_t>(i)];
      cos[position * pairs + i] = static_cast<float>(std::cos(angle) * frequencies.magnitude);
      sin[position * pairs + i] = static_cast<float>(std::sin(angle) * frequencies.magnitude);
    }
  });
  return table;
}

}  // namespace heed
