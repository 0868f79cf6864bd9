// SPDX-License-Identifier: Apache-2.0
#include "mask/numbers.hpp"

#include <algorithm>

namespace heed::mask {

std::vector<std::int64_t> sorted_numbers(const char* function, const char* argument, std::span<const std::int64_t> numbers) {
  std::vector<std::int64_t> sorted(numbers.begin(), numbers.end());
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  if (!sorted.empty() && sorted.front() < 0) {
    base::throw_invalid(function, argument, std::string(argument) + " of at least 0", std::to_string(sorted.front()));
  }
  return sorted;
}

std::int64_t count_in(const std::vector<std::int64_t>& sorted, std::int64_t begin, std::int64_t end) noexcept {
  const auto first = std::lower_bound(sorted.begin(), sorted.end(), begin);
  return std::lower_bound(first, sorted.end(), end) - first;
}

void append_numbers(std::string& out, const std::vector<std::int64_t>& numbers) {
  for (const std::int64_t number : numbers) out.append(" ").append(std::to_string(number));
}

std::string listed(const std::vector<std::int64_t>& numbers, const char* last_word) {
  constexpr std::size_t kMostShown = 8;
  if (numbers.empty()) return "none";
  const std::size_t shown = std::min(numbers.size(), kMostShown);
  std::string text = std::to_string(numbers.front());
  for (std::size_t i = 1; i < shown; ++i) {
    text += i + 1 == numbers.size() ? std::string(" ") + last_word + " " : std::string(", ");
    text += std::to_string(numbers[i]);
  }
  if (shown < numbers.size()) text.append(" ").append(last_word).append(" ").append(std::to_string(numbers.size() - shown)).append(" more");
  return text;
}

}  // namespace heed::mask
