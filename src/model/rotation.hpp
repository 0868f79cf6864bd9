// SPDX-License-Identifier: Apache-2.0
// The rotation of the layers that share a RopeConfig, while their sequence grows.
#pragma once

#include <cstdint>
#include <vector>

#include <heed/rope.hpp>
#include <heed/tensor.hpp>

namespace heed::model {

/// The table that is in force, and when it changes.
class Rotation {
 public:
  Rotation(const RopeConfig& config, RopePairing pairing, std::int64_t capacity_tokens);

  /// The frequencies depend on the length, so that keys are cached un-rotated.
  [[nodiscard]] bool follows_length() const noexcept { return depends_on_length(config_); }
  /// Puts the table of a sequence of `length` tokens in force: rows for its positions at least.
  void set_length(std::int64_t length);

  [[nodiscard]] RopePairing pairing() const noexcept { return pairing_; }
  [[nodiscard]] const RopeTable& table() const noexcept { return table_; }
  /// Rows of the table. Tables of one Rotation that differ have different numbers of rows.
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }

 private:
  [[nodiscard]] std::int64_t rows_for(std::int64_t length) const;

  RopeConfig config_;
  RopePairing pairing_;
  std::int64_t capacity_tokens_;
  std::int64_t rows_;
  RopeTable table_;
};

/// A layer's keys, rotated: a copy beside the un-rotated ones of the cache. Float32.
class RotatedKeys {
 public:
  /// Brings the copy up to `keys` [1, n, Hkv, D], the first `committed` of which are those of the last call; returns it, same shape.
  /// Cost: rotates keys past `committed`, and all of them where the table is another one than last time.
  TensorView update(const Rotation& rotation, const TensorView& keys, std::int64_t committed);
  [[nodiscard]] std::int64_t bytes() const noexcept { return static_cast<std::int64_t>(values_.size() * sizeof(float)); }

 private:
  std::vector<float> values_;  // [n, Hkv, D]
  std::int64_t tokens_ = 0;
  std::int64_t table_rows_ = 0;
};

}  // namespace heed::model
