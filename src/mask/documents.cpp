// SPDX-License-Identifier: Apache-2.0
// Packed documents: a token sees the tokens of its own document.
#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/message.hpp"
#include "mask/node.hpp"

namespace heed {
namespace {

using mask::Coverage;
using mask::Row;
using mask::Tile;

/// Smallest and largest document number of some tokens.
struct Extremes {
  std::int32_t least, most;

  [[nodiscard]] Extremes with(const Extremes& other) const noexcept { return {std::min(least, other.least), std::max(most, other.most)}; }
};

/// One sequence, cut into runs of equal ids. Documents are numbered in the order in which they first appear, so that packed
/// documents, whatever their ids, lie in rising order and the extremes of two ranges decide whether they share one.
class Sequence {
 public:
  explicit Sequence(const std::vector<std::int64_t>& ids) {
    std::unordered_map<std::int64_t, std::int32_t> numbers;
    run_of_.reserve(ids.size());
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (i == 0 || ids[i] != ids[i - 1]) {
        const auto next = static_cast<std::int32_t>(numbers.size());
        run_begin_.push_back(static_cast<std::int64_t>(i));
        document_.push_back(numbers.try_emplace(ids[i], next).first->second);
      }
      run_of_.push_back(static_cast<std::uint32_t>(document_.size() - 1));
    }
    run_begin_.push_back(static_cast<std::int64_t>(ids.size()));
    build_tree();
  }

  [[nodiscard]] std::int64_t length() const noexcept { return static_cast<std::int64_t>(run_of_.size()); }

  /// Of tokens [begin, end), which lie inside and are not empty. O(log runs).
  [[nodiscard]] Extremes extremes(std::int64_t begin, std::int64_t end) const noexcept {
    const std::size_t leaves = document_.size();
    std::size_t first = leaves + run_of_[static_cast<std::size_t>(begin)];
    std::size_t last = leaves + run_of_[static_cast<std::size_t>(end - 1)] + 1;
    Extremes result = tree_[first];
    for (; first < last; first /= 2, last /= 2) {  // bottom-up; right for any number of leaves, since the operation commutes
      if (first % 2 == 1) result = result.with(tree_[first++]);
      if (last % 2 == 1) result = result.with(tree_[--last]);
    }
    return result;
  }

  /// Bit k: token begin + k has the document of `token`; all of them lie inside.
  [[nodiscard]] std::uint64_t same_document(std::int64_t token, std::int64_t begin, int count) const noexcept {
    const std::int32_t wanted = document_[run_of_[static_cast<std::size_t>(token)]];
    std::uint64_t result = 0;
    for (std::size_t run = run_of_[static_cast<std::size_t>(begin)]; run < document_.size() && run_begin_[run] < begin + count; ++run) {
      if (document_[run] == wanted) result |= mask::bits_of_range(run_begin_[run], run_begin_[run + 1], begin, count);
    }
    return result;
  }

  bool operator==(const Sequence& other) const noexcept { return run_begin_ == other.run_begin_ && document_ == other.document_; }

 private:
  void build_tree() {
    const std::size_t runs = document_.size();
    tree_.resize(2 * runs);
    for (std::size_t run = 0; run < runs; ++run) tree_[runs + run] = {document_[run], document_[run]};
    for (std::size_t node = runs; node-- > 1;) tree_[node] = tree_[2 * node].with(tree_[2 * node + 1]);
  }

