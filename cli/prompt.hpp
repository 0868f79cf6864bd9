// SPDX-License-Identifier: Apache-2.0
// Where a command's text comes from: -p TEXT, or a file. Exactly one of them.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "cli/io.hpp"

namespace heed::cli {

struct TextSource {
  std::string text, file;
  [[nodiscard]] std::string read() const { return file.empty() ? text : read_text(file); }
};

/// Adds -p/--prompt and `file_option` (such as "--prompt-file") to the command.
inline void add_text_source(CLI::App& command, TextSource& source, const std::string& file_option) {
  CLI::Option_group* group = command.add_option_group("Text", "where the text comes from");
  group->add_option("-p,--prompt", source.text, "The text itself")->type_name("TEXT");
  group->add_option(file_option, source.file, "A file that holds it, - for standard input")->type_name("FILE");
  group->require_option(1);
}

}  // namespace heed::cli
