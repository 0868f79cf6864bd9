// SPDX-License-Identifier: Apache-2.0
// The patterns of the literature beside predicates in the words of their papers.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <set>
#include <vector>

#include "model.hpp"

namespace heed::test {

inline bool contains(const std::vector<std::int64_t>& list, std::int64_t value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

/// Number of the block of n tokens, counted by walking there.
inline std::int64_t block_number(std::int64_t p, std::int64_t n) {
  std::int64_t block = 0;
  while (p < block * n) --block;
  while (p >= (block + 1) * n) ++block;
  return block;
}

inline Model dilated_model(std::int64_t side, std::int64_t dilation) {
  return {Mask::dilated(side, dilation), [side, dilation](auto, auto, auto, std::int64_t p, std::int64_t j) {
            const std::int64_t distance = std::abs(p - j);
            return distance % dilation == 0 && distance / dilation <= side;
          }};
}

inline Model strided_model(std::int64_t stride) {
  return {Mask::strided(stride), [stride](auto, auto, auto, std::int64_t p, std::int64_t j) { return std::abs(p - j) % stride == 0; }};
}

inline Model chunked_model(std::int64_t tokens) {
  return {Mask::chunked(tokens),
          [tokens](auto, auto, auto, std::int64_t p, std::int64_t j) { return block_number(p, tokens) == block_number(j, tokens); }};
}

inline Model fixed_model(const FixedPattern& pattern) {
  return {Mask::fixed(pattern), [pattern](auto, std::int64_t h, auto, std::int64_t p, std::int64_t j) {
            if (block_number(p, pattern.stride) == block_number(j, pattern.stride)) return true;
            const std::int64_t from_end = pattern.stride - 1 - j % pattern.stride;  // 0: the last of its block
            return from_end / pattern.vertical == h % pattern.rotation;
          }};
}

inline Model columns_model(const std::vector<std::int64_t>& positions) {
  return {Mask::columns(positions), [positions](auto, auto, auto, auto, std::int64_t j) { return contains(positions, j); }};
}

inline Model diagonals_model(const std::vector<std::int64_t>& distances) {
  return {Mask::diagonals(distances), [distances](auto, auto, auto, std::int64_t p, std::int64_t j) { return contains(distances, p - j); }};
}

/// Coordinates by counting up from the origin would be slow: by repeated division from the inside.
inline std::vector<std::int64_t> coordinates(const Shape& grid, std::int64_t token) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(grid.rank()));
  for (int axis = grid.rank() - 1; axis >= 0; --axis) {
    result[static_cast<std::size_t>(axis)] = token % grid[axis];
    token /= grid[axis];
  }
  return result;
}

/// `asks(coordinates of the query, of the key)` for pairs on the grid.
template <class Ask>
Predicate on_grid(const Shape& grid, Ask asks) {
  const std::int64_t size = element_count(grid);
  return [grid, size, asks](auto, auto, auto, std::int64_t p, std::int64_t j) {
    return p >= 0 && p < size && j < size && asks(coordinates(grid, p), coordinates(grid, j));
  };
}

using Coordinates = std::vector<std::int64_t>;

inline Model axial_model(const Shape& grid) {
  return {Mask::axial(grid), on_grid(grid, [](const Coordinates& x, const Coordinates& y) {
            int different = 0;
            for (std::size_t axis = 0; axis < x.size(); ++axis) different += x[axis] != y[axis] ? 1 : 0;
            return different < 2;
          })};
}

/// Among the n keys of x's remainder, the `window` nearest that lie inside; of an even window one more before than behind.
inline bool neighbors(std::int64_t x, std::int64_t y, std::int64_t size, std::int64_t window, std::int64_t dilation) {
  std::vector<std::int64_t> group;
  for (std::int64_t at = x % dilation; at < size; at += dilation) group.push_back(at);
  auto begin = std::find(group.begin(), group.end(), x);
  for (std::int64_t step = 0; step < window / 2 && begin != group.begin(); ++step) --begin;
  while (group.end() - begin < window) --begin;
  return std::find(begin, begin + window, y) != begin + window;
}

inline Model neighborhood_model(const NeighborhoodPattern& pattern) {
  return {Mask::neighborhood(pattern), on_grid(pattern.grid, [pattern](const Coordinates& x, const Coordinates& y) {
            for (std::size_t axis = 0; axis < x.size(); ++axis) {
              const int a = static_cast<int>(axis);
              const std::int64_t dilation = pattern.dilation.rank() == 0 ? 1 : pattern.dilation[a];
              if (!neighbors(x[axis], y[axis], pattern.grid[a], pattern.window[a], dilation)) return false;
            }
            return true;
          })};
}

