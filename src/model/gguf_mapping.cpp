// SPDX-License-Identifier: Apache-2.0
#include "model/gguf_mapping.hpp"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace heed::model {
namespace {

class FileDescriptor {
 public:
  /// O_NONBLOCK: opening a pipe that nobody writes to would wait for ever; files know no difference.
  explicit FileDescriptor(const std::string& path) : value_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileDescriptor() {
    if (value_ >= 0) ::close(value_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const noexcept { return value_; }

 private:
  int value_;
};

[[noreturn]] void throw_system(const std::string& path, int error) { throw std::system_error(error, std::generic_category(), path); }

}  // namespace

FileMapping::FileMapping(const std::string& path) {
  const FileDescriptor file(path);
  struct stat status {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) throw_system(path, errno);
  if (!S_ISREG(status.st_mode)) throw_system(path, S_ISDIR(status.st_mode) ? EISDIR : EINVAL);
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ == 0) return;  // an empty mapping is an error, an empty file is for the parser to refuse
  void* memory = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (memory == MAP_FAILED) throw_system(path, errno);
  data_ = static_cast<const std::byte*>(memory);
}

FileMapping::~FileMapping() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace heed::model
