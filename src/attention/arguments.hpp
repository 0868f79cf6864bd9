// SPDX-License-Identifier: Apache-2.0
// A call's arguments, checked once, before anything is written, and then resolved into what both the kernels and the reference need.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include <heed/attention.hpp>

#include "base/arena.hpp"
#include "kv/stored_rows.hpp"
#include "mask/plan.hpp"

namespace heed::front {

/// Letters of attention.hpp.
struct Sizes {
  std::int64_t batch = 0;      ///< B
  std::int64_t q_tokens = 0;   ///< Lq
  std::int64_t kv_tokens = 0;  ///< Lk
  std::int64_t q_heads = 0;    ///< Hq
  std::int64_t kv_heads = 0;   ///< Hkv
  std::int64_t group = 1;      ///< G
  std::int64_t head_dim = 0;   ///< D
  std::int64_t value_dim = 0;  ///< Dv

  [[nodiscard]] std::int64_t packed_rows() const { return q_tokens * group; }
};

/// What the caller gave; views of views, so it lives no longer than the call.
struct Arguments {
  std::string_view function;  ///< for error texts
  const TensorView& q;
  const TensorView& k;
  const TensorView& v;
  const AttentionOptions& options;
  TensorView q_offsets = {}, k_offsets = {};  ///< of packed sequences only
  /// Where keys and values lie if not in one block each: k and v then tell type and shape only, with Lk of the longest sequence.
  const kv::StoredRows* rows = nullptr;
};

/// Largest D and Dv.
inline constexpr std::int64_t kMaxHeadDim = 1024;

/// Checks shapes, types and options; throws InvalidArgument that names the argument.
[[nodiscard]] Sizes check_inputs(const Arguments& arguments);
/// The same for packed q [Tq,Hq,D], k [Tk,Hkv,D], v [Tk,Hkv,Dv] and their offsets: B is the number of sequences, Lq is Tq, Lk is Tk.
[[nodiscard]] Sizes check_packed_inputs(const Arguments& arguments);
/// Checks type, shape and that nothing written overlaps itself or anything read. Packed where q is.
void check_outputs(const Arguments& arguments, const Sizes& sizes, const AttentionOutputs& outputs);

/// float64 inputs have float64 lse; all others float32.
[[nodiscard]] DType statistics_dtype(DType q) noexcept;

/// Of out, [B, Lq, Hq, Dv] or [Tq, Hq, Dv]; and of lse, [B, Hq, Lq] or [Hq, Tq].
[[nodiscard]] Shape out_shape(const Arguments& arguments, const Sizes& sizes);
[[nodiscard]] Shape statistics_shape(const Arguments& arguments, const Sizes& sizes);

[[nodiscard]] double scale_of(const AttentionOptions& options, std::int64_t head_dim);

/// Element of an int32 or int64 tensor of one axis.
[[nodiscard]] std::int64_t integer(const TensorView& view, std::int64_t index) noexcept;

/// Keys of a batch entry that exist, of the `keys` it has room for; and the position of its query 0.
[[nodiscard]] mask::Geometry geometry_of(const AttentionOptions& options, std::int64_t batch, std::int64_t tokens,
                                         std::int64_t keys) noexcept;

/// `view` as [n0, n1, n2, n3], right-aligned; axes of size 1 repeat with stride 0. For a view that check_inputs accepted.
[[nodiscard]] TensorView broadcast4(const TensorView& view, const Shape& shape);

/// Element 0 of the tensor that starts at `index`.
[[nodiscard]] const void* address(const TensorView& view, std::int64_t i0, std::int64_t i1 = 0, std::int64_t i2 = 0,
                                  std::int64_t i3 = 0) noexcept;
[[nodiscard]] void* address(const MutableTensorView& view, std::int64_t i0, std::int64_t i1 = 0, std::int64_t i2 = 0,
                            std::int64_t i3 = 0) noexcept;

/// Where a sequence's rows begin in the tensors.
struct Place {
  std::int64_t slice = 0;        ///< index on the batch axis
  std::int64_t first_query = 0;  ///< row of its token 0 in q and the outputs
  std::int64_t first_key = 0;    ///< row of its key 0 in k and v
  std::int64_t key_rows = 0;     ///< rows of k and v that are its own, whether its keys fill them or not
};

/// The sequences of a call, of whatever lengths. Lives in the calling thread's scratch.
class Sequences {
 public:
  /// Room for so many.
  explicit Sequences(std::int64_t capacity);
  /// The batch entries of tensors [B, ...].
  Sequences(const Arguments& arguments, const Sizes& sizes);

  void add(const mask::Geometry& geometry, const Place& place) noexcept;
  [[nodiscard]] std::int64_t count() const noexcept { return count_; }
  [[nodiscard]] std::span<const mask::Geometry> geometry() const noexcept { return {geometry_, static_cast<std::size_t>(count_)}; }
  [[nodiscard]] std::span<const Place> places() const noexcept { return {places_, static_cast<std::size_t>(count_)}; }

 private:
  base::Scratch scratch_;
  mask::Geometry* geometry_;  ///< [capacity]
  Place* places_;             ///< [capacity]
  std::int64_t count_ = 0;
};

/// Threads that are worth waking for these, masks aside.
[[nodiscard]] int worthwhile_threads(const Sizes& sizes, const Sequences& sequences);

}  // namespace heed::front
