// SPDX-License-Identifier: Apache-2.0
#include "mask/combine.hpp"

#include <algorithm>
#include <memory>
#include <utility>

namespace heed::mask {
namespace {

class Not final : public MaskNode {
 public:
  Not(const Traits& traits, NodePointer part) : MaskNode(traits), part_(std::move(part)) {}

  Coverage classify(const Tile& tile) const noexcept override {
    const Coverage part = part_->classify(tile);
    if (part == Coverage::kMixed) return part;
    return part == Coverage::kNone ? Coverage::kFull : Coverage::kNone;
  }
  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    return ~part_->bits(row, key_begin, count) & low_bits(count);
  }
  bool heads_alike(std::int64_t head1, std::int64_t head2) const noexcept override { return part_->heads_alike(head1, head2); }
  void append_text(std::string& out) const override {
    const bool loose = part_->precedence() < Precedence::kNot;
    out += loose ? "~(" : "~";
    part_->append_text(out);
    if (loose) out += ')';
  }
  void append_description(std::string& out) const override {
    if (is_none(*part_)) {
      out += "it never is so";
      return;
    }
    out += "not (";
    part_->append_description(out);
    out += ')';
  }
  Precedence precedence() const noexcept override { return Precedence::kNot; }
  bool equals(const MaskNode& other) const noexcept override { return same(*part_, *static_cast<const Not&>(other).part_); }

  const NodePointer& part() const noexcept { return part_; }

 private:
  NodePointer part_;
};

class Combination final : public MaskNode {
 public:
  Combination(const Traits& traits, Operator op, std::vector<NodePointer> parts) : MaskNode(traits), parts_(std::move(parts)), op_(op) {}

  Coverage classify(const Tile& tile) const noexcept override {
    // One part of this coverage decides; the combination has the other one only when every part has it.
    const Coverage deciding = op_ == Operator::kAnd ? Coverage::kNone : Coverage::kFull;
    const Coverage neutral = op_ == Operator::kAnd ? Coverage::kFull : Coverage::kNone;
    Coverage result = neutral;
    for (const NodePointer& part : parts_) {
      const Coverage one = part->classify(tile);
      if (one == deciding) return deciding;
      if (one == Coverage::kMixed) result = Coverage::kMixed;
    }
    return result;
  }

  std::uint64_t bits(const Row& row, std::int64_t key_begin, int count) const noexcept override {
    const std::uint64_t full = low_bits(count);
    std::uint64_t result = op_ == Operator::kAnd ? full : 0;
    const std::uint64_t decided = full ^ result;
    for (const NodePointer& part : parts_) {
      const std::uint64_t one = part->bits(row, key_begin, count);
      result = op_ == Operator::kAnd ? result & one : result | one;
      if (result == decided) break;
    }
    return result;
  }

  bool heads_alike(std::int64_t head1, std::int64_t head2) const noexcept override {
    return std::all_of(parts_.begin(), parts_.end(), [&](const NodePointer& part) { return part->heads_alike(head1, head2); });
  }

  void append_text(std::string& out) const override {
    const char* separator = "";
    for (const NodePointer& part : parts_) {
      out += separator;
      separator = op_ == Operator::kAnd ? " & " : " | ";
      const bool loose = part->precedence() < precedence();
      if (loose) out += '(';
      part->append_text(out);
      if (loose) out += ')';
    }
  }
  void append_description(std::string& out) const override {
    const char* separator = "";
    for (const NodePointer& part : parts_) {
      out += separator;
      separator = op_ == Operator::kAnd ? " and " : " or ";
      const bool nested = part->precedence() <= Precedence::kAnd;
      if (nested) out += '(';
      part->append_description(out);
      if (nested) out += ')';
    }
  }
  Precedence precedence() const noexcept override { return op_ == Operator::kAnd ? Precedence::kAnd : Precedence::kOr; }
  bool equals(const MaskNode& other) const noexcept override {
    const auto& combination = static_cast<const Combination&>(other);
    return op_ == combination.op_ && same(parts_, combination.parts_);
  }

  Operator op() const noexcept { return op_; }
  const std::vector<NodePointer>& parts() const noexcept { return parts_; }

 private:
  std::vector<NodePointer> parts_;
  Operator op_;
};

bool is_nothing(const MaskNode& node) noexcept {
  const auto* complement_node = dynamic_cast<const Not*>(&node);
  return complement_node != nullptr && is_none(*complement_node->part());
}

}  // namespace

NodePointer combine(Operator op, const std::vector<NodePointer>& parts) {
  std::vector<NodePointer> flat;
  flat.reserve(parts.size());
  for (const NodePointer& part : parts) {
    const bool everything = is_none(*part);
    const bool nothing = is_nothing(*part);
    if (op == Operator::kAnd ? nothing : everything) return part;
    if (op == Operator::kAnd ? everything : nothing) continue;
    const auto* nested = dynamic_cast<const Combination*>(part.get());
    if (nested != nullptr && nested->op() == op) {
      flat.insert(flat.end(), nested->parts().begin(), nested->parts().end());
    } else {
      flat.push_back(part);
    }
  }
  if (flat.empty()) return parts.front();
  if (flat.size() == 1) return flat.front();
  const Traits traits = traits_over("Mask", flat);
  return std::make_shared<Combination>(traits, op, std::move(flat));
}

NodePointer complement(const NodePointer& part) {
  if (const auto* twice = dynamic_cast<const Not*>(part.get())) return twice->part();
  return std::make_shared<Not>(traits_over("Mask", {part}), part);
}

}  // namespace heed::mask

namespace heed {

Mask operator&(const Mask& a, const Mask& b) { return Mask(mask::combine(mask::Operator::kAnd, {a.node_, b.node_})); }
Mask operator|(const Mask& a, const Mask& b) { return Mask(mask::combine(mask::Operator::kOr, {a.node_, b.node_})); }
Mask Mask::operator~() const { return Mask(mask::complement(node_)); }

}  // namespace heed
