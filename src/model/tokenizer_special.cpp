// SPDX-License-Identifier: Apache-2.0
#include "model/tokenizer_special.hpp"

#include <algorithm>

namespace heed::model {

SpecialTokens::SpecialTokens(const Vocabulary& vocabulary, SpecialText control) {
  for (const auto& [text, token] : vocabulary.ids) {
    const TokenKind kind = vocabulary.kind(token);
    const bool is_control = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (kind == TokenKind::kUserDefined || (is_control && control == SpecialText::kParse)) entries_.push_back({text, token});
  }
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.text < b.text; });
  for (const Entry& entry : entries_) {
    longest_ = std::max(longest_, entry.text.size());
    starts_[static_cast<unsigned char>(entry.text[0])] = true;
  }
}

/// Files the longest entry that starts at `position` and has at most `limit` bytes under its length. Entries that share the first d bytes
/// are neighbours, so reading a byte narrows a range; the entry that ends there is its first.
void SpecialTokens::add_longest(std::string_view text, std::size_t position, std::size_t limit, Buckets& buckets) const {
  limit = std::min(limit, text.size() - position);
  auto low = entries_.begin();
  auto high = entries_.end();
  const Entry* best = nullptr;
  for (std::size_t depth = 0; depth < limit && low != high; ++depth) {
    const auto wanted = static_cast<unsigned char>(text[position + depth]);
    const auto at_depth = [&](const Entry& entry) { return static_cast<unsigned char>(entry.text[depth]); };
    low = std::partition_point(low, high, [&](const Entry& entry) { return at_depth(entry) < wanted; });
    high = std::partition_point(low, high, [&](const Entry& entry) { return at_depth(entry) == wanted; });
    if (low != high && low->text.size() == depth + 1) best = &*low++;
  }
  if (best != nullptr) buckets[best->text.size()].push_back({position, best->token});
}

/// A match that overlaps a longer or earlier one falls back to the next shorter entry at its place, so one match per place is kept at a
/// time: time and memory stay linear for runs of one character, where every length matches everywhere.
std::vector<Fragment> SpecialTokens::choose(std::string_view text) const {
  const std::size_t longest = std::min(longest_, text.size());  // a file may hold one enormous token
  Buckets buckets(longest + 1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (starts_[static_cast<unsigned char>(text[i])]) add_longest(text, i, longest, buckets);
  }
  std::vector<bool> taken(text.size(), false);
  std::vector<Fragment> chosen;
  for (std::size_t length = longest; length > 0; --length) {
    std::vector<Match> bucket = std::move(buckets[length]);
    std::sort(bucket.begin(), bucket.end(),
              [](const Match& a, const Match& b) { return a.token != b.token ? a.token < b.token : a.position < b.position; });
    for (const Match& match : bucket) {
      if (taken[match.position]) continue;
      // What is taken is at least as long as this match, so it covers one of its ends if it overlaps at all.
      if (taken[match.position + length - 1]) {
        add_longest(text, match.position, length - 1, buckets);
        continue;
      }
      std::fill_n(taken.begin() + static_cast<std::ptrdiff_t>(match.position), length, true);
      chosen.push_back({text.substr(match.position, length), match.token});
    }
  }
  std::sort(chosen.begin(), chosen.end(), [](const Fragment& a, const Fragment& b) { return a.text.data() < b.text.data(); });
  return chosen;
}

std::vector<Fragment> SpecialTokens::cut(std::string_view text) const {
  if (text.empty()) return {};
  if (entries_.empty()) return {{text, kNoToken}};
  std::vector<Fragment> fragments;
  std::size_t position = 0;
  const auto add_plain = [&](std::size_t end) {
    if (end > position) fragments.push_back({text.substr(position, end - position), kNoToken});
  };
  for (const Fragment& special : choose(text)) {
    const auto start = static_cast<std::size_t>(special.text.data() - text.data());
    add_plain(start);
    fragments.push_back(special);
    position = start + special.text.size();
  }
  add_plain(text.size());
  return fragments;
}

}  // namespace heed::model