  std::vector<std::uint32_t> run_of_;    // [length]
  std::vector<std::int64_t> run_begin_;  // [runs + 1]
  std::vector<std::int32_t> document_;   // [runs]
  std::vector<Extremes> tree_;           // [2 * runs]: leaves at runs + run, node i over 2i and 2i + 1
};

class Documents final : public MaskNode {
 public:
  Documents(const mask::Traits& traits, std::vector<Sequence> sequences) : MaskNode(traits), sequences_(std::move(sequences)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const Sequence* sequence = of(tile.batch);
    if (sequence == nullptr) return Coverage::kNone;
    const std::int64_t length = sequence->length();
    const std::int64_t row_begin = std::max<std::int64_t>(tile.first_position(), 0);
    const std::int64_t row_end = std::min(tile.last_position() + 1, length);
    const std::int64_t key_end = std::min(tile.key_end, length);
    if (row_begin >= row_end || tile.key_begin >= key_end) return Coverage::kNone;
    const Extremes rows = sequence->extremes(row_begin, row_end);
    const Extremes keys = sequence->extremes(tile.key_begin, key_end);
    if (rows.most < keys.least || keys.most < rows.least) return Coverage::kNone;
    const bool inside = row_end - row_begin == tile.index_end - tile.index_begin && key_end == tile.key_end;
    const Extremes both = rows.with(keys);
    return inside && both.least == both.most ? Coverage::kFull : Coverage::kMixed;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const Sequence* sequence = of(row.batch);
    if (sequence == nullptr || row.position < 0 || row.position >= sequence->length()) return 0;
    const std::int64_t inside = std::min<std::int64_t>(count, sequence->length() - key_begin);
    return key_begin < 0 || inside <= 0 ? 0 : sequence->same_document(row.position, key_begin, static_cast<int>(inside));
  }

  void append_text(std::string& out) const override {
    out += "<documents [";
    if (traits().batch != 0) out.append(std::to_string(traits().batch)).append(", ");
    out.append(std::to_string(sequences_.empty() ? 0 : sequences_.front().length())).append("]>");
  }
  void append_description(std::string& out) const override { out += "both lie in the same document"; }
  bool equals(const MaskNode& other) const noexcept override {
    const auto& documents = static_cast<const Documents&>(other);
    return traits().batch == documents.traits().batch && sequences_ == documents.sequences_;
  }

 private:
  const Sequence* of(std::int64_t batch) const noexcept {
    const std::size_t index = sequences_.size() == 1 ? 0 : static_cast<std::size_t>(batch);
    return index < sequences_.size() ? &sequences_[index] : nullptr;
  }

  std::vector<Sequence> sequences_;  // [1 or B]
};

/// Exact, unlike element(): an id may be any 64-bit hash.
std::int64_t id_at(const TensorView& ids, std::int64_t offset) noexcept {
  if (ids.dtype() == DType::kInt32) return static_cast<const std::int32_t*>(ids.data())[offset];
  return static_cast<const std::int64_t*>(ids.data())[offset];
}

Sequence read_sequence(const TensorView& ids, std::int64_t b) {
  const int last = ids.rank() - 1;
  std::vector<std::int64_t> values(static_cast<std::size_t>(ids.size(last)));
  std::int64_t offset = last > 0 ? b * ids.stride(0) : 0;
  for (std::int64_t& value : values) {
    value = id_at(ids, offset);
    offset += ids.stride(last);
  }
  return Sequence(values);
}

}  // namespace

Mask Mask::documents(const TensorView& ids) {
  constexpr const char* kFunction = "Mask::documents";
  constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;  // runs are numbered in 32 bits
  if (ids.dtype() != DType::kInt32 && ids.dtype() != DType::kInt64) {
    base::throw_invalid(kFunction, "ids", "int32 or int64", heed::to_string(ids.dtype()));
  }
  if (ids.rank() != 1 && ids.rank() != 2) base::throw_invalid(kFunction, "ids", "[L] or [B, L]", heed::to_string(ids.shape()));
  if (ids.size(ids.rank() - 1) >= kMostTokens) {
    base::throw_invalid(kFunction, "ids", "fewer than 2^31 tokens", heed::to_string(ids.shape()));
  }
  base::require_memory(kFunction, "ids", ids);
  const std::int64_t batch = ids.rank() == 2 ? ids.size(0) : 1;
  std::vector<Sequence> sequences;
  for (std::int64_t b = 0; b < batch; ++b) sequences.push_back(read_sequence(ids, b));
  const mask::Traits traits = {.uses_batch = batch > 1, .batch = batch > 1 ? batch : 0};
  return Mask(std::make_shared<Documents>(traits, std::move(sequences)));
}

}  // namespace heed
