// SPDX-License-Identifier: Apache-2.0
// Damaged headers of the real models, all the way through: what still parses as GGUF goes on to the configuration, the tokenizer, the
// weights and a first step, each of which may refuse with a FormatError and nothing else.
#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <heed/error.hpp>
#include <heed/model/decoder.hpp>
#include <heed/model/tokenizer.hpp>

#include "support/model_files.hpp"

namespace heed::model {
namespace {

struct Subject {
  const char* name;
  int copies;      // building Gemma's vocabulary takes 0.14 s, so fewer of them
  int every_step;  // a first token is fed to one in this many survivors
};

class HostileModel : public testing::TestWithParam<Subject> {};

std::size_t header_bytes(std::span<const std::byte> bytes) {
  const GgufFile file = GgufFile::parse(bytes, "whole.gguf");
  const std::byte* first = file.tensors()[0].data;
  for (const GgufTensor& tensor : file.tensors()) first = std::min(first, tensor.data);
  return static_cast<std::size_t>(first - bytes.data());
}

/// Three times in four near the start, where the configuration stands, or near the end, where the tensors are described.
std::size_t place(std::mt19937_64& random, std::size_t size) {
  const std::size_t near = std::min<std::size_t>(size, 4096);
  switch (random() % 4) {
    case 0: return random() % size;
    case 1: return size - 1 - random() % near;
    default: return random() % near;
  }
}

void damage(std::mt19937_64& random, std::span<std::byte> header) {
  const int times = 1 + static_cast<int>(random() % 3);
  for (int i = 0; i < times; ++i) {
    const std::size_t at = place(random, header.size());
    if (random() % 2 == 0) {
      header[at] ^= static_cast<std::byte>(1U << (random() % 8));
    } else {
      header[at] = static_cast<std::byte>(random());
    }
  }
}

/// Returns whether the file came through.
bool use(std::span<const std::byte> bytes, bool step) {
  try {
    const GgufFile file = GgufFile::parse(bytes, "damaged.gguf");
    static_cast<void>(read_config(file));
    static_cast<void>(model_info(file));
    const Tokenizer tokenizer(file);
    static_cast<void>(tokenizer.decode(tokenizer.encode("The quick brown fox <|im_end|>\n\n jumps 123 times.")));
    const Decoder decoder(file);
    if (!step) return true;
    Session session(decoder, std::min<std::int64_t>(decoder.config().context_length, 4));
    const std::vector<Token> tokens = {static_cast<Token>(decoder.config().vocabulary - 1)};
    EXPECT_EQ(static_cast<std::int64_t>(session.feed(tokens).size()), decoder.config().vocabulary);
    return true;
  } catch (const FormatError& error) {
    EXPECT_NE(std::string(error.what()).find("damaged.gguf"), std::string::npos) << error.what();
    return false;
  }
}

TEST_P(HostileModel, DamagedHeadersAreRefusedOrRun) {
  const std::filesystem::path path = test::model_path(GetParam().name);
  if (path.empty()) GTEST_SKIP() << "HEED_TEST_MODELS does not lead to this model";
  std::vector<std::byte> file = test::read_file(path);
  const std::size_t size = header_bytes(file);
  const std::vector<std::byte> header(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size));
  ASSERT_TRUE(use(file, true));
  int survivors = 0;
  for (int seed = 0; seed < GetParam().copies; ++seed) {
    std::mt19937_64 random(static_cast<std::uint64_t>(seed));
    damage(random, std::span(file).first(size));
    if (use(file, survivors % GetParam().every_step == 0)) ++survivors;
    std::copy(header.begin(), header.end(), file.begin());
  }
  EXPECT_GT(survivors, 0);                  // damage to names and texts changes nothing that matters
  EXPECT_LT(survivors, GetParam().copies);  // damage to numbers and tensor names does
}

INSTANTIATE_TEST_SUITE_P(Gguf, HostileModel, testing::Values(Subject{"smollm2", 200, 20}, Subject{"gemma3", 40, 10}),
                         [](const testing::TestParamInfo<Subject>& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace heed::model
