// SPDX-License-Identifier: Apache-2.0
// Token ids of whole models against those of another program, where HEED_TEST_MODELS names a folder with smollm2.gguf and gemma3.gguf.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include <heed/error.hpp>
#include <heed/model/gguf.hpp>
#include <heed/model/tokenizer.hpp>

namespace heed::test {
namespace {

using model::AddBos;
using model::SpecialText;
using model::Token;
using model::Tokenizer;

class TokenizerOfAModel : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("HEED_TEST_MODELS");
    path_ = std::string(folder != nullptr ? folder : "") + "/" + GetParam() + ".gguf";
    if (folder != nullptr && std::filesystem::exists(path_)) return;
    std::fprintf(stderr, "SKIPPED: %s.gguf is not in the folder that HEED_TEST_MODELS names (%s)\n", GetParam(),
                 folder != nullptr ? folder : "not set");
    GTEST_SKIP() << "HEED_TEST_MODELS does not lead to this model";
  }
  std::string path_;
};

TEST_P(TokenizerOfAModel, GivesTheIdsOfAnotherProgram) {
  std::ifstream stream(HEED_TEST_DATA "/tokens.json");
  const nlohmann::json data = nlohmann::json::parse(stream);
  const Tokenizer tokenizer(model::GgufFile::open(path_));
  const nlohmann::json& rows = data.at("models").at(GetParam());
  ASSERT_GT(rows.size(), std::size_t{30});
  for (const nlohmann::json& row : rows) {
    const auto text = row.at("text").get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, SpecialText::kParse), row.at("parsed").get<std::vector<Token>>()) << text;
    EXPECT_EQ(tokenizer.encode(text, SpecialText::kPlain, AddBos::kNo), row.at("plain").get<std::vector<Token>>()) << text;
    // Both vocabularies hold all bytes of these texts.
    EXPECT_EQ(tokenizer.decode(row.at("plain").get<std::vector<Token>>()), text);
  }
}

TEST_P(TokenizerOfAModel, HasItsEndTokens) {
  const Tokenizer tokenizer(model::GgufFile::open(path_));
  const std::vector<Token> ends(tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  const bool is_gemma = std::string(GetParam()) == "gemma3";
  EXPECT_EQ(ends, is_gemma ? (std::vector<Token>{1, 106}) : (std::vector<Token>{0, 2}));
  EXPECT_EQ(tokenizer.vocabulary_size(), is_gemma ? 262144 : 49152);
}

TEST_P(TokenizerOfAModel, ChatPrompt) {
  const model::GgufFile file = model::GgufFile::open(path_);
  const std::vector<model::ChatMessage> messages = {{"user", "Hi"}};
  if (std::string(GetParam()) == "gemma3") {  // a base model: its file holds no chat template
    EXPECT_THROW(static_cast<void>(model::chat_prompt(file, messages)), FormatError);
    return;
  }
  EXPECT_EQ(model::chat_prompt(file, messages),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

INSTANTIATE_TEST_SUITE_P(Models, TokenizerOfAModel, testing::Values("smollm2", "gemma3"),
                         [](const auto& model) { return std::string(model.param); });

}  // namespace
}  // namespace heed::test
