// SPDX-License-Identifier: Apache-2.0
// Prompt formats of conversations, recognised by the text of a file's chat template. No template language is run: a template is a program
// from an untrusted file, and the four families need only a few traits of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <heed/model/tokenizer.hpp>

namespace heed::model {

enum class ChatFamily : std::uint8_t { kChatMl, kGemma, kLlama3, kMistral };

/// nullopt: none of the families.
[[nodiscard]] std::optional<ChatFamily> recognise_template(std::string_view chat_template) noexcept;
/// The prompt without begin-of-sequence token, which encode() puts in front. Throws InvalidArgument for a conversation that the template
/// refuses. `end_text` is the text of the file's eos token (Mistral writes it after an answer).
[[nodiscard]] std::string format_chat(ChatFamily family, std::string_view chat_template, std::string_view end_text,
                                      std::span<const ChatMessage> messages);

}  // namespace heed::model
