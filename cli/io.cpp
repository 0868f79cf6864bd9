// SPDX-License-Identifier: Apache-2.0
#include "cli/io.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <memory>
#include <system_error>

#include <fmt/format.h>

namespace heed::cli {
namespace {

volatile std::sig_atomic_t interrupt_seen = 0;

void on_interrupt(int /*signal*/) { interrupt_seen = 1; }

[[noreturn]] void throw_errno(int code, const std::string& what) { throw std::system_error(code, std::generic_category(), what); }

struct CloseFile {
  void operator()(std::FILE* file) const noexcept { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

std::string read_all(std::FILE* file, const std::string& name) {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file)) text.append(buffer.data(), count);
  if (std::ferror(file) != 0) throw_errno(errno, "cannot read " + name);
  return text;
}

}  // namespace

void print(std::string_view text) {
  errno = 0;
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written) return;
  if (errno == EPIPE) throw ReaderLeft{};
  throw_errno(errno, "cannot write to standard output");
}

void note(std::string_view text) { (void)std::fwrite(text.data(), 1, text.size(), stderr); }

std::string read_text(const std::string& path) {
  if (path == "-") return read_all(stdin, "standard input");
  const File file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) throw_errno(errno, "cannot open " + path);
  return read_all(file.get(), path);
}

void write_text(const std::string& path, std::string_view text) {
  if (path == "-") return print(text);
  File file(std::fopen(path.c_str(), "wb"));
  if (file == nullptr) throw_errno(errno, "cannot open " + path + " for writing");
  const bool written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (std::fclose(file.release()) != 0 || !written) throw_errno(errno, "cannot write " + path);
}

void require_writable(const std::string& path) {
  if (path == "-") return;
  const File file(std::fopen(path.c_str(), "ab"));
  if (file == nullptr) throw_errno(errno, "cannot open " + path + " for writing");
}

void catch_signals() {
  struct sigaction interrupt = {};
  interrupt.sa_handler = on_interrupt;
  interrupt.sa_flags = static_cast<int>(SA_RESETHAND);  // a second Ctrl-C is not asked twice
  sigemptyset(&interrupt.sa_mask);
  sigaction(SIGINT, &interrupt, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool interrupted() noexcept { return interrupt_seen != 0; }

std::string grouped(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t sign = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > sign + 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"bytes", "kB", "MB", "GB", "TB"};
  if (bytes < 1000) return fmt::format("{} bytes", bytes);
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 999.95 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace heed::cli
