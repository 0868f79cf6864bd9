// SPDX-License-Identifier: Apache-2.0
// Metadata of a model file to a DecoderConfig. What files leave out (Gemma's window pattern, its local RoPE base) is filled in here.
#include <algorithm>
#include <cmath>
#include <string>

#include <heed/error.hpp>
#include <heed/model/decoder.hpp>

#include "base/message.hpp"
#include "model/architecture.hpp"
#include "model/gguf_cursor.hpp"

namespace heed::model {
namespace {

constexpr std::int64_t kGemma3GlobalEvery = 6;  // layers 5, 11, 17, ... look at everything
constexpr double kGemma3LocalRopeBase = 10000.0;
constexpr std::int64_t kMostContext = std::int64_t{1} << 40;
constexpr std::int64_t kGemma3LayersOf27B = 62;  // the one size that scales by width / heads and not by head_dim

[[noreturn]] void fail(const GgufFile& file, const std::string& key, const std::string& what) {
  throw FormatError(file.name() + ": " + key + ": " + what);
}

/// Reads "<architecture>.<key>".
class Metadata {
 public:
  Metadata(const GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}

  [[nodiscard]] std::int64_t size(const std::string& key, std::int64_t most) const {
    return checked(key, file_.require_int(prefix_ + key), most);
  }
  [[nodiscard]] std::int64_t size_or(const std::string& key, std::int64_t otherwise, std::int64_t most) const {
    return checked(key, file_.find_int(prefix_ + key).value_or(otherwise), most);
  }
  [[nodiscard]] std::optional<std::int64_t> find_int(const std::string& key) const { return file_.find_int(prefix_ + key); }
  [[nodiscard]] std::optional<double> find_positive(const std::string& key) const {
    const std::optional<double> value = file_.find_double(prefix_ + key);
    if (value && !(std::isfinite(*value) && *value > 0.0)) fail(key, "expected a positive number");
    return value;
  }
  [[nodiscard]] std::string string_or(const std::string& key, const std::string& otherwise) const {
    return file_.find_string(prefix_ + key).value_or(otherwise);
  }
  [[nodiscard]] const GgufValue* find(const std::string& key) const { return file_.find(prefix_ + key); }
  [[noreturn]] void fail(const std::string& key, const std::string& what) const { model::fail(file_, prefix_ + key, what); }

 private:
  [[nodiscard]] std::int64_t checked(const std::string& key, std::int64_t value, std::int64_t most) const {
    if (value < 1 || value > most) fail(key, "expected 1 .. " + std::to_string(most) + ", got " + std::to_string(value));
    return value;
  }