/// As Swin does it: roll the padded axis by the shift, cut it into windows, and number the regions before, between and behind the seam.
inline bool same_shifted_window(std::int64_t x, std::int64_t y, std::int64_t size, std::int64_t window, std::int64_t shift) {
  const std::int64_t padded = (size + window - 1) / window * window;
  const auto rolled = [&](std::int64_t at) { return (at - shift + padded) % padded; };
  const auto region = [&](std::int64_t at) { return at < padded - window ? 0 : at < padded - shift ? 1 : 2; };
  return rolled(x) / window == rolled(y) / window && region(rolled(x)) == region(rolled(y));
}

inline Model shifted_window_model(const ShiftedWindowPattern& pattern) {
  return {Mask::shifted_window(pattern), on_grid(pattern.grid, [pattern](const Coordinates& x, const Coordinates& y) {
            for (std::size_t axis = 0; axis < x.size(); ++axis) {
              const int a = static_cast<int>(axis);
              const std::int64_t shift = pattern.shift.rank() == 0 ? 0 : pattern.shift[a];
              if (!same_shifted_window(x[axis], y[axis], pattern.grid[a], pattern.window[a], shift)) return false;
            }
            return true;
          })};
}

inline Model in_blocks_model(std::int64_t block, const Model& inner) {
  return {Mask::in_blocks(block, inner.mask), [block, inner](std::int64_t b, std::int64_t h, auto, std::int64_t p, std::int64_t j) {
            const std::int64_t row = block_number(p, block);
            return inner.visible(b, h, row, row, block_number(j, block));
          }};
}

/// The key blocks that a query block draws, by the rule in src/mask/random_keys.cpp written out once more.
inline std::set<std::int64_t> drawn_blocks(const RandomBlocksPattern& pattern, std::int64_t head, std::int64_t row) {
  const auto mix = [](std::uint64_t x) {
    x += 0x9E3779B97F4A7C15U;
    x ^= x >> 30;
    x *= 0xBF58476D1CE4E5B9U;
    x ^= x >> 27;
    x *= 0x94D049BB133111EBU;
    x ^= x >> 31;
    return x;
  };
  std::set<std::int64_t> drawn;
  if (row < 0) return drawn;
  const auto n = static_cast<std::uint64_t>(pattern.columns.value_or(row + 1));
  std::uint64_t rows = 1;  // of the smallest square that holds n, without its empty columns
  while (rows * rows < n) ++rows;
  std::uint64_t columns = 1;
  while (rows * columns < n) ++columns;
  const std::uint64_t each = pattern.heads == RandomHeads::kEach ? 1 + static_cast<std::uint64_t>(head) : 0;
  const std::uint64_t key = mix(mix(mix(pattern.seed) ^ each) ^ static_cast<std::uint64_t>(row));
  for (std::uint64_t number = 0; number < n; ++number) {
    std::uint64_t at = number;
    do {
      std::uint64_t round_key = key;
      std::uint64_t row_at = at / columns, column_at = at % columns;
      for (int round = 0; round < 8; ++round) {
        round_key = mix(round_key);
        const bool rows_move = round % 2 == 0;
        const std::uint64_t hash = mix((rows_move ? column_at : row_at) ^ round_key) / (std::uint64_t{1} << 32);
        if (rows_move) row_at = (row_at + hash * rows / (std::uint64_t{1} << 32)) % rows;
        if (!rows_move) column_at = (column_at + hash * columns / (std::uint64_t{1} << 32)) % columns;
      }
      at = row_at * columns + column_at;
    } while (at >= n);
    if (at < static_cast<std::uint64_t>(pattern.per_row)) drawn.insert(static_cast<std::int64_t>(number));
  }
  return drawn;
}

inline Model random_blocks_model(const RandomBlocksPattern& pattern) {
  return {Mask::random_blocks(pattern), [pattern](auto, std::int64_t h, auto, std::int64_t p, std::int64_t j) {
            return drawn_blocks(pattern, h, block_number(p, pattern.block)).count(block_number(j, pattern.block)) > 0;
          }};
}

/// Walks up from the query's token.
inline Model tree_model(const std::vector<std::optional<std::int64_t>>& parents) {
  return {Mask::tree(parents), [parents](auto, auto, std::int64_t i, std::int64_t p, std::int64_t j) {
            if (i < 0 || i >= static_cast<std::int64_t>(parents.size())) return false;
            if (j < p - i) return true;
            for (std::optional<std::int64_t> token = i; token; token = parents[static_cast<std::size_t>(*token)]) {
              if (*token == j - (p - i)) return true;
            }
            return false;
          }};
}

