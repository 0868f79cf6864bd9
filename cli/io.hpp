// SPDX-License-Identifier: Apache-2.0
// What every subcommand needs of its surroundings: standard output that notices a reader who left, text files, Ctrl-C.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace heed::cli {

/// Standard output's reader has closed its end (`heed ... | head -1`): not a failure, the program just ends.
struct ReaderLeft {};

/// Writes to standard output and flushes. Throws ReaderLeft, or std::system_error for any other failure.
void print(std::string_view text);
/// Writes to standard error; a failure is ignored, as nobody is left to tell.
void note(std::string_view text);

/// A file's bytes; "-" is standard input. Throws std::system_error that names the file.
[[nodiscard]] std::string read_text(const std::string& path);
/// Replaces a file's content; "-" prints. Throws std::system_error that names the file.
void write_text(const std::string& path, std::string_view text);
/// Throws what write_text would, and keeps the file's content: to be asked before minutes of work, not after.
void require_writable(const std::string& path);

/// From now on the first Ctrl-C only sets interrupted(), the second one kills; a closed pipe gives an error instead of a signal.
void catch_signals();
[[nodiscard]] bool interrupted() noexcept;

/// "49,152"
[[nodiscard]] std::string grouped(std::int64_t number);
/// "92.4 MB", in powers of 1000.
[[nodiscard]] std::string bytes_text(std::int64_t bytes);

}  // namespace heed::cli