  const GgufFile& file_;
  std::string prefix_;
};

std::vector<double> divisors(const GgufFile& file, const GgufTensor& tensor, std::int64_t rotary_dim) {
  if (element_count(tensor.shape) != rotary_dim / 2) {
    fail(file, tensor.name, "expected " + std::to_string(rotary_dim / 2) + " values, got " + to_string(tensor.shape));
  }
  const Tensor values = dequantize(tensor);
  const auto* data = values.data_as<float>();
  return {data, data + rotary_dim / 2};
}

/// GGUF's attn_factor multiplies the magnitude that YaRN computes; RopeYarn::attention_factor is the final value.
RopeScaling yarn_scaling(const Metadata& meta, double factor, std::int64_t original_length) {
  RopeYarn yarn{.factor = factor, .original_length = original_length};
  yarn.beta_fast = meta.find_positive("rope.scaling.yarn_beta_fast").value_or(yarn.beta_fast);
  yarn.beta_slow = meta.find_positive("rope.scaling.yarn_beta_slow").value_or(yarn.beta_slow);
  if (const auto attn_factor = meta.find_positive("rope.scaling.attn_factor")) {
    yarn.attention_factor = *attn_factor * (factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0);
  }
  return yarn;
}

RopeScaling long_scaling(const GgufFile& file, const Metadata& meta, std::int64_t rotary_dim, double factor, std::int64_t original_length) {
  const GgufTensor* short_factors = file.find_tensor("rope_factors_short.weight");
  const GgufTensor* long_factors = file.find_tensor("rope_factors_long.weight");
  if (short_factors == nullptr || long_factors == nullptr) {
    fail(file, "rope_factors_long.weight", "needed for rope.scaling.type longrope, absent");
  }
  return RopeLong{.short_factors = divisors(file, *short_factors, rotary_dim),
                  .long_factors = divisors(file, *long_factors, rotary_dim),
                  .factor = factor,
                  .original_length = original_length,
                  .attention_factor = meta.find_positive("rope.scaling.attn_factor")};
}

RopeScaling read_scaling(const GgufFile& file, const Metadata& meta, const DecoderConfig& config, std::int64_t rotary_dim) {
  if (const GgufTensor* freqs = file.find_tensor("rope_freqs.weight")) {
    return RopeDivisors{divisors(file, *freqs, rotary_dim)};
  }
  const bool has_long_factors = file.find_tensor("rope_factors_long.weight") != nullptr;
  const std::string type = meta.string_or("rope.scaling.type", has_long_factors ? "longrope" : "none");
  if (type == "none") return {};
  const std::int64_t original_length = meta.size_or("rope.scaling.original_context_length", config.context_length, std::int64_t{1} << 32);
  const double factor =
      meta.find_positive("rope.scaling.factor").value_or(static_cast<double>(config.context_length) / static_cast<double>(original_length));
  if (type == "linear") return RopeLinear{factor};
  if (type == "yarn") return yarn_scaling(meta, factor, original_length);
  if (type == "longrope") return long_scaling(file, meta, rotary_dim, factor, original_length);
  meta.fail("rope.scaling.type", "expected none, linear, yarn or longrope, got " + quoted(type));
}

/// Which layers use the sliding window. Gemma 3 files either say nothing, or give the period, or one flag per layer.
std::vector<bool> windowed_layers(const Metadata& meta, const ArchitectureTraits& traits, std::int64_t layers) {
  std::vector<bool> windowed(static_cast<std::size_t>(layers), true);
  if (!traits.alternating_windows) return windowed;
  const std::string key = "attention.sliding_window_pattern";
  const GgufValue* pattern = meta.find(key);
  if (pattern != nullptr && std::holds_alternative<std::vector<bool>>(*pattern)) {
    windowed = std::get<std::vector<bool>>(*pattern);
    if (windowed.size() != static_cast<std::size_t>(layers)) meta.fail(key, "expected one flag per layer");
    return windowed;
  }
  const std::int64_t every = meta.size_or(key, kGemma3GlobalEvery, layers + kGemma3GlobalEvery);
  for (std::int64_t l = 0; l < layers; ++l) windowed[static_cast<std::size_t>(l)] = l % every != every - 1;
  return windowed;
}

void read_sizes(const Metadata& meta, DecoderConfig& config) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;  // of any size below; keeps products far from overflow
  config.layers = meta.size("block_count", 4096);
  config.width = meta.size("embedding_length", kMost);
  config.ffn_width = meta.size("feed_forward_length", kMost);
  config.context_length = meta.size("context_length", kMost * 16);
  config.query_heads = meta.size("attention.head_count", 65536);
  config.kv_heads = meta.size_or("attention.head_count_kv", config.query_heads, 65536);
  if (config.query_heads % config.kv_heads != 0) {
    meta.fail("attention.head_count_kv",
              "expected a divisor of " + std::to_string(config.query_heads) + " query heads, got " + std::to_string(config.kv_heads));
  }
  config.head_dim = meta.size_or("attention.key_length", std::max<std::int64_t>(config.width / config.query_heads, 1), 1024);
  config.value_dim = meta.size_or("attention.value_length", config.head_dim, 1024);
  config.norm_epsilon = meta.find_positive("attention.layer_norm_rms_epsilon").value_or(config.norm_epsilon);
  config.attention_softcap = meta.find_positive("attn_logit_softcapping");
  config.final_softcap = meta.find_positive("final_logit_softcapping");
}

void read_layers(const GgufFile& file, const Metadata& meta, const ArchitectureTraits& traits, DecoderConfig& config) {
  const std::int64_t rotary_dim = meta.size_or("rope.dimension_count", config.head_dim, config.head_dim);
  if (rotary_dim % 2 != 0) meta.fail("rope.dimension_count", "expected an even number, got " + std::to_string(rotary_dim));
  config.ropes.push_back({.rotary_dim = rotary_dim,
                          .base = meta.find_positive("rope.freq_base").value_or(10000.0),
                          .scaling = read_scaling(file, meta, config, rotary_dim)});
  config.layer.resize(static_cast<std::size_t>(config.layers));
  const std::optional<std::int64_t> window = meta.find_int("attention.sliding_window");
  if (!window || *window == 0) return;
  if (*window < 0) meta.fail("attention.sliding_window", "expected at least 0, got " + std::to_string(*window));
  if (traits.alternating_windows) {  // local layers rotate with their own base and without length scaling
    config.ropes.push_back({.rotary_dim = rotary_dim, .base = meta.find_positive("rope.freq_base_swa").value_or(kGemma3LocalRopeBase)});
  }
  const std::vector<bool> windowed = windowed_layers(meta, traits, config.layers);
  for (std::size_t l = 0; l < windowed.size(); ++l) {
    if (!windowed[l]) continue;
    config.layer[l] = {.window_tokens = *window, .rope = config.ropes.size() - 1};
  }
}

/// Numbers that no rotation can have (a base of 1, a divisor of 0) are the file's fault, not the caller's.
void check_rope(const GgufFile& file, const ArchitectureTraits& traits, const RopeConfig& rope) {
  try {
    static_cast<void>(rope_frequencies(rope, 1));
  } catch (const InvalidArgument& error) {
    fail(file, std::string(traits.name) + ".rope", error.what());
  }
}

void apply_override(const RopeOverride& wanted, DecoderConfig& config) {
  RopeConfig& rope = config.ropes.front();
  if (wanted.base) rope.base = *wanted.base;
  if (wanted.scaling) rope.scaling = *wanted.scaling;
  if (wanted.base || wanted.scaling) static_cast<void>(rope_frequencies(rope, 1));
  if (!wanted.context_length) return;
  if (*wanted.context_length < 1 || *wanted.context_length > kMostContext) {
    base::throw_invalid("read_config", "rope.context_length", "1 .. " + std::to_string(kMostContext),
                        std::to_string(*wanted.context_length));
  }
  config.context_length = *wanted.context_length;
}

}  // namespace