inline Model longformer_model(std::int64_t side, const std::vector<std::int64_t>& globals) {
  return {Mask::longformer(side, globals), [side, globals](auto, auto, auto, std::int64_t p, std::int64_t j) {
            return std::abs(p - j) <= side || contains(globals, p) || contains(globals, j);
          }};
}

inline Model big_bird_model(const BigBirdPattern& pattern) {
  const RandomBlocksPattern random = {pattern.block, pattern.random_blocks, pattern.columns, pattern.seed, pattern.heads};
  return {Mask::big_bird(pattern), [pattern, random](auto, std::int64_t h, auto, std::int64_t p, std::int64_t j) {
            const std::int64_t row = block_number(p, pattern.block), column = block_number(j, pattern.block);
            const bool global = (row >= 0 && row < pattern.global_blocks) || column < pattern.global_blocks;
            return global || std::abs(row - column) <= pattern.window_blocks / 2 || drawn_blocks(random, h, row).count(column) > 0;
          }};
}

inline Model vertical_slash_model(const std::vector<std::int64_t>& columns, const std::vector<std::int64_t>& diagonals) {
  return {Mask::vertical_slash(columns, diagonals), [columns, diagonals](auto, auto, auto, std::int64_t p, std::int64_t j) {
            return j <= p && (contains(columns, j) || contains(diagonals, p - j));
          }};
}

inline Model sinks_and_window_model(std::int64_t sinks, std::int64_t window) {
  return {Mask::sinks_and_window(sinks, window),
          [sinks, window](auto, auto, auto, std::int64_t p, std::int64_t j) { return j <= p && (j < sinks || p - j < window); }};
}

/// One of each, at sizes that matter within 12 tokens; heads = 2.
inline std::vector<Model> every_pattern() {
  const std::optional<std::int64_t> root = kUnbounded;
  return {
      dilated_model(2, 2),
      dilated_model(0, 3),
      dilated_model(3, 1),
      strided_model(1),
      strided_model(3),
      strided_model(5),
      chunked_model(1),
      chunked_model(4),
      fixed_model({.stride = 4}),
      fixed_model({.stride = 5, .vertical = 2, .rotation = 2}),
      fixed_model({.stride = 3, .vertical = 3}),
      fixed_model({.stride = 7, .vertical = 5}),
      columns_model({}),
      columns_model({7, 1, 2, 1}),
      diagonals_model({}),
      diagonals_model({0, 1, 2, 6}),
      axial_model({11}),
      axial_model({3, 4}),
      axial_model({2, 3, 2}),
      axial_model({1, 5, 1, 2}),
      neighborhood_model({.grid = {10}, .window = {3}}),
      neighborhood_model({.grid = {11}, .window = {4}}),
      neighborhood_model({.grid = {11}, .window = {3}, .dilation = {3}}),
      neighborhood_model({.grid = {3, 4}, .window = {3, 2}}),
      neighborhood_model({.grid = {2, 5}, .window = {1, 2}, .dilation = {2, 2}}),
      neighborhood_model({.grid = {2, 2, 3}, .window = {2, 1, 2}}),
      shifted_window_model({.grid = {12}, .window = {4}}),
      shifted_window_model({.grid = {11}, .window = {4}, .shift = {2}}),
      shifted_window_model({.grid = {4, 3}, .window = {2, 2}, .shift = {1, 1}}),
      shifted_window_model({.grid = {2, 2, 3}, .window = {2, 1, 2}, .shift = {1, 0, 1}}),
      in_blocks_model(3, window_model(1, 0)),
      in_blocks_model(1, causal_model()),
      in_blocks_model(4, ~strided_model(2)),
      random_blocks_model({.block = 2, .per_row = 2, .columns = 6, .seed = 3}),
      random_blocks_model({.block = 1, .per_row = 1, .seed = 1}),
      random_blocks_model({.block = 3, .per_row = 1, .columns = 4, .seed = 9, .heads = RandomHeads::kEach}),
      random_blocks_model({.block = 2, .per_row = 9, .columns = 5}),
      tree_model({}),
      tree_model({root, 0, 0, 1, 1, 2, root, 6}),
      tree_model({root, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}),
      longformer_model(1, {0, 6}),
      big_bird_model({.block = 2, .global_blocks = 1, .random_blocks = 1, .columns = 6, .seed = 5}),
      vertical_slash_model({0, 4}, {0, 1, 5}),
      sinks_and_window_model(2, 3),
  };
}

}  // namespace heed::test
