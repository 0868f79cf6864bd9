// SPDX-License-Identifier: Apache-2.0
// Layout: docs/gguf.md. Sizes are compared with what is left of the file before they are used or allocated for.
#include "model/gguf_parse.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <type_traits>

#include "model/gguf_cursor.hpp"
#include "model/gguf_types.hpp"

namespace heed::model {
namespace {

constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::int64_t kMaxTensorRank = 4;
constexpr std::size_t kMaxKeyBytes = 65'535;  // the format's own limit
// A key is at least a length, a type and one byte; a tensor a length, a rank, one dimension, a type and an offset.
constexpr std::int64_t kLeastKeyBytes = 8 + 4 + 1;
constexpr std::int64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;

/// Calls visit with a value of the C++ type of a metadata scalar; false for strings, arrays and unknown types.
template <class Visit>
bool visit_scalar_type(std::uint32_t type, Visit&& visit) {
  switch (type) {
    case 0: visit(std::uint8_t{}); return true;
    case 1: visit(std::int8_t{}); return true;
    case 2: visit(std::uint16_t{}); return true;
    case 3: visit(std::int16_t{}); return true;
    case 4: visit(std::uint32_t{}); return true;
    case 5: visit(std::int32_t{}); return true;
    case 6: visit(float{}); return true;
    case 7: visit(bool{}); return true;
    case 10: visit(std::uint64_t{}); return true;
    case 11: visit(std::int64_t{}); return true;
    case 12: visit(double{}); return true;
    default: return false;
  }
}
constexpr std::uint32_t kStringType = 8;
constexpr std::uint32_t kArrayType = 9;

/// bool, int64 or double: what the three kinds of scalar arrive as.
template <class Stored>
using Widened =
    std::conditional_t<std::is_same_v<Stored, bool>, bool, std::conditional_t<std::is_floating_point_v<Stored>, double, std::int64_t>>;

template <class Stored>
Widened<Stored> read_scalar(GgufCursor& cursor) {
  if constexpr (std::is_same_v<Stored, bool>) {
    const auto byte = cursor.read<std::uint8_t>("value");
    if (byte > 1) cursor.fail("value", "expected a bool of 0 or 1, got " + std::to_string(byte), 1);
    return byte == 1;
  } else if constexpr (std::is_same_v<Stored, std::uint64_t>) {
    const auto value = cursor.read<std::uint64_t>("value");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      cursor.fail("value", "expected an integer below 2^63, got " + std::to_string(value), 8);
    }
    return static_cast<std::int64_t>(value);
  } else {
    return static_cast<Widened<Stored>>(cursor.read<Stored>("value"));
  }
}

GgufValue read_string_array(GgufCursor& cursor) {
  const std::int64_t count = cursor.read_count("array length", 8);
  std::vector<std::string> strings;
  strings.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) strings.emplace_back(cursor.read_string("array element"));
  return strings;
}

template <class Stored>
GgufValue read_scalar_array(GgufCursor& cursor) {
  const std::int64_t count = cursor.read_count("array length", static_cast<std::int64_t>(sizeof(Stored)));
  std::vector<Widened<Stored>> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values.push_back(read_scalar<Stored>(cursor));
  return values;
}

GgufValue read_array(GgufCursor& cursor) {
  const auto type = cursor.read<std::uint32_t>("array element type");
  if (type == kStringType) return read_string_array(cursor);
  if (type == kArrayType) cursor.fail("array element type", "arrays of arrays are not supported", 4);
  GgufValue value;
  const bool known = visit_scalar_type(type, [&](auto stored) { value = read_scalar_array<decltype(stored)>(cursor); });
  if (!known) cursor.fail("array element type", "expected 0 to 12, got " + std::to_string(type), 4);
  return value;
}

GgufValue read_value(GgufCursor& cursor) {
  const auto type = cursor.read<std::uint32_t>("value type");
  if (type == kStringType) return std::string(cursor.read_string("value"));
  if (type == kArrayType) return read_array(cursor);
  GgufValue value;
  const bool known = visit_scalar_type(type, [&](auto stored) { value = read_scalar<decltype(stored)>(cursor); });
  if (!known) cursor.fail("value type", "expected 0 to 12, got " + std::to_string(type), 4);
  return value;
}

