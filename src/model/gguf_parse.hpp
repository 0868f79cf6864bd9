// SPDX-License-Identifier: Apache-2.0
// GGUF bytes -> metadata and tensors. The only part that reads untrusted numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <heed/model/gguf.hpp>

namespace heed::model {

struct GgufContents {
  std::uint32_t version = 0;
  std::vector<std::string> keys;            ///< in file order
  std::vector<GgufValue> values;            ///< [keys]
  std::vector<std::int64_t> value_offsets;  ///< [keys], for errors
  std::vector<GgufTensor> tensors;
  std::vector<std::size_t> key_order, tensor_order;  ///< indices sorted by name, for look-ups

  /// Index or -1.
  [[nodiscard]] std::int64_t find_key(std::string_view key) const noexcept;
  [[nodiscard]] std::int64_t find_tensor(std::string_view name) const noexcept;
};

/// Throws FormatError. Memory taken is at most a small multiple of the bytes given.
[[nodiscard]] GgufContents parse_gguf(std::span<const std::byte> bytes, std::string_view file);

}  // namespace heed::model
