// SPDX-License-Identifier: Apache-2.0
// Prompts of the four families. The templates here are shortened; what the full ones render is known from running them through Jinja.
#include <gtest/gtest.h>

#include <heed/error.hpp>

#include "model/tokenizer_files.hpp"

namespace heed::test {
namespace {

using Messages = std::vector<model::ChatMessage>;

std::string prompt(const std::string& chat_template, const Messages& messages) {
  VocabularyFile file;
  file.add("</s>", kControl);
  file.eos = 0;
  file.chat_template = chat_template;
  const AlignedBytes bytes(file.bytes());
  return model::chat_prompt(model::GgufFile::parse(bytes.span(), "tiny"), messages);
}

const Messages kOne = {{"user", " Hi "}};
const Messages kLong = {{"system", "Be brief."}, {"user", "Hi "}, {"assistant", " Yes? "}, {"user", "Why"}};

TEST(ChatPrompt, ChatMlWithoutDefaultSystemMessage) {
  const std::string text =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>'}}{% endfor %}";
  EXPECT_EQ(prompt(text, kOne), "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n");
  EXPECT_EQ(prompt(text, kLong),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|>\n<|im_start|>assistant\n Yes? <|im_end|>\n"
            "<|im_start|>user\nWhy<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatPrompt, ChatMlDefaultSystemMessageIsReadFromTheTemplate) {
  const std::string expected = "<|im_start|>system\nYou are X.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n";
  // As a line break, as an escape, and after a header that no literal follows.
  EXPECT_EQ(prompt("{{ '<|im_start|>system\nYou are X.<|im_end|>\n' }}", kOne), expected);
  EXPECT_EQ(prompt("{{ '<|im_start|>system\\nYou are X.<|im_end|>\\n' }}", kOne), expected);
  EXPECT_EQ(
      prompt("{{- '<|im_start|>system\\n' + m['content'] + '<|im_end|>\\n' }}{{- '<|im_start|>system\\nYou are X.<|im_end|>\\n' }}", kOne),
      expected);
  EXPECT_EQ(prompt("{{ '<|im_start|>system\nYou are X.<|im_end|>\n' }}", kLong).find("You are X."), std::string::npos);
}

TEST(ChatPrompt, Gemma) {
  const std::string text = "{{ bos_token }}{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}";
  EXPECT_EQ(prompt(text, kOne), "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(
      prompt(text, kLong),
      "<start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nYes?<end_of_turn>\n<start_of_turn>user\nWhy<end_of_turn>\n"
      "<start_of_turn>model\n");
  EXPECT_THROW(prompt(text + "{{ raise_exception('System role not supported') }}", kLong), InvalidArgument);
}

TEST(ChatPrompt, Llama3) {
  const std::string text = "{{ '<|start_header_id|>' + role + '<|end_header_id|>\n\n' + content | trim + '<|eot_id|>' }}";
  EXPECT_EQ(prompt(text, kOne),
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n");
  const std::string dated = text + "{%- set date_string = \"01 Jan 2025\" %}{{- \"Cutting Knowledge Date: December 2023\\n\" }}";
  const std::string head =
      "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 01 Jan 2025\n\n";
  EXPECT_EQ(prompt(dated, kOne), head + "<|eot_id|>" + prompt(text, kOne));
  EXPECT_EQ(prompt(dated, {{"system", " S "}, {"user", "Hi"}}), head + "S<|eot_id|>" + prompt(text, kOne));
}

TEST(ChatPrompt, MistralFamily) {
  const std::string old = "{{ '[INST] ' + message['content'] + ' [/INST]' }}{{ message['content'] + eos_token }}";
  const Messages turns = {{"user", "Hi "}, {"assistant", " Yes? "}, {"user", "Why"}};
  EXPECT_EQ(prompt(old, turns), "[INST] Hi  [/INST] Yes? </s>[INST] Why [/INST]");
  EXPECT_THROW(prompt(old, kLong), InvalidArgument);
  const std::string v1 =
      "{% if loop.first and system_message is defined %}{{ ' [INST] ' + system_message + '\\n\\n' + message['content'] + ' [/INST]' }}"
      "{{ ' ' + message['content'] + eos_token }}";
  EXPECT_EQ(prompt(v1, kLong), " [INST] Be brief.\n\nHi  [/INST]  Yes? </s> [INST] Why [/INST]");
  const std::string v3 =
      "{% if loop.last and system_message is defined %}{{ \"[INST] \" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}"
      "{{ \" \" + message[\"content\"]|trim + eos_token }}";
  EXPECT_EQ(prompt(v3, kLong), "[INST] Hi [/INST] Yes?</s>[INST] Be brief.\n\nWhy[/INST]");
  const std::string tekken =
      "{% if loop.last and system_message is defined %}{{ \"[INST]\" + system_message + \"\\n\\n\" + message[\"content\"] + \"[/INST]\" }}"
      "{{ message[\"content\"] + eos_token }}";
  EXPECT_EQ(prompt(tekken, kLong), "[INST]Hi [/INST] Yes? </s>[INST]Be brief.\n\nWhy[/INST]");
}

TEST(ChatPrompt, RefusesWhatTheTemplatesRefuse) {
  const std::string gemma = "<start_of_turn>", chatml = "<|im_start|>";
  EXPECT_THROW(prompt(chatml, {}), InvalidArgument);
  EXPECT_THROW(prompt(chatml, {{"tool", "x"}}), InvalidArgument);
  EXPECT_THROW(prompt(gemma, {{"assistant", "x"}}), InvalidArgument);
  EXPECT_THROW(prompt(gemma, {{"user", "x"}, {"user", "y"}}), InvalidArgument);
  EXPECT_THROW(prompt(gemma, {{"user", "x"}, {"assistant", "y"}}), InvalidArgument);
  EXPECT_THROW(prompt(gemma, {{"system", "x"}}), InvalidArgument);
}

TEST(ChatPrompt, UnknownTemplatesNameTheKey) {
  for (const std::string text : {"{{ 'GPT4 Correct User: ' }}", "[INST] <<SYS>>", "[SYSTEM_PROMPT][INST]", ""}) {
    try {
      static_cast<void>(prompt(text, kOne));
      ADD_FAILURE() << text;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find("tokenizer.chat_template"), std::string::npos) << error.what();
    }
  }
  VocabularyFile file;
  file.add("a");
  const AlignedBytes bytes(file.bytes());
  EXPECT_THROW(static_cast<void>(model::chat_prompt(model::GgufFile::parse(bytes.span(), "tiny"), kOne)), FormatError);
}

}  // namespace
}  // namespace heed::test
