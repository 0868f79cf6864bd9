// SPDX-License-Identifier: Apache-2.0
#include "model/chat.hpp"

#include <vector>

#include "base/message.hpp"
#include "model/tokenizer_vocabulary.hpp"

namespace heed::model {

namespace {

using Messages = std::span<const ChatMessage>;

bool contains(std::string_view text, std::string_view part) noexcept { return text.find(part) != std::string_view::npos; }

[[noreturn]] void refuse(const std::string& expected, const std::string& got) {
  base::throw_invalid("chat_prompt", "messages", expected, got);
}

/// Jinja's trim: white space at both ends.
std::string_view trim(std::string_view text) noexcept {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const std::size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

/// Splits off a leading system message.
std::optional<std::string_view> take_system(Messages& messages) {
  if (messages.empty() || messages.front().role != "system") return std::nullopt;
  const std::string_view content = messages.front().content;
  messages = messages.subspan(1);
  return content;
}

void check_roles(Messages messages) {
  if (messages.empty()) refuse("at least one message", "none");
  for (const ChatMessage& message : messages) {
    if (message.role != "system" && message.role != "user" && message.role != "assistant") {
      refuse("role system, user or assistant", '"' + message.role + '"');
    }
  }
}

/// User first, then by turns, as the templates of Gemma and Mistral demand; an answer can only follow the user's turn.
void check_turns(Messages messages) {
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string_view expected = i % 2 == 0 ? "user" : "assistant";
    if (messages[i].role != expected) {
      refuse("user and assistant by turns after an optional system message", messages[i].role + " as turn " + std::to_string(i + 1));
    }
  }
  if (messages.size() % 2 == 0) refuse("the user's turn last", messages.empty() ? "no user turn" : "assistant");
}

/// A string literal's text with Jinja's escapes undone.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'n') {
      out += '\n';
    } else if (c == 't') {
      out += '\t';
    } else {
      out += c;
    }
  }
  return out;
}

/// The system message that a ChatML template writes when the conversation has none: the literal between the system header and <|im_end|>.
std::optional<std::string> default_system(std::string_view chat_template) {
  constexpr std::string_view kHeader = "<|im_start|>system";
  constexpr std::string_view kEnd = "<|im_end|>";
  for (std::size_t at = chat_template.find(kHeader); at != std::string_view::npos; at = chat_template.find(kHeader, at + 1)) {
    const std::string_view rest = chat_template.substr(at + kHeader.size());
    const std::string text = unescape(rest.substr(0, rest.find(kEnd)));
    const bool is_literal = !text.empty() && text.front() == '\n' && text.find_first_of("{}'\"") == std::string::npos;
    if (is_literal && contains(rest, kEnd)) return text.substr(1);
  }
  return std::nullopt;
}

std::string format_chatml(std::string_view chat_template, Messages messages) {
  std::string prompt;
  const auto add = [&](std::string_view role, std::string_view content) {
    prompt.append("<|im_start|>").append(role).append("\n").append(content).append("<|im_end|>\n");
  };
  if (messages.front().role != "system") {
    const std::optional<std::string> system = default_system(chat_template);
    if (system) add("system", *system);
  }
  for (const ChatMessage& message : messages) add(message.role, message.content);
  return prompt + "<|im_start|>assistant\n";
}

/// Gemma 3 puts the system message before the first user's text; Gemma 1 and 2 refuse one.
std::string format_gemma(std::string_view chat_template, Messages messages) {
  const std::optional<std::string_view> system = take_system(messages);
  if (system && contains(chat_template, "System role not supported")) refuse("no system message: the template refuses one", "one");
  check_turns(messages);
  std::string prompt;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    prompt.append("<start_of_turn>").append(messages[i].role == "assistant" ? "model" : "user").append("\n");
    if (i == 0 && system) prompt.append(*system).append("\n\n");
    prompt.append(trim(messages[i].content)).append("<end_of_turn>\n");
  }
  return prompt + "<start_of_turn>model\n";
}

/// Llama 3.1 and later open with dates, whether there is a system message or not. Today's date is the one that the template falls back
/// to: the same conversation gives the same prompt on every day.
std::string llama3_preamble(std::string_view chat_template) {
  constexpr std::string_view kCutting = "Cutting Knowledge Date: December 2023";
  constexpr std::string_view kDate = "date_string = \"";
  if (!contains(chat_template, kCutting)) return {};
  std::string_view today = "26 Jul 2024";
  const std::size_t at = chat_template.find(kDate);
  if (at != std::string_view::npos) {
    const std::string_view rest = chat_template.substr(at + kDate.size());
    today = rest.substr(0, rest.find('"'));
  }
  return std::string(kCutting).append("\nToday Date: ").append(today).append("\n\n");
}