void check_magic_and_version(GgufCursor& cursor, GgufContents& contents) {
  const auto magic = cursor.read<std::array<char, 4>>("magic");
  const std::string_view text(magic.data(), magic.size());
  if (text == "FUGG") cursor.fail("magic", "big-endian files are not supported", 4);
  if (text != "GGUF") cursor.fail("magic", "expected \"GGUF\", got " + quoted(text), 4);
  const auto version = cursor.read<std::uint32_t>("version");
  if (version == 1) cursor.fail("version", "version 1 (32-bit lengths) is not supported, expected 2 or 3", 4);
  if (version != 0 && (version & 0xFFFFU) == 0) cursor.fail("version", "big-endian files are not supported", 4);
  if (version != 2 && version != 3) cursor.fail("version", "expected 2 or 3, got " + std::to_string(version), 4);
  contents.version = version;
}

void read_metadata(GgufCursor& cursor, std::int64_t count, GgufContents& contents) {
  for (std::int64_t i = 0; i < count; ++i) {
    cursor.enter("metadata entry " + std::to_string(i));
    const std::int64_t start = cursor.position();
    const std::string_view key = cursor.read_string("key");
    if (key.empty() || key.size() > kMaxKeyBytes) {
      cursor.fail("key", "expected 1 to 65535 bytes, got " + std::to_string(key.size()), cursor.position() - start);
    }
    cursor.enter("key " + quoted(key));
    contents.value_offsets.push_back(start);
    contents.keys.emplace_back(key);
    contents.values.push_back(read_value(cursor));
  }
}

/// A tensor's record before its data is located.
struct TensorRecord {
  std::int64_t position = 0;  ///< of the record in the file
  std::uint64_t offset = 0;   ///< from the data start
  std::int64_t offset_position = 0;
};

/// GGUF writes the fastest axis first; Shape has it last.
Shape read_shape(GgufCursor& cursor) {
  const auto rank = cursor.read<std::uint32_t>("rank");
  if (rank < 1 || rank > kMaxTensorRank) cursor.fail("rank", "expected 1 to 4, got " + std::to_string(rank), 4);
  std::array<std::int64_t, kMaxTensorRank> sizes{};
  std::int64_t product = 1;
  for (std::uint32_t i = 0; i < rank; ++i) {
    const auto size = cursor.read<std::uint64_t>("dimension " + std::to_string(i));
    const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max() / product);
    if (size < 1 || size > most) {
      cursor.fail("dimension " + std::to_string(i), "expected at least 1 and a product below 2^63, got " + std::to_string(size), 8);
    }
    product *= static_cast<std::int64_t>(size);
    sizes[rank - 1 - i] = static_cast<std::int64_t>(size);
  }
  return Shape(std::span<const std::int64_t>(sizes.data(), rank));
}

GgmlType read_type(GgufCursor& cursor, const Shape& shape) {
  const auto number = cursor.read<std::uint32_t>("type");
  const std::optional<GgmlType> type = known_type(number);
  if (!type) cursor.fail("type", "expected one of " + supported_types() + ", got " + describe_type(number), 4);
  const std::int64_t row = shape[shape.rank() - 1];
  if (row % block_values(*type) != 0) {
    cursor.fail("dimension 0",
                std::to_string(row) + " is not a multiple of the " + std::to_string(block_values(*type)) + " values in a block of " +
                    to_string(*type),
                4);
  }
  return *type;
}

std::vector<TensorRecord> read_tensor_records(GgufCursor& cursor, std::int64_t count, GgufContents& contents) {
  std::vector<TensorRecord> records;
  for (std::int64_t i = 0; i < count; ++i) {
    TensorRecord record;
    record.position = cursor.position();
    cursor.enter("tensor " + std::to_string(i));
    GgufTensor tensor;
    tensor.name = cursor.read_string("name");
    cursor.enter("tensor " + quoted(tensor.name));
    tensor.shape = read_shape(cursor);
    tensor.type = read_type(cursor, tensor.shape);
    record.offset_position = cursor.position();
    record.offset = cursor.read<std::uint64_t>("offset");
    contents.tensors.push_back(std::move(tensor));
    records.push_back(record);
  }
  return records;
}

std::uint64_t read_alignment(const GgufContents& contents, std::string_view file) {
  const std::int64_t index = contents.find_key("general.alignment");
  if (index < 0) return kDefaultAlignment;
  const auto at = static_cast<std::size_t>(index);
  const auto* value = std::get_if<std::int64_t>(&contents.values[at]);
  // At least 8, as the format says: float32 data may then be read in place.
  if (value == nullptr || *value < 8 || !std::has_single_bit(static_cast<std::uint64_t>(*value))) {
    const std::string got = value != nullptr ? std::to_string(*value) : std::string("another type");
    throw_format_error(file, "key \"general.alignment\"", "expected an integer power of two from 8, got " + got,
                       contents.value_offsets[at]);
  }
  return static_cast<std::uint64_t>(*value);
}