const ArchitectureTraits& architecture_traits(const GgufFile& file) {
  static const ArchitectureTraits kKnown[] = {
      {.name = "llama", .pairing = RopePairing::kInterleaved},
      {.name = "mistral", .pairing = RopePairing::kInterleaved},
      {.name = "qwen2", .pairing = RopePairing::kHalf, .qkv_bias = true},
      {.name = "qwen3", .pairing = RopePairing::kHalf, .qk_norm = true},
      {.name = "gemma3",
       .pairing = RopePairing::kHalf,
       .activation = Activation::kGeluTanh,
       .scaled_embedding = true,
       .qk_norm = true,
       .post_norms = true,
       .alternating_windows = true},
  };
  const std::string& name = file.require_string("general.architecture");
  for (const ArchitectureTraits& traits : kKnown) {
    if (name == traits.name) return traits;
  }
  fail(file, "general.architecture", "expected llama, mistral, qwen2, qwen3 or gemma3, got " + quoted(name));
}

DecoderConfig read_config(const GgufFile& file, const RopeOverride& rope_override) {
  const ArchitectureTraits& traits = architecture_traits(file);
  const Metadata meta(file, traits.name);
  DecoderConfig config;
  config.architecture = traits.name;
  config.activation = traits.activation;
  config.pairing = traits.pairing;
  read_sizes(meta, config);
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr || embedding->shape.rank() != 2) fail(file, "token_embd.weight", "expected a matrix, absent");
  config.vocabulary = embedding->shape[0];
  // The scale is applied in float32, as every float32 computation of these models does.
  if (traits.scaled_embedding) config.embedding_scale = std::sqrt(static_cast<float>(config.width));
  if (traits.alternating_windows && config.layers == kGemma3LayersOf27B) {
    config.attention_scale = 1.0 / std::sqrt(static_cast<double>(config.width) / static_cast<double>(config.query_heads));
  }
  read_layers(file, meta, traits, config);
  for (const RopeConfig& rope : config.ropes) check_rope(file, traits, rope);
  apply_override(rope_override, config);
  return config;
}

}  // namespace heed::model
