// SPDX-License-Identifier: Apache-2.0
// Masks that show each position one interval of keys whose two ends never move back as the position grows: causal, window,
// sliding_window, chunked, prefix_lm, sink_tokens. A tile is decided by its first and its last position alone.
#include <algorithm>
#include <memory>
#include <string>

#include "mask/node.hpp"
#include "mask/numbers.hpp"

namespace heed {
namespace {

using mask::backward;
using mask::Coverage;
using mask::forward;
using mask::kFirst;
using mask::kLast;
using mask::require_at_least;
using mask::Row;
using mask::Tile;

/// Keys [begin, end).
struct Keys {
  std::int64_t begin, end;
};

template <class Band>
class BandNode final : public MaskNode {
 public:
  explicit BandNode(const Band& band) : MaskNode({}), band_(band) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const Keys first = band_.keys(tile.first_position());
    const Keys last = band_.keys(tile.last_position());
    if (tile.key_end <= first.begin || tile.key_begin >= last.end) return Coverage::kNone;
    if (last.begin <= tile.key_begin && tile.key_end <= first.end) return Coverage::kFull;
    return Coverage::kMixed;
  }
  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const Keys keys = band_.keys(row.position);
    return mask::bits_of_range(keys.begin, keys.end, key_begin, count);
  }
  void append_text(std::string& out) const override { out += band_.text(); }
  void append_description(std::string& out) const override { out += band_.description(); }
  bool equals(const MaskNode& other) const noexcept override { return band_ == static_cast<const BandNode&>(other).band_; }

 private:
  Band band_;
};

struct Causal {
  Keys keys(std::int64_t p) const noexcept { return {kFirst, p + 1}; }
  std::string text() const { return "causal"; }
  std::string description() const { return "the key is not after the query"; }
  bool operator==(const Causal&) const = default;
};

struct Window {
  std::optional<std::int64_t> left, right;

  Keys keys(std::int64_t p) const noexcept { return {left ? backward(p, *left) : kFirst, right ? forward(p + 1, *right) : kLast}; }
  std::string text() const { return "window " + side(left) + " " + side(right); }
  std::string description() const {
    return "the key lies at most " + reach(left) + " before and at most " + reach(right) + " after the query";
  }
  bool operator==(const Window&) const = default;

  static std::string side(const std::optional<std::int64_t>& distance) { return distance ? std::to_string(*distance) : "*"; }
  static std::string reach(const std::optional<std::int64_t>& distance) { return distance ? std::to_string(*distance) : "any distance"; }
};

struct SlidingWindow {
  std::int64_t tokens;

  Keys keys(std::int64_t p) const noexcept { return {backward(p + 1, tokens), p + 1}; }
  std::string text() const { return "sliding_window " + std::to_string(tokens); }
  std::string description() const { return "the key is among the last " + std::to_string(tokens) + " up to the query's own"; }
  bool operator==(const SlidingWindow&) const = default;
};

/// Chunks follow each other without a gap, so that the keys of neighbouring positions have none either.
struct Chunked {
  std::int64_t tokens;

  Keys keys(std::int64_t p) const noexcept {
    const std::int64_t begin = backward(p, mask::floor_modulo(p, tokens));
    return {begin, forward(begin, tokens)};
  }
  std::string text() const { return "chunked " + std::to_string(tokens); }
  std::string description() const { return "both lie in the same chunk of " + std::to_string(tokens) + " tokens"; }
  bool operator==(const Chunked&) const = default;
};

struct PrefixLm {
  std::int64_t n;

  Keys keys(std::int64_t p) const noexcept { return {kFirst, std::max(n, p + 1)}; }
  std::string text() const { return "prefix_lm " + std::to_string(n); }
  std::string description() const { return "the key is among the first " + std::to_string(n) + " or not after the query"; }
  bool operator==(const PrefixLm&) const = default;
};

struct SinkTokens {
  std::int64_t n;

  Keys keys(std::int64_t) const noexcept { return {kFirst, n}; }
  std::string text() const { return "sink_tokens " + std::to_string(n); }
  std::string description() const { return "the key is among the first " + std::to_string(n); }
  bool operator==(const SinkTokens&) const = default;
};

}  // namespace

Mask Mask::causal() {
  static const mask::NodePointer node = std::make_shared<BandNode<Causal>>(Causal{});
  return Mask(node);
}

Mask Mask::window(std::optional<std::int64_t> left, std::optional<std::int64_t> right) {
  require_at_least(0, "Mask::window", "left", left.value_or(0));
  require_at_least(0, "Mask::window", "right", right.value_or(0));
  return Mask(std::make_shared<BandNode<Window>>(Window{left, right}));
}

Mask Mask::sliding_window(std::int64_t tokens) {
  require_at_least(1, "Mask::sliding_window", "tokens", tokens);
  return Mask(std::make_shared<BandNode<SlidingWindow>>(SlidingWindow{tokens}));
}

Mask Mask::chunked(std::int64_t tokens) {
  require_at_least(1, "Mask::chunked", "tokens", tokens);
  return Mask(std::make_shared<BandNode<Chunked>>(Chunked{tokens}));
}

Mask Mask::prefix_lm(std::int64_t n) {
  require_at_least(0, "Mask::prefix_lm", "n", n);
  return Mask(std::make_shared<BandNode<PrefixLm>>(PrefixLm{n}));
}

Mask Mask::sink_tokens(std::int64_t n) {
  require_at_least(0, "Mask::sink_tokens", "n", n);
  return Mask(std::make_shared<BandNode<SinkTokens>>(SinkTokens{n}));
}

}  // namespace heed
