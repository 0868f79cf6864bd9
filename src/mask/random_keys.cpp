// SPDX-License-Identifier: Apache-2.0
// A few keys drawn at random for each query (BigBird, arXiv 2007.14062; there in blocks). A query's draw is a permutation of the n keys
// it may draw from, and the keys that land on one of the first `per_row` places are seen: always that many different ones, any key
// answered alone in constant time, and no list kept. The permutation is a generalized Feistel network over the smallest table that holds
// n numbers, walked until it ends below n (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002): whole-number arithmetic,
// the same on every machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <span>

#include "mask/node.hpp"
#include "mask/numbers.hpp"
#include "mask/random_keys.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::RandomKeysPattern;
using mask::Row;
using mask::Tile;

/// Mixes all bits (the finalizer of SplitMix64, Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9U;
  x = (x ^ x >> 27) * 0x94D049BB133111EBU;
  return x ^ x >> 31;
}

/// A permutation of [0, n), another for each key. A number is a place (row, column) of a table; the rounds in turn move the rows by a
/// hash of the column, and the columns by a hash of the row.
class Permutation {
 public:
  Permutation(std::uint64_t key, std::int64_t n) noexcept : n_(static_cast<std::uint64_t>(n)) {
    auto root = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(n)));
    while (root * root < n_) ++root;
    while (root > 1 && (root - 1) * (root - 1) >= n_) --root;
    rows_ = root;
    columns_ = (n_ + root - 1) / root;
    for (std::uint64_t& round_key : round_keys_) round_key = key = mixed(key);
  }
  /// Where a number goes.
  [[nodiscard]] std::int64_t place(std::int64_t number) const noexcept {
    auto x = static_cast<std::uint64_t>(number);
    do {
      std::uint64_t row = x / columns_;
      std::uint64_t column = x % columns_;
      for (std::size_t round = 0; round < kRounds; round += 2) {
        row = sum(row, below(rows_, column, round), rows_);
        column = sum(column, below(columns_, row, round + 1), columns_);
      }
      x = row * columns_ + column;
    } while (x >= n_);
    return static_cast<std::int64_t>(x);
  }
  /// Which number comes here.
  [[nodiscard]] std::int64_t number(std::int64_t place) const noexcept {
    auto x = static_cast<std::uint64_t>(place);
    do {
      std::uint64_t row = x / columns_;
      std::uint64_t column = x % columns_;
      for (std::size_t round = kRounds; round > 0; round -= 2) {
        column = sum(column, columns_ - below(columns_, row, round - 1), columns_);
        row = sum(row, rows_ - below(rows_, column, round - 2), rows_);
      }
      x = row * columns_ + column;
    } while (x >= n_);
    return static_cast<std::int64_t>(x);
  }

 private:
  /// With 4, pairs of 6 numbers come up twice as often as they should.
  static constexpr std::size_t kRounds = 8;

  /// A number of [0, limit), limit <= 2^31.
  [[nodiscard]] std::uint64_t below(std::uint64_t limit, std::uint64_t value, std::size_t round) const noexcept {
    return (mixed(value ^ round_keys_[round]) >> 32) * limit >> 32;
  }
  /// (a + b) mod limit, for a < limit and b <= limit.
  [[nodiscard]] static std::uint64_t sum(std::uint64_t a, std::uint64_t b, std::uint64_t limit) noexcept {
    return a + b >= limit ? a + b - limit : a + b;
  }

  std::uint64_t n_, rows_, columns_;
  std::array<std::uint64_t, kRounds> round_keys_{};
};

/// The keys that one query draws, in rising order. A plan asks for the same few queries at one range of keys after the other, so each
/// thread keeps the draws that it made last.
struct Draw {
  static constexpr std::int64_t kMost = 64;

  std::uint64_t key = 0;
  std::int64_t n = 0;
  std::int64_t count = 0;  ///< 0: nothing yet
  std::array<std::int64_t, kMost> keys{};

  [[nodiscard]] std::span<const std::int64_t> sorted() const noexcept { return {keys.data(), static_cast<std::size_t>(count)}; }
};

/// `count` of n keys; count <= Draw::kMost and < n. Neighbours in `place_kept` do not displace each other.
const Draw& draw(std::uint64_t key, std::int64_t n, std::int64_t count, std::uint64_t place_kept) noexcept {
  thread_local std::array<Draw, 64> kept;  // as many as a row block has rows
  Draw& slot = kept[place_kept % kept.size()];
  if (slot.key == key && slot.n == n && slot.count == count) return slot;
  slot.key = key;
  slot.n = n;
  slot.count = count;
  const Permutation permutation(key, n);
  for (std::int64_t place = 0; place < count; ++place) slot.keys[static_cast<std::size_t>(place)] = permutation.number(place);
  std::sort(slot.keys.begin(), slot.keys.begin() + count);
  return slot;
}

class RandomKeys final : public MaskNode {
 public:
  explicit RandomKeys(const RandomKeysPattern& pattern) : MaskNode({.uses_head = pattern.heads == RandomHeads::kEach}), pattern_(pattern) {}

