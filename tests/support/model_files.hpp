// SPDX-License-Identifier: Apache-2.0
// The real models, where HEED_TEST_MODELS names a folder that holds them.
#pragma once

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace heed::test {

/// Empty, with a printed reason, when HEED_TEST_MODELS does not lead to <name>.gguf.
inline std::filesystem::path model_path(const std::string& name) {
  const char* folder = std::getenv("HEED_TEST_MODELS");
  const std::string file = name + ".gguf";
  if (folder != nullptr && std::filesystem::exists(std::filesystem::path(folder) / file)) return std::filesystem::path(folder) / file;
  std::fprintf(stderr, "SKIPPED: %s is not in the folder that HEED_TEST_MODELS names (%s)\n", file.c_str(),
               folder != nullptr ? folder : "not set");
  return {};
}

inline std::vector<std::byte> read_file(const std::filesystem::path& path) {
  std::vector<std::byte> bytes(std::filesystem::file_size(path));
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  return bytes;
}

}  // namespace heed::test
