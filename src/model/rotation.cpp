// SPDX-License-Identifier: Apache-2.0
#include "model/rotation.hpp"

#include <algorithm>
#include <variant>

namespace heed::model {

Rotation::Rotation(const RopeConfig& config, RopePairing pairing, std::int64_t capacity_tokens)
    : config_(config), pairing_(pairing), capacity_tokens_(capacity_tokens), rows_(rows_for(1)), table_(rope_table(config, rows_)) {}

void Rotation::set_length(std::int64_t length) {
  const std::int64_t rows = rows_for(length);
  if (rows == rows_) return;
  table_ = rope_table(config_, rows);
  rows_ = rows;
}

/// The longest sequence within the capacity that has the frequencies of `length` tokens: its table serves all of these.
std::int64_t Rotation::rows_for(std::int64_t length) const {
  if (const auto* dynamic = std::get_if<RopeDynamic>(&config_.scaling)) {
    return length > dynamic->max_positions ? length : std::min(dynamic->max_positions, capacity_tokens_);
  }
  if (const auto* rope = std::get_if<RopeLong>(&config_.scaling)) {
    return length > rope->original_length ? capacity_tokens_ : std::min(rope->original_length, capacity_tokens_);
  }
  return capacity_tokens_;
}

TensorView RotatedKeys::update(const Rotation& rotation, const TensorView& keys, std::int64_t committed) {
  const std::int64_t tokens = keys.size(1), heads = keys.size(2), dim = keys.size(3), width = heads * dim;
  const std::int64_t first = rotation.rows() == table_rows_ ? std::min(tokens_, committed) : 0;
  tokens_ = 0;  // nothing is known to be right should the next lines throw
  values_.resize(static_cast<std::size_t>(tokens * width));
  // The same rows of keys and table, so that a key's place among these is its position.
  const auto news = [&](const TensorView& rows, int axis) { return slice(rows, axis, first, rows.size(axis) - first); };
  const RopeTable& table = rotation.table();
  apply_rope_into(MutableTensorView(values_.data() + first * width, {1, tokens - first, heads, dim}), news(keys, 1), news(table.cos, 0),
                  news(table.sin, 0), rotation.pairing());
  tokens_ = tokens;
  table_rows_ = rotation.rows();
  return {values_.data(), {1, tokens, heads, dim}};
}

}  // namespace heed::model
