// SPDX-License-Identifier: Apache-2.0
// GgufFile: a parsed file and typed look-ups into its metadata.
#include <heed/model/gguf.hpp>

#include <type_traits>

#include "base/message.hpp"
#include "model/gguf_cursor.hpp"
#include "model/gguf_mapping.hpp"
#include "model/gguf_parse.hpp"

namespace heed::model {

struct GgufFile::State {
  std::string name;
  std::unique_ptr<FileMapping> mapping;  ///< null when the caller owns the memory
  std::int64_t file_bytes = 0;
  GgufContents contents;

  [[noreturn]] void fail(std::string_view key, std::string_view problem, std::int64_t offset) const {
    throw_format_error(name, "key " + quoted(key), problem, offset);
  }
  [[noreturn]] void fail_type(std::string_view key, std::string_view expected) const {
    const auto index = static_cast<std::size_t>(contents.find_key(key));
    fail(key, "expected " + std::string(expected) + ", got another type", contents.value_offsets[index]);
  }
  /// A missing key has no place: the error points at the start of the metadata.
  [[noreturn]] void fail_missing(std::string_view key) const {
    constexpr std::int64_t kMetadataStart = 24;
    fail(key, "is missing from the metadata", kMetadataStart);
  }
};

namespace {

const char* describe(const std::int64_t*) { return "an integer"; }
const char* describe(const double*) { return "a number"; }
const char* describe(const bool*) { return "a bool"; }
const char* describe(const std::string*) { return "a string"; }
const char* describe(const std::vector<std::string>*) { return "an array of strings"; }

/// Null when the key is absent; an error through fail_type when it holds another alternative.
template <class T, class State>
const T* find_as(const State& state, const GgufValue* value, std::string_view key) {
  if (value == nullptr) return nullptr;
  const T* held = std::get_if<T>(value);
  if (held == nullptr) state.fail_type(key, describe(static_cast<const T*>(nullptr)));
  return held;
}

template <class T>
std::optional<T> copy_of(const T* value) {
  return value != nullptr ? std::optional<T>(*value) : std::nullopt;
}

}  // namespace

GgufFile::GgufFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;
GgufFile::~GgufFile() = default;

GgufFile GgufFile::open(const std::string& path) {
  auto state = std::make_unique<State>();
  state->name = path;
  state->mapping = std::make_unique<FileMapping>(path);
  const std::span<const std::byte> bytes = state->mapping->bytes();
  state->file_bytes = static_cast<std::int64_t>(bytes.size());
  state->contents = parse_gguf(bytes, state->name);
  return GgufFile(std::move(state));
}

GgufFile GgufFile::parse(std::span<const std::byte> bytes, const std::string& name) {
  constexpr std::uintptr_t kAlignment = 8;  // of float32 and wider data inside of the file
  if (reinterpret_cast<std::uintptr_t>(bytes.data()) % kAlignment != 0) {
    base::throw_invalid("GgufFile::parse", "bytes", "memory aligned to 8 bytes", "another address");
  }
  auto state = std::make_unique<State>();
  state->name = name;
  state->file_bytes = static_cast<std::int64_t>(bytes.size());
  state->contents = parse_gguf(bytes, state->name);
  return GgufFile(std::move(state));
}

const std::string& GgufFile::name() const noexcept { return state_->name; }
std::uint32_t GgufFile::version() const noexcept { return state_->contents.version; }
std::int64_t GgufFile::file_bytes() const noexcept { return state_->file_bytes; }
std::span<const std::string> GgufFile::keys() const noexcept { return state_->contents.keys; }
std::span<const GgufTensor> GgufFile::tensors() const noexcept { return state_->contents.tensors; }

const GgufValue* GgufFile::find(std::string_view key) const noexcept {
  const std::int64_t index = state_->contents.find_key(key);
  return index >= 0 ? &state_->contents.values[static_cast<std::size_t>(index)] : nullptr;
}

const GgufTensor* GgufFile::find_tensor(std::string_view name) const noexcept {
  const std::int64_t index = state_->contents.find_tensor(name);
  return index >= 0 ? &state_->contents.tensors[static_cast<std::size_t>(index)] : nullptr;
}

std::optional<std::int64_t> GgufFile::find_int(std::string_view key) const {
  return copy_of(find_as<std::int64_t>(*state_, find(key), key));
}

std::optional<double> GgufFile::find_double(std::string_view key) const {
  const GgufValue* value = find(key);
  if (value != nullptr) {
    if (const auto* integer = std::get_if<std::int64_t>(value)) return static_cast<double>(*integer);
  }
  return copy_of(find_as<double>(*state_, value, key));
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const { return copy_of(find_as<bool>(*state_, find(key), key)); }

std::optional<std::string> GgufFile::find_string(std::string_view key) const {
  return copy_of(find_as<std::string>(*state_, find(key), key));
}

std::int64_t GgufFile::require_int(std::string_view key) const {
  const std::optional<std::int64_t> value = find_int(key);
  if (!value) state_->fail_missing(key);
  return *value;
}

double GgufFile::require_double(std::string_view key) const {
  const std::optional<double> value = find_double(key);
  if (!value) state_->fail_missing(key);
  return *value;
}

const std::string& GgufFile::require_string(std::string_view key) const {
  const auto* value = find_as<std::string>(*state_, find(key), key);
  if (value == nullptr) state_->fail_missing(key);
  return *value;
}

const std::vector<std::string>& GgufFile::require_strings(std::string_view key) const {
  const auto* value = find_as<std::vector<std::string>>(*state_, find(key), key);
  if (value == nullptr) state_->fail_missing(key);
  return *value;
}

}  // namespace heed::model
