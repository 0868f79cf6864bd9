// SPDX-License-Identifier: Apache-2.0
// Any boolean tensor. Rows are query indices, so it does not move with Align.
#include <memory>
#include <utility>

#include "base/message.hpp"
#include "mask/bit_planes.hpp"

namespace heed {
namespace {

using mask::BitPlanes;
using mask::Coverage;
using mask::Row;
using mask::Span;
using mask::Tile;

class FromTensor final : public MaskNode {
 public:
  /// `planes` holds [batch * heads, rows, columns], where a broadcast batch or head axis is stored once.
  FromTensor(const mask::Traits& traits, BitPlanes planes, std::int64_t batch, std::int64_t heads)
      : MaskNode(traits), planes_(std::move(planes)), batch_(batch), heads_(heads) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const Span rows = planes_.rows() == 1 ? Span{0, 1} : Span{tile.index_begin, tile.index_end};
    const Span columns = planes_.columns() == 1 ? Span{0, 1} : Span{tile.key_begin, tile.key_end};
    return planes_.cover(plane(tile.batch, tile.head), rows, columns);
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const std::int64_t index = planes_.rows() == 1 ? 0 : row.index;
    const std::int64_t plane_index = plane(row.batch, row.head);
    if (planes_.columns() != 1) return planes_.bits(plane_index, index, key_begin, count);
    return planes_.bits(plane_index, index, 0, 1) != 0 ? mask::low_bits(count) : 0;
  }

  void append_text(std::string& out) const override {
    out.append("<from_tensor ").append(heed::to_string(Shape{batch_, heads_, planes_.rows(), planes_.columns()})).append(">");
  }
  void append_description(std::string& out) const override {
    out.append("a boolean tensor ").append(heed::to_string(Shape{batch_, heads_, planes_.rows(), planes_.columns()}));
    out.append(" shows the pair");
  }
  bool equals(const MaskNode& other) const noexcept override {
    const auto& tensor = static_cast<const FromTensor&>(other);
    return traits().batch == tensor.traits().batch && traits().heads == tensor.traits().heads && batch_ == tensor.batch_ &&
           heads_ == tensor.heads_ && planes_ == tensor.planes_;
  }

 private:
  /// -1 outside of the tensor.
  std::int64_t plane(std::int64_t batch, std::int64_t head) const noexcept {
    const std::int64_t b = batch_ == 1 ? 0 : batch;
    const std::int64_t h = heads_ == 1 ? 0 : head;
    return b >= 0 && b < batch_ && h >= 0 && h < heads_ ? b * heads_ + h : -1;
  }

  BitPlanes planes_;
  std::int64_t batch_, heads_;
};

struct Axis {
  std::int64_t size = 1, stride = 0;

  /// An axis of stride 0 repeats one element (an expanded tensor), so one of them is kept.
  [[nodiscard]] std::int64_t stored() const noexcept { return size > 1 && stride == 0 ? 1 : size; }
  /// Size the call's axis must have; 0: any.
  [[nodiscard]] std::int64_t required() const noexcept { return size == 1 ? 0 : size; }
};

Axis axis_from_right(const TensorView& view, int from_right) noexcept {
  const int axis = view.rank() - 1 - from_right;
  return axis >= 0 ? Axis{view.size(axis), view.stride(axis)} : Axis{};
}

/// [batch, heads, rows, columns] of the stored axes.
TensorView stored_view(const TensorView& view, const Axis& batch, const Axis& heads) {
  const Axis rows = axis_from_right(view, 1);
  const Axis columns = axis_from_right(view, 0);
  return TensorView(view.data(), DType::kBool, Shape{batch.stored(), heads.stored(), rows.size, columns.size},
                    Strides{batch.stride, heads.stride, rows.stride, columns.stride});
}

}  // namespace

Mask Mask::from_tensor(const TensorView& mask) {
  constexpr const char* kFunction = "Mask::from_tensor";
  if (mask.dtype() != DType::kBool) base::throw_invalid(kFunction, "mask", "bool", heed::to_string(mask.dtype()));
  if (mask.rank() < 2 || mask.rank() > 4) {
    base::throw_invalid(kFunction, "mask", "[Lq, Lk], [Hq, Lq, Lk] or [B, Hq, Lq, Lk]", heed::to_string(mask.shape()));
  }
  base::require_memory(kFunction, "mask", mask);
  const Axis batch = axis_from_right(mask, 3);
  const Axis heads = axis_from_right(mask, 2);
  const mask::Traits traits = {
      .uses_batch = batch.stored() > 1, .uses_head = heads.stored() > 1, .batch = batch.required(), .heads = heads.required()};
  return Mask(std::make_shared<FromTensor>(traits, BitPlanes(stored_view(mask, batch, heads)), batch.stored(), heads.stored()));
}

}  // namespace heed
