// SPDX-License-Identifier: Apache-2.0
// Reads little-endian fields from untrusted bytes; nothing is read, and no size is believed, before it is checked against what is left.
// Every error names the file, the field and the byte offset.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

namespace heed::model {

static_assert(std::endian::native == std::endian::little, "GGUF files are read in place: a big-endian machine needs byte swaps here");

/// Throws FormatError "<file>: <field>: <problem> (byte <offset>)".
[[noreturn]] void throw_format_error(std::string_view file, std::string_view field, std::string_view problem, std::int64_t offset);

/// A name from the file as an error shows it: quoted, control characters escaped, cut at 80 bytes.
[[nodiscard]] std::string quoted(std::string_view text);

class GgufCursor {
 public:
  GgufCursor(std::span<const std::byte> bytes, std::string_view file) : bytes_(bytes), file_(file) {}

  [[nodiscard]] std::int64_t position() const noexcept { return position_; }
  [[nodiscard]] std::int64_t left() const noexcept { return static_cast<std::int64_t>(bytes_.size()) - position_; }

  /// What the following fields belong to, for errors: `key "general.alignment"`, `tensor "output.weight"`.
  void enter(std::string context) { context_ = std::move(context); }

  template <class T>
  [[nodiscard]] T read(std::string_view field) {
    static_assert(std::is_trivially_copyable_v<T>);
    need(field, static_cast<std::int64_t>(sizeof(T)));
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += static_cast<std::int64_t>(sizeof(T));
    return value;
  }

  /// u64 length, then bytes; a view into the file.
  [[nodiscard]] std::string_view read_string(std::string_view field);

  /// A u64 count of things that take at least `least_bytes` each, so that more of them than the rest of the file holds is an error.
  [[nodiscard]] std::int64_t read_count(std::string_view field, std::int64_t least_bytes);

  /// Throws, pointing at the field that starts `back_bytes` before the current position.
  [[noreturn]] void fail(std::string_view field, std::string_view problem, std::int64_t back_bytes = 0) const;

 private:
  void need(std::string_view field, std::int64_t bytes) const;

  std::span<const std::byte> bytes_;
  std::string_view file_;
  std::string context_ = "header";
  std::int64_t position_ = 0;
};

}  // namespace heed::model
