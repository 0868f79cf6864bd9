// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer driven by configuration: llama, mistral, qwen2, qwen3 and gemma3 are values, not classes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <heed/attention.hpp>
#include <heed/export.hpp>
#include <heed/kv_cache.hpp>
#include <heed/model/gguf.hpp>
#include <heed/model/tokenizer.hpp>
#include <heed/rope.hpp>

namespace heed::model {

enum class Activation : std::uint8_t { kSilu, kGeluTanh };

/// One layer's attention: what differs between layers of one model.
struct LayerConfig {
  std::optional<std::int64_t> window_tokens = {};  ///< sliding window counting the current token; none: full causal
  std::size_t rope = 0;                            ///< index into DecoderConfig::ropes
};

/// What a model file's metadata comes to. Sizes in elements.
struct DecoderConfig {
  std::string architecture;
  std::int64_t layers = 0, width = 0, ffn_width = 0, vocabulary = 0, context_length = 0;
  std::int64_t query_heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  double norm_epsilon = 1e-5;
  double embedding_scale = 1.0;                ///< sqrt(width) for Gemma
  std::optional<double> attention_scale = {};  ///< none: 1/sqrt(head_dim)
  std::optional<double> attention_softcap = {}, final_softcap = {};
  Activation activation = Activation::kSilu;
  RopePairing pairing = RopePairing::kHalf;
  std::vector<RopeConfig> ropes;   ///< the distinct rotations of the model's layers
  std::vector<LayerConfig> layer;  ///< [layers]
};
/// Another rotation than the file's, to read further than a model was trained for, or to try what does.
/// It takes the place of DecoderConfig::ropes[0]: of every layer's rotation, but for the local layers of models that give these one of their
/// own (Gemma 3: base 10,000, never scaled), as a window needs no longer reach.
struct RopeOverride {
  std::optional<double> base = {};                  ///< none: the file's
  std::optional<RopeScaling> scaling = {};          ///< none: the file's. std::monostate: no scaling
  std::optional<std::int64_t> context_length = {};  ///< none: the file's
};
/// Throws FormatError naming the key, InvalidArgument naming the field of `rope`.
[[nodiscard]] HEED_API DecoderConfig read_config(const GgufFile& file, const RopeOverride& rope = {});

/// What a model takes, by part. Bytes as stored in the file, without copies.
struct ModelInfo {
  std::int64_t embedding_parameters = 0, attention_parameters = 0, ffn_parameters = 0, norm_parameters = 0, output_parameters = 0;
  std::int64_t weight_bytes = 0;
  std::int64_t kv_bytes_per_token = 0;  ///< in KvFormat::kFloat32
};
[[nodiscard]] HEED_API ModelInfo model_info(const GgufFile& file);

/// Weights in the mapped file plus the code to run them. Immutable and shareable between sessions; the GgufFile must outlive it.
class HEED_API Decoder {
 public:
  explicit Decoder(const GgufFile& file, const RopeOverride& rope = {});
  Decoder(Decoder&&) noexcept;
  ~Decoder();
  [[nodiscard]] const DecoderConfig& config() const noexcept;

 private:
  friend class Session;
  struct State;
  std::unique_ptr<const State> state_;
};

struct SessionOptions {
  /// How keys and values are kept. What 16 bits and 8 bits lose, in perplexity: docs/accuracy.md. Rotations that depend on the length need
  /// float32.
  KvFormat kv_format = KvFormat::kFloat32;
};

/// One sequence: a KV cache and its scratch. Float32 activations and cache: the result is the exact meaning of the file.
///
/// Where a rotation depends on the length (depends_on_length), one feed is one forward pass: its queries, and every key that they look at,
/// turn by the frequencies of the length that the sequence has at its end. Keys are cached un-rotated for that, with a rotated copy beside
/// them: the keys' memory twice, sliding windows included. A feed rotates its own keys only, unless the frequencies changed since the last:
/// then all (dynamic NTK: every feed past max_positions; LongRoPE: the one that passes L). What deeper layers
/// cached of earlier tokens stays as it was computed at their time; for a pass from scratch, truncate(0) and feed everything.
class HEED_API Session {
 public:
  /// Throws InvalidArgument when capacity_tokens exceeds the model's context length, or for a format that the model's rotation does not allow.
  Session(const Decoder& decoder, std::int64_t capacity_tokens, const SessionOptions& options = {});
  Session(Session&&) noexcept;
  ~Session();

  [[nodiscard]] std::int64_t length() const noexcept;
  /// Forgets the tokens at and past `length`.
  /// Layers with a sliding window have dropped what lies further back than their window and the last chunk: below earliest_length() only 0
  /// is possible, else InvalidArgument.
  void truncate(std::int64_t length);
  [[nodiscard]] std::int64_t earliest_length() const noexcept;
  /// Announces that the sequence will have at least `length` tokens, until the next truncate: feeds take the frequencies of that length.
  /// With it a prompt that is fed in pieces gives what it gives when fed at once; for rotations that do not depend on the length nothing changes.
  /// Throws InvalidArgument when the capacity is exceeded.
  void expect(std::int64_t length);
  /// Bytes of keys and values that are held, rotated copies included.
  [[nodiscard]] std::int64_t cache_bytes() const noexcept;

  /// Feeds tokens (a prompt in chunks, or one token); returns the logits after the last one, float32 [vocabulary], valid until the next call.
  /// Throws InvalidArgument when the capacity would be exceeded (both numbers are named) or a token is outside of the vocabulary.
  std::span<const float> feed(std::span<const Token> tokens);

  /// Feeds tokens and calls back with the logits after each of them, in order: [vocabulary] per call. For perplexity.
  void feed_all(std::span<const Token> tokens, const std::function<void(std::int64_t index, std::span<const float> logits)>& consume);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// How the next token is drawn. Order: repetition penalty -> temperature -> top-k -> top-p -> min-p -> draw.
struct SamplingOptions {
  double temperature = 0.0;         ///< 0: greedy, lowest id on ties
  std::int64_t top_k = 0;           ///< 0: off
  double top_p = 1.0;               ///< 1: off
  double min_p = 0.0;               ///< 0: off; keeps tokens with p >= min_p * p_max
  double repetition_penalty = 1.0;  ///< > 0; divides positive and multiplies negative logits of tokens seen (CTRL, arXiv 1909.05858)
  std::int64_t repetition_window = 64;
  std::uint64_t seed = 0;
};
class HEED_API Sampler {
 public:
  /// Throws InvalidArgument naming the option.
  explicit Sampler(const SamplingOptions& options);
  /// Draws from logits [vocabulary]; `history` are the tokens so far. The same seed gives the same draws on every platform.
  [[nodiscard]] Token sample(std::span<const float> logits, std::span<const Token> history);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace heed::model