  Coverage classify(const Tile& tile) const noexcept override {
    constexpr std::int64_t kMostLooks = 4096;  // beyond it "perhaps" will do
    const std::int64_t width = tile.key_end - tile.key_begin;
    std::int64_t looks = 0;
    bool any = false, missing = false;
    for (std::int64_t p = tile.first_position(); p <= tile.last_position() && !(any && missing); ++p) {
      looks += pattern_.per_row <= Draw::kMost ? 1 : std::min(width, kMostLooks) + 1;
      if (looks > kMostLooks) return Coverage::kMixed;
      const std::int64_t seen = count(tile.head, p, tile.key_begin, tile.key_end);
      any = any || seen > 0;
      missing = missing || seen < width;
    }
    if (any && missing) return Coverage::kMixed;
    return any ? Coverage::kFull : Coverage::kNone;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int keys) const noexcept override {
    const std::int64_t n = choices(row.position);
    if (pattern_.per_row >= n) return mask::bits_of_range(0, n, key_begin, keys);
    std::uint64_t result = 0;
    if (pattern_.per_row <= Draw::kMost) {
      const auto keys_drawn = drawn(row.head, row.position, n);
      auto next = std::lower_bound(keys_drawn.begin(), keys_drawn.end(), key_begin);
      for (; next != keys_drawn.end() && *next - key_begin < keys; ++next) result |= std::uint64_t{1} << (*next - key_begin);
      return result;
    }
    const Permutation permutation(key_of(row.head, row.position), n);
    for (int k = 0; k < keys; ++k) {
      const std::int64_t key = key_begin + k;
      if (key >= 0 && key < n && permutation.place(key) < pattern_.per_row) result |= std::uint64_t{1} << k;
    }
    return result;
  }

  void append_text(std::string& out) const override {
    out.append("random_keys ").append(std::to_string(pattern_.per_row)).append(" ");
    out.append(pattern_.columns ? std::to_string(*pattern_.columns) : "*").append(" ").append(std::to_string(pattern_.seed));
    if (pattern_.heads == RandomHeads::kEach) out += " each_head";
  }
  void append_description(std::string& out) const override {
    out.append("the key is one of ").append(std::to_string(pattern_.per_row)).append(" drawn at random for each query");
    out += pattern_.heads == RandomHeads::kEach ? " and head from " : " from ";
    out += pattern_.columns ? "the first " + std::to_string(*pattern_.columns) : std::string("those up to its own");
    out.append(" with seed ").append(std::to_string(pattern_.seed));
  }
  bool equals(const MaskNode& other) const noexcept override { return pattern_ == static_cast<const RandomKeys&>(other).pattern_; }

 private:
  /// Keys that a query may draw from: [0, result).
  std::int64_t choices(std::int64_t position) const noexcept {
    if (position < 0) return 0;
    return std::min(pattern_.columns.value_or(mask::forward(position, 1)), mask::kMostChoices);
  }
  std::uint64_t key_of(std::int64_t head, std::int64_t position) const noexcept {
    const std::uint64_t each = pattern_.heads == RandomHeads::kEach ? 1 + static_cast<std::uint64_t>(head) : 0;
    return mixed(mixed(mixed(pattern_.seed) ^ each) ^ static_cast<std::uint64_t>(position));
  }
  std::span<const std::int64_t> drawn(std::int64_t head, std::int64_t position, std::int64_t n) const noexcept {
    // A row block may hold the heads of a group token by token.
    const std::uint64_t place = static_cast<std::uint64_t>(position) + 16 * static_cast<std::uint64_t>(head);
    return draw(key_of(head, position), n, pattern_.per_row, place).sorted();
  }
  /// Keys of [begin, end) that a query sees.
  std::int64_t count(std::int64_t head, std::int64_t position, std::int64_t begin, std::int64_t end) const noexcept {
    const std::int64_t n = choices(position);
    begin = std::max<std::int64_t>(begin, 0);
    end = std::min(end, n);
    if (begin >= end) return 0;
    if (pattern_.per_row >= n) return end - begin;
    if (pattern_.per_row <= Draw::kMost) {
      const auto keys_drawn = drawn(head, position, n);
      return std::lower_bound(keys_drawn.begin(), keys_drawn.end(), end) - std::lower_bound(keys_drawn.begin(), keys_drawn.end(), begin);
    }
    const Permutation permutation(key_of(head, position), n);
    std::int64_t result = 0;
    for (std::int64_t key = begin; key < end; ++key) result += permutation.place(key) < pattern_.per_row ? 1 : 0;
    return result;
  }

  RandomKeysPattern pattern_;
};

}  // namespace

Mask mask::random_keys(const RandomKeysPattern& pattern) {
  require_at_least(0, "Mask::random_blocks", "per_row", pattern.per_row);
  require_at_least(0, "Mask::random_blocks", "columns", pattern.columns.value_or(0));
  return Mask(std::make_shared<RandomKeys>(pattern));
}

}  // namespace heed
