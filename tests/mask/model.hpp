// SPDX-License-Identifier: Apache-2.0
// Masks beside predicates that say the same in the words of the manual, one element at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <heed/mask.hpp>

namespace heed::test {

/// visible(batch entry, query head, query index, position, key)
using Predicate = std::function<bool(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t p, std::int64_t j)>;

struct Model {
  Mask mask;
  Predicate visible;
};

inline Model none_model() {
  return {Mask::none(), [](auto...) { return true; }};
}

inline Model causal_model() {
  return {Mask::causal(), [](auto, auto, auto, std::int64_t p, std::int64_t j) { return j <= p; }};
}

inline Model window_model(std::optional<std::int64_t> left, std::optional<std::int64_t> right) {
  return {Mask::window(left, right), [left, right](auto, auto, auto, std::int64_t p, std::int64_t j) {
            return (!left || p - j <= *left) && (!right || j - p <= *right);
          }};
}

inline Model sliding_window_model(std::int64_t tokens) {
  return {Mask::sliding_window(tokens), [tokens](auto, auto, auto, std::int64_t p, std::int64_t j) { return j <= p && p - j < tokens; }};
}

inline Model prefix_lm_model(std::int64_t n) {
  return {Mask::prefix_lm(n), [n](auto, auto, auto, std::int64_t p, std::int64_t j) { return j < n || j <= p; }};
}

inline Model sink_tokens_model(std::int64_t n) {
  return {Mask::sink_tokens(n), [n](auto, auto, auto, auto, std::int64_t j) { return j < n; }};
}

inline Model global_tokens_model(const std::vector<std::int64_t>& positions) {
  return {Mask::global_tokens(positions), [positions](auto, auto, auto, std::int64_t p, std::int64_t j) {
            for (const std::int64_t position : positions) {
              if (position == p || position == j) return true;
            }
            return false;
          }};
}

/// ids [batch or 1][L].
inline Model documents_model(const std::vector<std::vector<std::int64_t>>& ids) {
  const auto length = static_cast<std::int64_t>(ids.front().size());
  std::vector<std::int64_t> flat;
  for (const auto& row : ids) flat.insert(flat.end(), row.begin(), row.end());
  const Shape shape{static_cast<std::int64_t>(ids.size()), length};
  return {Mask::documents(TensorView(flat.data(), shape)), [ids, length](std::int64_t b, auto, auto, std::int64_t p, std::int64_t j) {
            if (p < 0 || p >= length || j >= length) return false;
            const auto& row = ids[ids.size() == 1 ? 0 : static_cast<std::size_t>(b)];
            return row[static_cast<std::size_t>(p)] == row[static_cast<std::size_t>(j)];
          }};
}

/// A boolean array of up to four axes that tests index directly.
struct BoolArray {
  Shape shape;
  std::shared_ptr<bool[]> data;

  explicit BoolArray(const Shape& sizes) : shape(sizes), data(new bool[static_cast<std::size_t>(element_count(sizes)) + 1]()) {}
  [[nodiscard]] TensorView view() const { return TensorView(data.get(), shape); }
};

/// layout [heads or 1][rows][columns].
inline Model block_sparse_model(const BoolArray& layout, std::int64_t block) {
  const Shape s = layout.shape;
  const TensorView given = s[0] == 1 ? TensorView(layout.data.get(), Shape{s[1], s[2]}) : layout.view();
  return {Mask::block_sparse(given, block), [layout, s, block](auto, std::int64_t h, auto, std::int64_t p, std::int64_t j) {
            if (p < 0 || p / block >= s[1] || j / block >= s[2]) return false;
            const std::int64_t head = s[0] == 1 ? 0 : h;
            return layout.data[static_cast<std::size_t>((head * s[1] + p / block) * s[2] + j / block)];
          }};
}

/// mask [B or 1][Hq or 1][Lq or 1][Lk or 1].
inline Model from_tensor_model(const BoolArray& mask) {
  const Shape s = mask.shape;
  return {Mask::from_tensor(mask.view()), [mask, s](std::int64_t b, std::int64_t h, std::int64_t i, auto, std::int64_t j) {
            const std::int64_t index[] = {b, h, i, j};
            std::int64_t offset = 0;
            for (int axis = 0; axis < 4; ++axis) {
              const std::int64_t at = s[axis] == 1 ? 0 : index[axis];
              if (at >= s[axis]) return false;
              offset = offset * s[axis] + at;
            }
            return mask.data[static_cast<std::size_t>(offset)];
          }};
}

inline Model per_head_model(const std::vector<Model>& heads) {
  std::vector<Mask> masks;
  for (const Model& head : heads) masks.push_back(head.mask);
  return {Mask::per_head(masks), [heads](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t p, std::int64_t j) {
            return heads[static_cast<std::size_t>(h)].visible(b, h, i, p, j);
          }};
}

inline Model operator&(const Model& a, const Model& b) {
  return {a.mask & b.mask, [x = a.visible, y = b.visible](auto... at) { return x(at...) && y(at...); }};
}
inline Model operator|(const Model& a, const Model& b) {
  return {a.mask | b.mask, [x = a.visible, y = b.visible](auto... at) { return x(at...) || y(at...); }};
}
inline Model operator~(const Model& a) {
  return {~a.mask, [x = a.visible](auto... at) { return !x(at...); }};
}

}  // namespace heed::test
