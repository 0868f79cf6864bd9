// SPDX-License-Identifier: Apache-2.0
// Which query may look at which key. Masks combine with & | ~ and still skip work tile by tile.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/export.hpp>
#include <heed/tensor.hpp>

namespace heed {

class MaskNode;  // internal

/// A window side without a limit.
inline constexpr std::nullopt_t kUnbounded = std::nullopt;

/// An immutable shared value that owns its data; copying is cheap, use from several threads is safe.
///
/// A mask is a statement about a query at absolute position p (see Align) and a key at position j; `true` means "may attend".
/// Keys at or past kv_lengths never exist, whatever the mask says.
///
///   Mask::causal(), Lq = Lk = 4     Mask::window(1, 0)      Mask::sliding_window(2) | Mask::sink_tokens(1)
///        1 0 0 0                       1 0 0 0                 1 0 0 0
///        1 1 0 0                       1 1 0 0                 1 1 0 0
///        1 1 1 0                       0 1 1 0                 1 1 1 0
///        1 1 1 1                       0 0 1 1                 1 0 1 1
class HEED_API Mask {
 public:
  /// Every key.
  Mask();
  /// A move copies, so that a mask that was moved from is still one.
  Mask(const Mask&) = default;
  Mask& operator=(const Mask&) = default;
  ~Mask() = default;

  static Mask none();
  /// j <= p.
  static Mask causal();
  /// p - left <= j <= p + right: inclusive distances; kUnbounded opens a side. Both must be >= 0 where given.
  static Mask window(std::optional<std::int64_t> left, std::optional<std::int64_t> right);
  /// `tokens` keys including the query's own: p - tokens < j <= p (Mistral's and Hugging Face's sliding_window). tokens >= 1.
  static Mask sliding_window(std::int64_t tokens);
  /// The first n keys for everybody, causal for the rest: j < n or j <= p (T5, UniLM).
  static Mask prefix_lm(std::int64_t n);
  /// j < n, whatever p is (StreamingLLM's sinks are `causal() & (sliding_window(w) | sink_tokens(n))`).
  static Mask sink_tokens(std::int64_t n);
  /// p or j is one of `positions` (Longformer's global attention).
  static Mask global_tokens(std::span<const std::int64_t> positions);
  /// Tokens of the same document: ids[p] == ids[j]. ids int32 or int64, [L] or [B, L], with L > every position used;
  /// a position outside [0, L) belongs to no document. The ids are copied.
  static Mask documents(const TensorView& ids);
  /// layout[p / block][j / block] is true. Boolean [rows, columns], or [Hq, rows, columns]; outside of the layout nothing
  /// is visible. Copied. (DeepSpeed, FlexAttention.)
  static Mask block_sparse(const TensorView& layout, std::int64_t block);
  /// mask[b][h][i][j], by query index i, not by position. Boolean, [Lq, Lk] up to [B, Hq, Lq, Lk], right-aligned broadcast over
  /// axes of size 1; outside of the tensor nothing is visible. Copied, one bit an element.
  static Mask from_tensor(const TensorView& mask);
  /// masks[h] for query head h; needs exactly Hq masks.
  static Mask per_head(std::vector<Mask> masks);

  friend HEED_API Mask operator&(const Mask& a, const Mask& b);
  friend HEED_API Mask operator|(const Mask& a, const Mask& b);
  HEED_API Mask operator~() const;

  /// Reads what to_string writes. Grammar, loosest first:  a | b    a & b    ~a    (a)    name n n ...
  ///   "causal & (window 128 0 | sink_tokens 4)"     an open window side is written `*`:  "window * 0"
  ///   "global_tokens 0 5 9"                         "per_head (causal) (none)"
  /// Throws InvalidArgument with the column (of the byte, from 1). At most 100 levels of ~ and brackets. Masks that hold tensors (documents, block_sparse, from_tensor) have no text form.
  static Mask parse(std::string_view text);
  /// Round-trips through parse for every mask without tensors; for the others a readable description in angle brackets.
  [[nodiscard]] std::string to_string() const;

  /// One element: may query index i at position p of query head h in batch b attend key j? The slow, obvious answer.
  [[nodiscard]] bool visible(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t p, std::int64_t j) const;

  /// Same structure and data.
  friend HEED_API bool operator==(const Mask& a, const Mask& b);

  [[nodiscard]] const MaskNode& node() const noexcept { return *node_; }
  [[nodiscard]] const std::shared_ptr<const MaskNode>& node_pointer() const noexcept { return node_; }
  explicit Mask(std::shared_ptr<const MaskNode> node);

 private:
  std::shared_ptr<const MaskNode> node_;
};

}  // namespace heed
