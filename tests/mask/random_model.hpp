// SPDX-License-Identifier: Apache-2.0
// Masks and their predicates at random.
#pragma once

#include <algorithm>
#include <utility>

#include "pattern_models.hpp"

namespace heed::test {

/// Sizes of the call that a mask is made for; tensor masks need them.
struct Call {
  std::int64_t batch = 1, heads = 1, tokens = 1, keys = 1;
};

/// Decisions read from a list of bytes: a shorter list or smaller bytes make a simpler mask, so that RapidCheck's shrinking works.
class Choices {
 public:
  explicit Choices(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}
  /// 0 <= result < n <= 65536; 0 once the list is used up.
  std::int64_t below(std::int64_t n) {
    const std::int64_t low = take();
    return (n > 256 ? low * 256 + take() : low) % n;
  }

 private:
  std::uint8_t take() { return at_ < bytes_.size() ? bytes_[at_++] : std::uint8_t{0}; }
  std::vector<std::uint8_t> bytes_;
  std::size_t at_ = 0;
};

inline BoolArray random_bools(Choices& choices, const Shape& shape) {
  BoolArray array(shape);
  // All set, rarely unset, half, rarely set.
  const std::int64_t density = choices.below(4);
  auto state = static_cast<std::uint64_t>(choices.below(65536)) + 1;
  for (std::int64_t i = 0; i < element_count(shape); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t draw = state >> 58;  // 0 .. 63
    array.data[static_cast<std::size_t>(i)] = density == 0 || (density == 1 ? draw != 0 : density == 2 ? draw < 32 : draw == 0);
  }
  return array;
}

inline Model random_documents(Choices& choices, const Call& call) {
  const std::int64_t length = call.tokens + call.keys + choices.below(8) - 4;
  const std::int64_t sequences = choices.below(2) == 0 ? 1 : call.batch;
  const std::int64_t longest_run = 1 + choices.below(80);
  const std::int64_t documents = 1 + choices.below(6);
  std::vector<std::vector<std::int64_t>> ids(static_cast<std::size_t>(sequences));
  for (auto& row : ids) {
    while (static_cast<std::int64_t>(row.size()) < length) {
      // Beyond 2^53, so that a detour through double would show.
      const std::int64_t id = (std::int64_t{1} << 60) - 3 + choices.below(documents);
      row.insert(row.end(), static_cast<std::size_t>(1 + choices.below(longest_run)), id);
    }
    row.resize(static_cast<std::size_t>(std::max<std::int64_t>(length, 0)));
  }
  return documents_model(ids);
}

/// Sizes of one to three axes with about `tokens` elements.
inline Shape random_grid(Choices& choices, std::int64_t tokens) {
  const std::int64_t inner = 1 + choices.below(12);
  const std::int64_t middle = 1 + choices.below(9);
  switch (choices.below(3)) {
    case 0: return {1 + choices.below(tokens)};
    case 1: return {1 + choices.below(tokens / inner + 1), inner};
    default: return {1 + choices.below(tokens / inner / middle + 1), middle, inner};
  }
}

inline Model random_neighborhood(Choices& choices, std::int64_t reach) {
  const Shape grid = random_grid(choices, reach);
  Shape window = grid, dilation = grid;
  for (int axis = 0; axis < grid.rank(); ++axis) {
    window[axis] = 1 + choices.below(std::min<std::int64_t>(grid[axis], 9));
    dilation[axis] = 1 + choices.below(choices.below(2) == 0 ? 1 : grid[axis] / window[axis]);
  }
  return neighborhood_model({.grid = grid, .window = window, .dilation = dilation});
}

inline Model random_shifted_window(Choices& choices, std::int64_t reach) {
  const Shape grid = random_grid(choices, reach);
  Shape window = grid, shift = grid;
  for (int axis = 0; axis < grid.rank(); ++axis) {
    window[axis] = 1 + choices.below(12);
    shift[axis] = choices.below(window[axis]);
  }
  return shifted_window_model({.grid = grid, .window = window, .shift = shift});
}

inline Model random_fixed(Choices& choices) {
  const std::int64_t vertical = 1 + choices.below(20);
  const std::int64_t rotation = 1 + choices.below(3);
  return fixed_model({.stride = vertical * rotation + choices.below(60), .vertical = vertical, .rotation = rotation});
}

inline Model random_keys_pattern(Choices& choices, std::int64_t reach) {
  RandomBlocksPattern pattern = {.block = 1 + choices.below(70), .per_row = choices.below(6)};
  if (choices.below(2) == 1) pattern.columns = choices.below(reach);
  pattern.seed = static_cast<std::uint64_t>(choices.below(1000));
  if (choices.below(3) == 2) pattern.heads = RandomHeads::kEach;
  return random_blocks_model(pattern);
}

inline Model random_tree(Choices& choices, std::int64_t reach) {
  std::vector<std::optional<std::int64_t>> parents(static_cast<std::size_t>(choices.below(reach)));
  for (std::size_t i = 1; i < parents.size(); ++i) {
    const std::int64_t back = choices.below(4) == 3 ? choices.below(static_cast<std::int64_t>(i) + 1) : 0;
    if (back < static_cast<std::int64_t>(i)) parents[i] = static_cast<std::int64_t>(i) - 1 - back;
  }
  return tree_model(parents);
}

/// Patterns of the literature; reach >= 3.
inline Model random_pattern(Choices& choices, std::int64_t reach) {
  const auto list = [&] {
    std::vector<std::int64_t> values(static_cast<std::size_t>(choices.below(9)));
    for (std::int64_t& value : values) value = choices.below(reach);
    return values;
  };
  switch (choices.below(12)) {
    case 0: return strided_model(1 + choices.below(reach));
    case 1: {
      const std::int64_t side = choices.below(reach);
      return dilated_model(side, 1 + choices.below(9));
    }
    case 2: return chunked_model(1 + choices.below(reach));
    case 3: return columns_model(list());
    case 4: return diagonals_model(list());
    case 5: return axial_model(random_grid(choices, reach));
    case 6: return random_neighborhood(choices, reach);
    case 7: return random_shifted_window(choices, reach);
    case 8: return random_fixed(choices);
    case 9: return random_keys_pattern(choices, reach);
    case 10: return random_tree(choices, reach);
    default: {
      const std::int64_t block = 1 + choices.below(70);
      const Model inner = choices.below(2) == 0 ? strided_model(1 + choices.below(5)) : window_model(choices.below(4), choices.below(3));
      return in_blocks_model(block, inner);
    }
  }
}

/// Kinds without tensors and numbers of heads: what every part of an expression may be.
inline Model random_plain_leaf(Choices& choices, const Call& call) {
  const std::int64_t reach = call.keys + 3;
  const auto side = [&]() -> std::optional<std::int64_t> {
    if (choices.below(3) == 2) return kUnbounded;
    return choices.below(reach);
  };
  switch (choices.below(8)) {
    case 7: return random_pattern(choices, reach);
    case 0: return none_model();
    case 1: return causal_model();
    case 2: {
      const auto left = side();
      return window_model(left, side());
    }
    case 3: return sliding_window_model(1 + choices.below(reach));
    case 4: return prefix_lm_model(choices.below(reach));
    case 5: return sink_tokens_model(choices.below(reach));
    default: {
      std::vector<std::int64_t> positions(static_cast<std::size_t>(choices.below(5)));
      for (std::int64_t& position : positions) position = choices.below(reach);
      return global_tokens_model(positions);
    }
  }
}

inline Model random_tensor_leaf(Choices& choices, const Call& call) {
  const auto axis = [&](std::int64_t size) { return choices.below(2) == 0 ? 1 : size; };
  // Rows and keys may also reach past the tensor.
  const auto short_axis = [&](std::int64_t size) { return choices.below(2) == 0 ? axis(size) : choices.below(size + 1); };
  switch (choices.below(3)) {
    case 0: return random_documents(choices, call);
    case 1: {
      const std::int64_t block = choices.below(3) == 0 ? 64 : 1 + choices.below(70);
      const std::int64_t blocks = short_axis((call.tokens + call.keys) / block + 1);
      const std::int64_t heads = axis(call.heads);
      return block_sparse_model(random_bools(choices, {heads, blocks, blocks}), block);
    }
    default: {
      const std::int64_t batch = axis(call.batch);
      const std::int64_t heads = axis(call.heads);
      const std::int64_t tokens = short_axis(call.tokens);
      return from_tensor_model(random_bools(choices, {batch, heads, tokens, short_axis(call.keys)}));
    }
  }
}

enum class Tensors { kWith, kWithout };

inline Model random_model(Choices& choices, const Call& call, Tensors tensors, int depth = 3) {
  const auto part = [&] { return random_model(choices, call, tensors, depth - 1); };
  switch (depth > 0 ? choices.below(9) : choices.below(4)) {
    case 3:
      if (tensors == Tensors::kWith) return random_tensor_leaf(choices, call);
      return random_plain_leaf(choices, call);
    case 4:
    case 5: {
      const Model a = part();
      return a & part();
    }
    case 6: {
      const Model a = part();
      return a | part();
    }
    case 7: return ~part();
    case 8: {
      std::vector<Model> heads;
      for (std::int64_t h = 0; h < call.heads; ++h) heads.push_back(part());
      return per_head_model(heads);
    }
    default: return random_plain_leaf(choices, call);
  }
}

}  // namespace heed::test
