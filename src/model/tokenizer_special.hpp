// SPDX-License-Identifier: Apache-2.0
// Cuts tokens that are written out in the text (<|im_start|>, runs of newlines, ...) out of it before anything else looks at it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/tokenizer_vocabulary.hpp"

namespace heed::model {

/// A stretch of text that is one special token, or that is still to be tokenised.
struct Fragment {
  std::string_view text;
  Token token = kNoToken;
};

/// The longest text (in bytes) is cut out everywhere first, left to right; then the next shorter in what is left, and so on; texts of one
/// length in the order of their ids. This is not the same as the longest match at the leftmost place: with "abcd" and "xab", "xabcd"
/// becomes x + abcd.
class SpecialTokens {
 public:
  /// `control`: whether control and unknown tokens are cut out, besides user-defined ones. Keeps views into the vocabulary.
  SpecialTokens(const Vocabulary& vocabulary, SpecialText control);

  /// Whole text, in order, without empty fragments.
  [[nodiscard]] std::vector<Fragment> cut(std::string_view text) const;

 private:
  struct Entry {
    std::string_view text;
    Token token;
  };
  struct Match {
    std::size_t position;
    Token token;
  };
  /// Matches by length: [0 .. longest text].
  using Buckets = std::vector<std::vector<Match>>;

  void add_longest(std::string_view text, std::size_t position, std::size_t limit, Buckets& buckets) const;
  [[nodiscard]] std::vector<Fragment> choose(std::string_view text) const;

  std::vector<Entry> entries_;  ///< sorted by text
  std::size_t longest_ = 0;     ///< bytes
  std::array<bool, 256> starts_{};
};

}  // namespace heed::model
