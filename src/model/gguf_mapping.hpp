// SPDX-License-Identifier: Apache-2.0
// A whole file, mapped read-only. Cutting the file while it is mapped kills the process (SIGBUS); replacing it does not.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace heed::model {

class FileMapping {
 public:
  /// Throws std::system_error naming the path.
  explicit FileMapping(const std::string& path);
  ~FileMapping();
  FileMapping(const FileMapping&) = delete;
  FileMapping& operator=(const FileMapping&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace heed::model