std::string format_llama3(std::string_view chat_template, Messages messages) {
  std::string prompt;
  const auto add = [&](std::string_view role, std::string_view content) {
    prompt.append("<|start_header_id|>").append(role).append("<|end_header_id|>\n\n").append(content).append("<|eot_id|>");
  };
  const std::string preamble = llama3_preamble(chat_template);
  if (!preamble.empty()) {
    const std::optional<std::string_view> system = take_system(messages);
    add("system", preamble + std::string(trim(system.value_or(""))));
  }
  for (const ChatMessage& message : messages) add(message.role, trim(message.content));
  return prompt + "<|start_header_id|>assistant<|end_header_id|>\n\n";
}

/// Where Mistral's templates differ from each other, read off their text.
struct MistralTraits {
  std::string_view open, close, answer;  ///< blanks around [INST], [/INST] and the answer
  enum class System : std::uint8_t { kRefused, kFirstTurn, kLastTurn } system = System::kRefused;
  bool trims_answer = false;

  explicit MistralTraits(std::string_view text) {
    open = contains(text, " [INST] ") ? " [INST] " : contains(text, "[INST] ") ? "[INST] " : "[INST]";
    close = contains(text, " [/INST]") ? " [/INST]" : "[/INST]";
    answer = contains(text, "' ' + message['content']") || contains(text, "\" \" + message[\"content\"]") ? " " : "";
    trims_answer = contains(text, "message[\"content\"]|trim") || contains(text, "message['content']|trim");
    if (contains(text, "system_message")) system = contains(text, "loop.last and system_message") ? System::kLastTurn : System::kFirstTurn;
  }
};

std::string format_mistral(std::string_view chat_template, std::string_view end_text, Messages messages) {
  const MistralTraits traits(chat_template);
  const std::optional<std::string_view> system = take_system(messages);
  if (system && traits.system == MistralTraits::System::kRefused) refuse("no system message: the template refuses one", "one");
  check_turns(messages);
  const std::size_t system_turn = traits.system == MistralTraits::System::kLastTurn ? messages.size() - 1 : 0;
  std::string prompt;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const std::string_view content = messages[i].content;
    if (messages[i].role == "assistant") {
      prompt.append(traits.answer).append(traits.trims_answer ? trim(content) : content).append(end_text);
      continue;
    }
    prompt.append(traits.open);
    if (system && i == system_turn) prompt.append(*system).append("\n\n");
    prompt.append(content).append(traits.close);
  }
  return prompt;
}

/// Text of the eos token, "</s>" where the file names none.
std::string read_end_text(const GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.ggml.eos_token_id";
  const std::optional<std::int64_t> id = file.find_int(kKey);
  if (!id) return "</s>";
  const std::vector<std::string>& texts = file.require_strings("tokenizer.ggml.tokens");
  if (*id < 0 || *id >= static_cast<std::int64_t>(texts.size())) {
    throw_bad_key(file, kKey, "an id below " + std::to_string(texts.size()), std::to_string(*id));
  }
  return texts[static_cast<std::size_t>(*id)];
}

}  // namespace

std::optional<ChatFamily> recognise_template(std::string_view text) noexcept {
  if (contains(text, "<|im_start|>")) return ChatFamily::kChatMl;
  if (contains(text, "<start_of_turn>")) return ChatFamily::kGemma;
  if (contains(text, "<|start_header_id|>") && contains(text, "<|end_header_id|>")) return ChatFamily::kLlama3;
  // Llama 2 ("<<SYS>>") and Mistral's later templates ("[SYSTEM_PROMPT]") use [INST] too, otherwise.
  if (contains(text, "[INST]") && !contains(text, "<<SYS>>") && !contains(text, "[SYSTEM_PROMPT]")) return ChatFamily::kMistral;
  return std::nullopt;
}

std::string format_chat(ChatFamily family, std::string_view chat_template, std::string_view end_text, Messages messages) {
  check_roles(messages);
  switch (family) {
    case ChatFamily::kChatMl: return format_chatml(chat_template, messages);
    case ChatFamily::kGemma: return format_gemma(chat_template, messages);
    case ChatFamily::kLlama3: return format_llama3(chat_template, messages);
    case ChatFamily::kMistral: break;
  }
  return format_mistral(chat_template, end_text, messages);
}

std::string chat_prompt(const GgufFile& file, Messages messages) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  constexpr std::string_view kKnown = "a ChatML, Gemma, Llama 3 or Mistral template";
  const std::optional<std::string> text = file.find_string(kKey);
  if (!text) throw_bad_key(file, kKey, kKnown, "no such key: the model may not be made for conversations");
  const std::optional<ChatFamily> family = recognise_template(*text);
  if (!family) throw_bad_key(file, kKey, kKnown, "one that starts with \"" + text->substr(0, 60) + '"');
  return format_chat(*family, *text, *family == ChatFamily::kMistral ? read_end_text(file) : std::string(), messages);
}

}  // namespace heed::model
