// SPDX-License-Identifier: Apache-2.0
// docs/patterns.md: every picture is what the text above it means.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <heed/mask.hpp>

namespace heed::test {
namespace {

constexpr std::int64_t kSide = 12;

struct Picture {
  std::string title;
  std::vector<std::string> rows;
};

std::vector<Picture> pictures_of_the_page() {
  std::ifstream page(HEED_TEST_DOCS "/patterns.md");
  std::vector<Picture> pictures;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    const bool fence = line.rfind("```", 0) == 0;
    if (fence && !inside) pictures.emplace_back();
    if (fence) inside = !inside;
    if (fence || !inside) continue;
    Picture& picture = pictures.back();
    if (picture.title.empty()) {
      picture.title = line;
    } else {
      picture.rows.push_back(line);
    }
  }
  return pictures;
}

/// "fixed 6 2 3, head 1"
std::int64_t head_of(std::string& title) {
  const std::size_t comma = title.find(", head ");
  if (comma == std::string::npos) return 0;
  const std::int64_t head = std::stoll(title.substr(comma + 7));
  title.resize(comma);
  return head;
}

TEST(PatternsPage, PicturesShowWhatTheirTextsMean) {
  for (Picture& picture : pictures_of_the_page()) {
    const std::int64_t head = head_of(picture.title);
    const Mask mask = Mask::parse(picture.title);
    EXPECT_EQ(mask.to_string(), picture.title);
    const auto rows = static_cast<std::int64_t>(picture.rows.size());
    EXPECT_TRUE(rows == kSide || picture.title.rfind("tree", 0) == 0) << picture.title;
    for (std::int64_t i = 0; i < rows; ++i) {
      std::string expected;
      for (std::int64_t j = 0; j < kSide; ++j) {
        expected += j == 0 ? "" : " ";
        expected += mask.visible(0, head, i, i + kSide - rows, j) ? '#' : '.';
      }
      EXPECT_EQ(picture.rows[static_cast<std::size_t>(i)], expected) << picture.title << ", row " << i;
    }
  }
}

TEST(PatternsPage, DrawsEveryPattern) {
  std::set<std::string> words;
  for (const Picture& picture : pictures_of_the_page()) {
    std::string word;
    for (const char c : picture.title + " ") {
      if ((c >= 'a' && c <= 'z') || c == '_') {
        word += c;
      } else {
        words.insert(word);
        word.clear();
      }
    }
  }
  for (const char* name :
       {"causal", "window", "sliding_window", "prefix_lm", "sink_tokens", "global_tokens", "chunked", "dilated", "strided", "fixed",
        "axial", "neighborhood", "shifted_window", "in_blocks", "random_keys", "columns", "diagonals", "tree"}) {
    EXPECT_EQ(words.count(name), 1U) << name;
  }
}

}  // namespace
}  // namespace heed::test
