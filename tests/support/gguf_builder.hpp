// SPDX-License-Identifier: Apache-2.0
// Writes small GGUF files, right or wrong on purpose, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <heed/model/gguf.hpp>

namespace heed::test {

/// Bytes at an address aligned to 8, as mapped files have, in a block of exactly their size, so that a sanitizer sees any read past it.
class AlignedBytes {
 public:
  explicit AlignedBytes(std::span<const std::byte> bytes) : size_(bytes.size()), data_(new std::byte[bytes.size()]) {
    if (!bytes.empty()) std::memcpy(data_.get(), bytes.data(), bytes.size());
  }
  [[nodiscard]] std::span<const std::byte> span() const { return {data_.get(), size_}; }

 private:
  std::size_t size_;
  std::unique_ptr<std::byte[]> data_;
};

/// Value type numbers of the format.
template <class T>
constexpr std::uint32_t gguf_type_of() {
  if constexpr (std::is_same_v<T, std::uint8_t>) return 0;
  if constexpr (std::is_same_v<T, std::int8_t>) return 1;
  if constexpr (std::is_same_v<T, std::uint16_t>) return 2;
  if constexpr (std::is_same_v<T, std::int16_t>) return 3;
  if constexpr (std::is_same_v<T, std::uint32_t>) return 4;
  if constexpr (std::is_same_v<T, std::int32_t>) return 5;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, std::uint64_t>) return 10;
  if constexpr (std::is_same_v<T, std::int64_t>) return 11;
  if constexpr (std::is_same_v<T, double>) return 12;
}

/// Appends fields. Keys and tensor records go to separate parts; finish() joins them with right counts, padding and data.
class GgufBuilder {
 public:
  static void put_bytes(std::vector<std::byte>& to, const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    to.insert(to.end(), bytes, bytes + size);
  }
  template <class T>
  static void put(std::vector<std::byte>& to, T value) {
    put_bytes(to, &value, sizeof(T));
  }
  static void put_string(std::vector<std::byte>& to, std::string_view text) {
    put<std::uint64_t>(to, text.size());
    put_bytes(to, text.data(), text.size());
  }

  /// The start of an entry; the caller appends the value to metadata() itself.
  GgufBuilder& key(std::string_view name, std::uint32_t type) {
    ++keys_;
    put_string(metadata_, name);
    put(metadata_, type);
    return *this;
  }
  template <class T>
  GgufBuilder& scalar(std::string_view name, T value) {
    key(name, gguf_type_of<T>());
    put(metadata_, value);
    return *this;
  }
  GgufBuilder& string(std::string_view name, std::string_view value) {
    key(name, 8);
    put_string(metadata_, value);
    return *this;
  }
  template <class T>
  GgufBuilder& array(std::string_view name, const std::vector<T>& values) {
    key(name, 9);
    put(metadata_, gguf_type_of<T>());
    put<std::uint64_t>(metadata_, values.size());
    for (const T value : values) put(metadata_, value);
    return *this;
  }
  GgufBuilder& strings(std::string_view name, const std::vector<std::string>& values) {
    key(name, 9);
    put(metadata_, std::uint32_t{8});
    put<std::uint64_t>(metadata_, values.size());
    for (const std::string& value : values) put_string(metadata_, value);
    return *this;
  }

  /// `sizes` in the file's order: fastest axis first. The data is put at the next multiple of the alignment.
  GgufBuilder& tensor(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& sizes, std::span<const std::byte> data) {
    record(name, type, sizes, data_.size());
    put_bytes(data_, data.data(), data.size());
    pad(data_);
    return *this;
  }
  /// A record alone, with any offset.
  GgufBuilder& record(std::string_view name, std::uint32_t type, const std::vector<std::uint64_t>& sizes, std::uint64_t offset) {
    ++tensors_;
    put_string(records_, name);
    put(records_, static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) put(records_, size);
    put(records_, type);
    put(records_, offset);
    return *this;
  }

  GgufBuilder& version(std::uint32_t number) {
    version_ = number;
    return *this;
  }
  GgufBuilder& magic(std::string_view text) {
    magic_ = text;
    return *this;
  }
  GgufBuilder& alignment(std::uint64_t bytes) {
    alignment_ = bytes;
    return *this;
  }
  std::vector<std::byte>& metadata() { return metadata_; }

  [[nodiscard]] std::vector<std::byte> finish() const { return finish(tensors_, keys_); }
  /// The same with other counts in the header.
  [[nodiscard]] std::vector<std::byte> finish(std::uint64_t tensors, std::uint64_t keys) const {
    std::vector<std::byte> file;
    put_bytes(file, magic_.data(), magic_.size());
    put(file, version_);
    put(file, tensors);
    put(file, keys);
    put_bytes(file, metadata_.data(), metadata_.size());
    put_bytes(file, records_.data(), records_.size());
    pad(file);
    put_bytes(file, data_.data(), data_.size());
    return file;
  }
  [[nodiscard]] std::size_t header_bytes() const { return 24 + metadata_.size() + records_.size(); }

 private:
  void pad(std::vector<std::byte>& bytes) const {
    while (bytes.size() % alignment_ != 0) bytes.push_back(std::byte{0});
  }

  std::vector<std::byte> metadata_, records_, data_;
  std::uint64_t keys_ = 0, tensors_ = 0, alignment_ = 32;
  std::uint32_t version_ = 3;
  std::string magic_ = "GGUF";
};

}  // namespace heed::test
