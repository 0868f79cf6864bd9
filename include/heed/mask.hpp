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

/// The rest of an imagined call, for Mask::density.
struct MaskCall {
  std::int64_t batch = 1;
  std::int64_t heads = 1;
  /// Position of query 0; not given: k_tokens - q_tokens, as Align::kBottomRight. 0 is Align::kTopLeft.
  std::optional<std::int64_t> query_offset = {};
};

/// What a mask shows of a call, and what a kernel visits for it. Tiles are those of the AVX-512 kernels for one query head per KV head:
/// 48 queries x 64 keys.
struct TileStatistics {
  std::int64_t tiles = 0;     ///< of all batch entries and heads
  std::int64_t visited = 0;   ///< with a visible element
  std::int64_t partial = 0;   ///< visited, and not wholly visible
  std::int64_t elements = 0;  ///< B * Hq * Lq * Lk
  std::int64_t visible = 0;

  [[nodiscard]] double density() const noexcept {
    return elements > 0 ? static_cast<double>(visible) / static_cast<double>(elements) : 0.0;
  }
};

/// See Mask::fixed.
struct FixedPattern {
  std::int64_t stride = 0;    ///< tokens of a block
  std::int64_t vertical = 1;  ///< positions of each block that everybody sees
  /// Head h sees the (h mod rotation)-th group of `vertical` positions, counted from the block's end. rotation * vertical <= stride.
  std::int64_t rotation = 1;
};

/// See Mask::neighborhood.
struct NeighborhoodPattern {
  Shape grid = {};      ///< row-major
  Shape window = {};    ///< tokens of the window along each axis
  Shape dilation = {};  ///< steps between them; not given: 1. window * dilation <= grid
};

/// See Mask::shifted_window.
struct ShiftedWindowPattern {
  Shape grid = {};    ///< row-major
  Shape window = {};  ///< tokens of a window along each axis
  Shape shift = {};   ///< 0 <= shift < window; not given: 0
};

/// Whether random keys are drawn once for all heads or anew for each.
enum class RandomHeads : std::uint8_t { kAlike, kEach };

/// See Mask::random_blocks.
struct RandomBlocksPattern {
  std::int64_t block = 64;   ///< tokens of a block
  std::int64_t per_row = 3;  ///< key blocks drawn for each query block
  /// Key blocks to draw from: the first `columns`. Not given: query block R draws from the R + 1 blocks up to its own, for causal models.
  std::optional<std::int64_t> columns = {};
  std::uint64_t seed = 0;
  RandomHeads heads = RandomHeads::kAlike;
};

