// SPDX-License-Identifier: Apache-2.0
// Masks beside predicates that say the same in the words of the manual, one element at a time; both can be made at random.
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

/// Sizes of the call that a mask is made for; tensor masks need them.
struct Call {
  std::int64_t batch = 1, heads = 1, tokens = 1, keys = 1;
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

/// Kinds without tensors and heads: what every part of an expression may be.
inline Model random_plain_leaf(Choices& choices, const Call& call) {
  const std::int64_t reach = call.keys + 3;
  const auto side = [&]() -> std::optional<std::int64_t> {
    if (choices.below(3) == 2) return kUnbounded;
    return choices.below(reach);
  };
  switch (choices.below(7)) {
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
