// SPDX-License-Identifier: Apache-2.0
// GGUF model files, versions 2 and 3, read in place. The file is untrusted: every length and offset is checked before use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <heed/export.hpp>
#include <heed/tensor.hpp>

namespace heed::model {

/// Storage of a tensor; the numbers are ggml's. Block formats: docs/gguf.md.
enum class GgmlType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};
/// "Q4_1", ...
[[nodiscard]] HEED_API const char* to_string(GgmlType type) noexcept;
/// Values per block (1, 32 or 256) and bytes per block.
[[nodiscard]] HEED_API std::int64_t block_values(GgmlType type) noexcept;
[[nodiscard]] HEED_API std::int64_t block_bytes(GgmlType type) noexcept;

/// A tensor in the mapped file. `data` stays valid as long as the GgufFile.
struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  Shape shape;  ///< row-major: a weight is [out, in] (GGUF itself writes the fastest axis first)
  const std::byte* data = nullptr;
  std::int64_t size_bytes = 0;
};

class GgufFile;
/// A metadata value. Integers of any width arrive as int64 (uint64 above 2^63 - 1 is a FormatError); arrays are homogeneous.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>, std::vector<bool>,
                               std::vector<std::string>>;

/// A memory-mapped file. Moves only.
class HEED_API GgufFile {
 public:
  /// Throws FormatError naming the file, the field and the byte offset; std::system_error when the file cannot be opened or mapped.
  static GgufFile open(const std::string& path);
  /// The same over memory that must outlive the result; `name` is used in errors. For tests and fuzzing.
  static GgufFile parse(std::span<const std::byte> bytes, const std::string& name);

  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;
  ~GgufFile();

  [[nodiscard]] const std::string& name() const noexcept;
  [[nodiscard]] std::uint32_t version() const noexcept;
  [[nodiscard]] std::int64_t file_bytes() const noexcept;

  /// Null when the key is absent.
  [[nodiscard]] const GgufValue* find(std::string_view key) const noexcept;
  /// nullopt when absent; FormatError when the value has another type. Integers convert to double, never the reverse.
  [[nodiscard]] std::optional<std::int64_t> find_int(std::string_view key) const;
  [[nodiscard]] std::optional<double> find_double(std::string_view key) const;
  [[nodiscard]] std::optional<bool> find_bool(std::string_view key) const;
  [[nodiscard]] std::optional<std::string> find_string(std::string_view key) const;
  /// FormatError naming the key when it is absent or has another type.
  [[nodiscard]] std::int64_t require_int(std::string_view key) const;
  [[nodiscard]] double require_double(std::string_view key) const;
  [[nodiscard]] const std::string& require_string(std::string_view key) const;
  [[nodiscard]] const std::vector<std::string>& require_strings(std::string_view key) const;
  [[nodiscard]] std::span<const std::string> keys() const noexcept;

  [[nodiscard]] std::span<const GgufTensor> tensors() const noexcept;
  [[nodiscard]] const GgufTensor* find_tensor(std::string_view name) const noexcept;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

/// A tensor's values as float32, row-major: the exact meaning of its blocks.
[[nodiscard]] HEED_API Tensor dequantize(const GgufTensor& tensor);

}  // namespace heed::model