/// Points every tensor at its bytes after checking that they are inside of the file. The header ends at `header_bytes`.
void locate_tensors(std::span<const std::byte> bytes, std::int64_t header_bytes, const std::vector<TensorRecord>& records,
                    std::string_view file, GgufContents& contents) {
  const std::uint64_t alignment = read_alignment(contents, file);
  const auto header = static_cast<std::uint64_t>(header_bytes);
  const std::uint64_t start = (header + alignment - 1) / alignment * alignment;  // both below 2^63: no overflow
  const std::uint64_t available = start <= bytes.size() ? bytes.size() - start : 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    GgufTensor& tensor = contents.tensors[i];
    const std::string field = "tensor " + quoted(tensor.name) + ": offset";
    const std::uint64_t offset = records[i].offset;
    if (offset % alignment != 0) {
      throw_format_error(file, field, std::to_string(offset) + " is not a multiple of the alignment " + std::to_string(alignment),
                         records[i].offset_position);
    }
    const auto blocks = static_cast<std::uint64_t>(element_count(tensor.shape) / block_values(tensor.type));
    const auto per_block = static_cast<std::uint64_t>(block_bytes(tensor.type));
    if (offset > available || blocks > (available - offset) / per_block) {
      throw_format_error(file, field,
                         std::to_string(blocks) + " blocks of " + std::to_string(per_block) + " bytes at offset " + std::to_string(offset) +
                             " end after the " + std::to_string(available) + " bytes of tensor data",
                         records[i].offset_position);
    }
    tensor.data = bytes.data() + start + offset;
    tensor.size_bytes = static_cast<std::int64_t>(blocks * per_block);
  }
}

/// Indices sorted by name. Two equal names are an error at the later one.
template <class NameOf, class Fail>
std::vector<std::size_t> sorted_by_name(std::size_t count, NameOf&& name_of, Fail&& fail) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const int names = std::string_view(name_of(a)).compare(name_of(b));
    return names != 0 ? names < 0 : a < b;
  });
  for (std::size_t i = 1; i < count; ++i) {
    if (name_of(order[i - 1]) == name_of(order[i])) fail(order[i]);
  }
  return order;
}

template <class NameOf>
std::int64_t find_sorted(const std::vector<std::size_t>& order, std::string_view name, NameOf&& name_of) noexcept {
  const auto found =
      std::lower_bound(order.begin(), order.end(), name, [&](std::size_t i, std::string_view wanted) { return name_of(i) < wanted; });
  return found != order.end() && name_of(*found) == name ? static_cast<std::int64_t>(*found) : -1;
}

void index_keys(std::string_view file, GgufContents& contents) {
  contents.key_order = sorted_by_name(
      contents.keys.size(), [&](std::size_t i) -> const std::string& { return contents.keys[i]; },
      [&](std::size_t i) { throw_format_error(file, "key " + quoted(contents.keys[i]), "appears twice", contents.value_offsets[i]); });
}

void index_tensors(std::string_view file, const std::vector<TensorRecord>& records, GgufContents& contents) {
  contents.tensor_order = sorted_by_name(
      contents.tensors.size(), [&](std::size_t i) -> const std::string& { return contents.tensors[i].name; },
      [&](std::size_t i) { throw_format_error(file, "tensor " + quoted(contents.tensors[i].name), "appears twice", records[i].position); });
}

}  // namespace

std::int64_t GgufContents::find_key(std::string_view key) const noexcept {
  return find_sorted(key_order, key, [this](std::size_t i) -> std::string_view { return keys[i]; });
}

std::int64_t GgufContents::find_tensor(std::string_view name) const noexcept {
  return find_sorted(tensor_order, name, [this](std::size_t i) -> std::string_view { return tensors[i].name; });
}

GgufContents parse_gguf(std::span<const std::byte> bytes, std::string_view file) {
  GgufContents contents;
  GgufCursor cursor(bytes, file);
  check_magic_and_version(cursor, contents);
  const std::int64_t tensors = cursor.read_count("tensor count", kLeastTensorBytes);
  const std::int64_t keys = cursor.read_count("metadata count", kLeastKeyBytes);
  read_metadata(cursor, keys, contents);
  index_keys(file, contents);
  const std::vector<TensorRecord> records = read_tensor_records(cursor, tensors, contents);
  index_tensors(file, records, contents);
  locate_tensors(bytes, cursor.position(), records, file, contents);
  return contents;
}

}  // namespace heed::model
