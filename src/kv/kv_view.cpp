// SPDX-License-Identifier: Apache-2.0
// What a view tells about its sequences, whichever way they lie; pages that the caller owns.
#include <algorithm>
#include <cstring>
#include <string>

#include <heed/kv_cache.hpp>

#include "base/message.hpp"
#include "kv/int8_rows.hpp"
#include "kv/page_layout.hpp"
#include "kv/stored_rows.hpp"

namespace heed {
namespace kv {

std::int64_t StoredRows::longest() const noexcept {
  std::int64_t keys = 0;
  for (const StoredSequence& sequence : sequences) keys = std::max(keys, sequence.keys);
  return keys;
}

void StoredRows::end_sequence(std::int64_t first_key, std::int64_t keys) {
  const std::int64_t first = sequences.empty() ? 0 : sequences.back().first_segment + sequences.back().segment_count;
  if (static_cast<std::int64_t>(segments.size()) == first) segments.push_back({});  // kernels look at the first one, whatever it holds
  sequences.push_back({first_key, keys, first, static_cast<std::int64_t>(segments.size()) - first});
}

}  // namespace kv

namespace {

using base::throw_invalid;
using kv::StoredRows;
using kv::StoredSequence;

/// Keys or values of a segment.
struct Part {
  const void* kernels::KvSegment::*data;
  std::int64_t kernels::KvSegment::*row_stride;
  std::int64_t head_stride, dim_stride, dim;
  void (*read_int8)(const kernels::Int8PageLayout&, const std::byte* page, std::int64_t row, float* to) noexcept;
};

Part keys_of(const StoredRows& rows) {
  return {&kernels::KvSegment::k, &kernels::KvSegment::k_row_stride, rows.k_head_stride, rows.k_dim_stride, rows.head_dim,
          kv::read_int8_key};
}
Part values_of(const StoredRows& rows) {
  return {&kernels::KvSegment::v, &kernels::KvSegment::v_row_stride, rows.v_head_stride, rows.v_dim_stride, rows.value_dim,
          kv::read_int8_value};
}

/// One row of one head to [dim].
void gather_row(const StoredRows& rows, const Part& part, const kernels::KvSegment& segment, std::int64_t row, std::int64_t head,
                std::byte* to) {
  if (rows.is_quantized()) {
    const auto* page = static_cast<const std::byte*>(segment.k) + head * rows.k_head_stride;
    return part.read_int8({rows.head_dim, rows.value_dim}, page, row, reinterpret_cast<float*>(to));
  }
  const std::int64_t width = size_bytes(kv::dtype_of(rows.format));
  const auto* from = static_cast<const std::byte*>(segment.*part.data) + (row * segment.*part.row_stride + head * part.head_stride) * width;
  for (std::int64_t d = 0; d < part.dim; ++d) {
    std::memcpy(to + d * width, from + d * part.dim_stride * width, static_cast<std::size_t>(width));
  }
}

/// Writes the rows of one sequence that exist to [Lk, Hkv, dim].
void gather(const StoredRows& rows, const StoredSequence& sequence, const Part& part, std::byte* to) {
  const std::int64_t row_bytes = part.dim * size_bytes(kv::dtype_of(rows.format));
  std::int64_t key = 0;
  for (std::int64_t s = 0; s < sequence.segment_count; ++s) {
    const kernels::KvSegment& segment = rows.segments[static_cast<std::size_t>(sequence.first_segment + s)];
    for (std::int64_t row = 0; row < segment.rows; ++row, ++key) {
      if (key < sequence.first_key) continue;
      for (std::int64_t h = 0; h < rows.kv_heads; ++h) gather_row(rows, part, segment, row, h, to + (key * rows.kv_heads + h) * row_bytes);
    }
  }
}

Tensor gather_all(const StoredRows& rows, const Part& part) {
  const DType dtype = kv::dtype_of(rows.format);
  const std::int64_t longest = rows.longest();
  Tensor result = Tensor::zeros(dtype, {static_cast<std::int64_t>(rows.sequences.size()), longest, rows.kv_heads, part.dim});
  auto* to = static_cast<std::byte*>(result.data());
  for (const StoredSequence& sequence : rows.sequences) {
    gather(rows, sequence, part, to);
    to += longest * rows.kv_heads * part.dim * size_bytes(dtype);
  }
  return result;
}

std::string text(std::int64_t value) { return std::to_string(value); }

std::int64_t integer(const TensorView& view, std::int64_t i, std::int64_t j) {
  const std::int64_t at = i * view.stride(0) + (view.rank() == 2 ? j * view.stride(1) : 0);
  return view.dtype() == DType::kInt32 ? static_cast<const std::int32_t*>(view.data())[at]
                                       : static_cast<const std::int64_t*>(view.data())[at];
}

constexpr const char* kPaged = "KvView::paged";

void check_pages(const char* name, const TensorView& pages, const char* axes) {
  if (!pages) throw_invalid(kPaged, name, std::string("a tensor ") + axes, "none");
  if (pages.rank() != 4) throw_invalid(kPaged, name, std::string("4 axes ") + axes, to_string(pages.shape()));
  if (pages.dtype() != DType::kFloat32 && pages.dtype() != DType::kBFloat16 && pages.dtype() != DType::kFloat16) {
    throw_invalid(kPaged, name, "float32, bfloat16 or float16", to_string(pages.dtype()));
  }
  static_cast<void>(element_count(pages.shape()));
  base::require_memory(kPaged, name, pages);
}

void check_integers(const char* name, const TensorView& view, int rank, const char* axes) {
  if (!view) throw_invalid(kPaged, name, std::string("a tensor ") + axes, "none");
  if (view.dtype() != DType::kInt32 && view.dtype() != DType::kInt64)
    throw_invalid(kPaged, name, "int32 or int64", to_string(view.dtype()));
  if (view.rank() != rank) throw_invalid(kPaged, name, text(rank) + (rank == 1 ? " axis " : " axes ") + axes, to_string(view.shape()));
  static_cast<void>(element_count(view.shape()));
  base::require_memory(kPaged, name, view);
}

void check_paged(const TensorView& k, const TensorView& v, const TensorView& table, const TensorView& lengths) {
  check_pages("k_pages", k, "[P, page_size, Hkv, D]");
  check_pages("v_pages", v, "[P, page_size, Hkv, Dv]");
  check_integers("block_table", table, 2, "[B, n]");
  check_integers("lengths", lengths, 1, "[B]");
  if (k.size(1) < 1) throw_invalid(kPaged, "k_pages", "at least 1 token a page on axis 1", to_string(k.shape()));
  if (v.dtype() != k.dtype()) throw_invalid(kPaged, "v_pages", std::string("k_pages' type, ") + to_string(k.dtype()), to_string(v.dtype()));
  for (int axis = 0; axis < 3; ++axis) {
    if (v.size(axis) == k.size(axis)) continue;
    throw_invalid(kPaged, "v_pages", text(k.size(axis)) + " (as k_pages) on axis " + text(axis), to_string(v.shape()));
  }
  if (lengths.size(0) != table.size(0)) {
    throw_invalid(kPaged, "lengths", "[B] = [" + text(table.size(0)) + "] as block_table's first axis", to_string(lengths.shape()));
  }
}

/// Appends a page's rows; a page that lies right behind the last one makes that longer.
void add_page(StoredRows& rows, const TensorView& k, const TensorView& v, std::int64_t page, std::int64_t count, bool is_first) {
  const std::int64_t width = size_bytes(k.dtype());
  const auto* keys = static_cast<const std::byte*>(k.data()) + page * k.stride(0) * width;
  const auto* values = static_cast<const std::byte*>(v.data()) + page * v.stride(0) * width;
  if (!is_first) {
    kernels::KvSegment& last = rows.segments.back();
    if (keys == static_cast<const std::byte*>(last.k) + last.rows * k.stride(1) * width &&
        values == static_cast<const std::byte*>(last.v) + last.rows * v.stride(1) * width) {
      last.rows += count;
      return;
    }
  }
  rows.segments.push_back({keys, values, k.stride(1), v.stride(1), count});
}

void add_sequence(StoredRows& rows, const TensorView& k, const TensorView& v, const TensorView& table, std::int64_t b,
                  std::int64_t length) {
  const std::int64_t page_size = k.size(1);
  if (length < 0 || (length > 0 && (length - 1) / page_size >= table.size(1))) {
    throw_invalid(kPaged, "lengths", "values from 0 to " + text(table.size(1)) + " pages of " + text(page_size) + " tokens",
                  text(length) + " in sequence " + text(b));
  }
  for (std::int64_t at = 0, n = 0; at < length; at += page_size, ++n) {
    const std::int64_t page = integer(table, b, n);
    if (page < 0 || page >= k.size(0)) {
      throw_invalid(kPaged, "block_table", "pages in [0, " + text(k.size(0)) + ")", text(page) + " at [" + text(b) + ", " + text(n) + "]");
    }
    add_page(rows, k, v, page, std::min(page_size, length - at), n == 0);
  }
  rows.end_sequence(0, length);
}

}  // namespace

Tensor kv::copy_keys(const StoredRows& rows) { return gather_all(rows, keys_of(rows)); }
Tensor kv::copy_values(const StoredRows& rows) { return gather_all(rows, values_of(rows)); }

KvView::KvView(std::shared_ptr<const StoredRows> rows) : rows_(std::move(rows)) {}

KvView KvView::paged(const TensorView& k, const TensorView& v, const TensorView& block_table, const TensorView& lengths) {
  check_paged(k, v, block_table, lengths);
  auto rows = std::make_shared<StoredRows>();
  rows->format = kv::format_of(k.dtype());
  rows->kv_heads = k.size(2);
  rows->head_dim = k.size(3);
  rows->value_dim = v.size(3);
  rows->k_head_stride = k.stride(2);
  rows->v_head_stride = v.stride(2);
  rows->k_dim_stride = k.stride(3);
  rows->v_dim_stride = v.stride(3);
  rows->k_memory = k;
  rows->v_memory = v;
  for (std::int64_t b = 0; b < block_table.size(0); ++b) add_sequence(*rows, k, v, block_table, b, integer(lengths, b, 0));
  return KvView(std::move(rows));
}

std::int64_t KvView::batch() const noexcept { return rows_ ? static_cast<std::int64_t>(rows_->sequences.size()) : keys_.size(0); }
std::int64_t KvView::length() const noexcept { return rows_ ? rows_->longest() : keys_.size(1); }
std::int64_t KvView::length(std::int64_t sequence) const noexcept {
  return rows_ ? rows_->sequences[static_cast<std::size_t>(sequence)].keys : keys_.size(1);
}
std::int64_t KvView::first_key(std::int64_t sequence) const noexcept {
  return rows_ ? rows_->sequences[static_cast<std::size_t>(sequence)].first_key : 0;
}
std::int64_t KvView::kv_heads() const noexcept { return rows_ ? rows_->kv_heads : keys_.size(2); }
std::int64_t KvView::head_dim() const noexcept { return rows_ ? rows_->head_dim : keys_.size(3); }
std::int64_t KvView::value_dim() const noexcept { return rows_ ? rows_->value_dim : values_.size(3); }
DType KvView::dtype() const noexcept { return rows_ ? kv::dtype_of(rows_->format) : keys_.dtype(); }
KvFormat KvView::format() const noexcept { return rows_ ? rows_->format : kv::format_of(keys_.dtype()); }

Tensor KvView::copy_keys() const {
  if (!rows_) return convert(keys_, keys_.dtype());
  return kv::copy_keys(*rows_);
}

Tensor KvView::copy_values() const {
  if (!rows_) return convert(values_, values_.dtype());
  return kv::copy_values(*rows_);
}

}  // namespace heed
