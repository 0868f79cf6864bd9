// SPDX-License-Identifier: Apache-2.0
// Where the gradient of a bias is summed in float32 before it is rounded once.
#pragma once

#include "attention/arguments.hpp"

namespace heed::front {

/// Which tasks of a backward pass add to the same elements of dbias.
enum class BiasSharing : std::uint8_t {
  kNone,   ///< none
  kPairs,  ///< those of the same keys, in several (sequence, KV head) pairs
  kKeys,   ///< all: the key axis was broadcast
};

class BiasSums {
 public:
  /// `dbias` as the caller gave it, or none. float32 sums in place.
  BiasSums(const MutableTensorView& dbias, const Sizes& sizes);

  [[nodiscard]] BiasSharing sharing() const noexcept { return sharing_; }
  /// Float32 over [B, Hq, Lq, Lk], strides 0 where it was broadcast, or none.
  [[nodiscard]] const TensorView& sums() const noexcept { return sums_; }
  /// Rounds the sums to the caller's memory, if they are not there.
  void write() const;

 private:
  MutableTensorView dbias_;
  BiasSharing sharing_ = BiasSharing::kNone;
  base::Scratch memory_;
  TensorView sums_;
};

}  // namespace heed::front
