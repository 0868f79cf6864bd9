// SPDX-License-Identifier: Apache-2.0
// Masks that show each position one interval of keys whose two ends never move back as the position grows: causal, window,
// sliding_window, prefix_lm, sink_tokens. A tile is decided by its first and its last position alone.
#include <algorithm>
#include <limits>
#include <memory>
#include <string>

#include "base/message.hpp"
#include "mask/node.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::Row;
using mask::Tile;

constexpr std::int64_t kFirst = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kLast = std::numeric_limits<std::int64_t>::max();

/// Keys [begin, end).
struct Keys {
  std::int64_t begin, end;
};

/// p + distance, or the last number where that does not fit; distance >= 0.
std::int64_t forward(std::int64_t p, std::int64_t distance) noexcept { return p > kLast - distance ? kLast : p + distance; }
std::int64_t backward(std::int64_t p, std::int64_t distance) noexcept { return p < kFirst + distance ? kFirst : p - distance; }

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
  bool equals(const MaskNode& other) const noexcept override { return band_ == static_cast<const BandNode&>(other).band_; }

 private:
  Band band_;
};

struct Causal {
  Keys keys(std::int64_t p) const noexcept { return {kFirst, p + 1}; }
  std::string text() const { return "causal"; }
  bool operator==(const Causal&) const = default;
};

struct Window {
  std::optional<std::int64_t> left, right;

  Keys keys(std::int64_t p) const noexcept { return {left ? backward(p, *left) : kFirst, right ? forward(p + 1, *right) : kLast}; }
  std::string text() const { return "window " + side(left) + " " + side(right); }
  bool operator==(const Window&) const = default;

  static std::string side(const std::optional<std::int64_t>& distance) { return distance ? std::to_string(*distance) : "*"; }
};

struct SlidingWindow {
  std::int64_t tokens;

  Keys keys(std::int64_t p) const noexcept { return {backward(p + 1, tokens), p + 1}; }
  std::string text() const { return "sliding_window " + std::to_string(tokens); }
  bool operator==(const SlidingWindow&) const = default;
};

struct PrefixLm {
  std::int64_t n;

  Keys keys(std::int64_t p) const noexcept { return {kFirst, std::max(n, p + 1)}; }
  std::string text() const { return "prefix_lm " + std::to_string(n); }
  bool operator==(const PrefixLm&) const = default;
};

struct SinkTokens {
  std::int64_t n;

  Keys keys(std::int64_t) const noexcept { return {kFirst, n}; }
  std::string text() const { return "sink_tokens " + std::to_string(n); }
  bool operator==(const SinkTokens&) const = default;
};

void require_at_least(std::int64_t least, const char* function, const char* argument, std::int64_t value) {
  if (value >= least) return;
  base::throw_invalid(function, argument, "at least " + std::to_string(least), std::to_string(value));
}

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

Mask Mask::prefix_lm(std::int64_t n) {
  require_at_least(0, "Mask::prefix_lm", "n", n);
  return Mask(std::make_shared<BandNode<PrefixLm>>(PrefixLm{n}));
}

Mask Mask::sink_tokens(std::int64_t n) {
  require_at_least(0, "Mask::sink_tokens", "n", n);
  return Mask(std::make_shared<BandNode<SinkTokens>>(SinkTokens{n}));
}

}  // namespace heed
