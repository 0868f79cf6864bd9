// SPDX-License-Identifier: Apache-2.0
// Cuts text into the pieces that byte-level BPE merges within, by the regular expressions that a model was trained with.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

namespace heed::model {

class PreSplitter {
 public:
  /// `name` is the value of `tokenizer.ggml.pre`; see supports().
  explicit PreSplitter(std::string_view name);
  PreSplitter(PreSplitter&&) noexcept;
  PreSplitter& operator=(PreSplitter&&) noexcept;
  ~PreSplitter();

  [[nodiscard]] static bool supports(std::string_view name) noexcept;
  /// The names that supports() knows, for errors.
  [[nodiscard]] static std::string_view supported_names() noexcept;

  /// Pieces in order; together they are the whole text. A byte that is not part of valid UTF-8 counts as a symbol (neither letter, number
  /// nor blank), like the replacement character that other programs would put in its place; the piece still holds the byte itself.
  [[nodiscard]] std::vector<std::string_view> split(std::string_view text) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace heed::model