/// See Mask::big_bird.
struct BigBirdPattern {
  std::int64_t block = 64;         ///< tokens of a block
  std::int64_t window_blocks = 3;  ///< key blocks around each query block, its own included; odd
  std::int64_t global_blocks = 1;  ///< the first blocks, which see everything and are seen by everybody
  std::int64_t random_blocks = 3;  ///< as RandomBlocksPattern::per_row
  std::optional<std::int64_t> columns = {};
  std::uint64_t seed = 0;
  RandomHeads heads = RandomHeads::kAlike;
};

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

  // Sparse patterns of the literature; docs/patterns.md draws each of them. None is causal unless it says so: `causal() & ...` makes it.

  /// `side` keys to each side of the query's own, `dilation` apart: |p - j| <= side * dilation and (p - j) mod dilation = 0.
  /// (Longformer's dilated window, arXiv 2004.05150. attention-gym's `window` is side * dilation.) side >= 0, dilation >= 1.
  static Mask dilated(std::int64_t side, std::int64_t dilation);
  /// (p - j) mod stride = 0 (Sparse Transformer, arXiv 1904.10509, section 4.3: one head sees this, another the last `stride` tokens;
  /// both at once: `causal() & (sliding_window(s) | strided(s))`). stride >= 1.
  static Mask strided(std::int64_t stride);
  /// floor(p / stride) = floor(j / stride), or j mod stride in [stride - (r + 1) * vertical, stride - r * vertical) with
  /// r = head mod rotation (the same paper's fixed pattern; rotation is DeepSpeed's num_different_global_patterns).
  static Mask fixed(const FixedPattern& pattern);
  /// floor(p / tokens) = floor(j / tokens) (Llama 4: `causal() & chunked(8192)`). tokens >= 1.
  static Mask chunked(std::int64_t tokens);
  /// Both on the grid, row-major, and their coordinates differ along at most one axis (arXiv 1912.12180). 1 to 6 axes; tokens beyond the
  /// grid see nothing and are not seen.
  static Mask axial(const Shape& grid);
  /// Both on the grid, and along each axis (n tokens, window w, x of the query, y of the key)
  ///   s <= y < s + w     s = clamp(x - floor(w / 2), 0, n - w)
  /// so that windows are pushed inside at the borders and everybody sees as many keys (NATTEN, arXiv 2204.07143). With a dilation d the
  /// same among the tokens with y mod d = x mod d (arXiv 2209.15001).
  static Mask neighborhood(const NeighborhoodPattern& pattern);
  /// Both on the grid, and along each axis floor((x - shift) / window) = floor((y - shift) / window): windows start at the shift. What
  /// Swin's cyclic shift wraps around is masked apart (arXiv 2103.14030, section 3.2).
  static Mask shifted_window(const ShiftedWindowPattern& pattern);
  /// mask at (floor(p / block), floor(j / block)): any pattern at the scale of blocks. Masks that go by query index (tree, from_tensor) get
  /// the query block's number. block >= 1.
  static Mask in_blocks(std::int64_t block, const Mask& mask);
  /// Each query block sees `per_row` different key blocks, drawn by a hash of seed, query block and head: the same for any Lq and Lk and
  /// on every machine. Fewer where there are fewer to draw from. Text: "in_blocks 64 (random_keys 3 * 0)".
  static Mask random_blocks(const RandomBlocksPattern& pattern);
  /// j is one of `positions`.
  static Mask columns(std::span<const std::int64_t> positions);
  /// p - j is one of `distances`, each at least 0.
  static Mask diagonals(std::span<const std::int64_t> distances);
  /// causal() & (columns(columns) | diagonals(diagonals)) (MInference, arXiv 2407.02490).
  static Mask vertical_slash(std::span<const std::int64_t> columns, std::span<const std::int64_t> diagonals);
  /// A tree of draft tokens behind a prefix (SpecInfer, arXiv 2305.09781). Query i is draft token i at p = prefix + i, and sees the whole
  /// prefix, its ancestors and itself. parents[i] < i; kUnbounded: the token follows the prefix. The prefix is p - i, whatever its
  /// length, so that one mask serves every step.
  static Mask tree(std::span<const std::optional<std::int64_t>> parents);
  /// window(side, side) | global_tokens(globals) (arXiv 2004.05150; Hugging Face's attention_window is 2 * side).
  static Mask longformer(std::int64_t side, std::span<const std::int64_t> globals);
  /// in_blocks(block, window | global blocks | random blocks) (arXiv 2007.14062; sizes as in DeepSpeed's BigBirdSparsityConfig).
  static Mask big_bird(const BigBirdPattern& pattern);
  /// causal() & (sink_tokens(sinks) | sliding_window(window)) (StreamingLLM, arXiv 2309.17453).
  static Mask sinks_and_window(std::int64_t sinks, std::int64_t window);
  /// The same keys under MInference's name: the `initial` tokens and the `local` last ones, causal.
  static Mask a_shape(std::int64_t initial, std::int64_t local);

  friend HEED_API Mask operator&(const Mask& a, const Mask& b);
  friend HEED_API Mask operator|(const Mask& a, const Mask& b);
  HEED_API Mask operator~() const;

  /// Reads what to_string writes. Grammar, loosest first:  a | b    a & b    ~a    (a)    name n n ...
  ///   "causal & (window 128 0 | sink_tokens 4)"     an open window side is written `*`:  "window * 0"
  ///   "global_tokens 0 5 9"                         "per_head (causal) (none)"
  ///   "axial 32x32"                                 "in_blocks 64 (window 1 0)"
  /// Throws InvalidArgument with the column (of the byte, from 1). At most 100 levels of ~ and brackets. Masks that hold tensors
  /// (documents, block_sparse, from_tensor) have no text form.
  static Mask parse(std::string_view text);
  /// Round-trips through parse for every mask without tensors; for the others a readable description in angle brackets.
  [[nodiscard]] std::string to_string() const;

  /// A sentence for people, for any expression; the wording may change.
  [[nodiscard]] std::string describe() const;

  /// Visible elements / all elements of a call, exactly; 0 for a call without elements. Counted tile by tile, in the memory of one row of
  /// tiles. Throws InvalidArgument for sizes that the mask is not made for.
  [[nodiscard]] double density(std::int64_t q_tokens, std::int64_t k_tokens, const MaskCall& call = {}) const;

  /// The same with the tiles that are skipped and cut.
  [[nodiscard]] TileStatistics tile_statistics(std::int64_t q_tokens, std::int64_t k_tokens, const MaskCall& call = {}) const;

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
