// SPDX-License-Identifier: Apache-2.0
// The forward pass of one sequence. Everything between the first norm and the logits is here, top to bottom.
//
// Letters: n tokens of the chunk, W width, F ffn_width, Hq/Hkv query/KV heads, D/Dv head dims. Activations are float32.
#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <heed/error.hpp>

#include "base/message.hpp"
#include "model/decoder_state.hpp"
#include "model/rotation.hpp"
#include "nn/elementwise.hpp"
#include "nn/linear.hpp"

namespace heed::model {
namespace {

// Tokens of a prompt that go through the layers together: long enough that dequantizing a weight block costs little beside the
// product with it, short enough that the activations (2 * 512 * ffn_width floats) stay near the cores.
constexpr std::int64_t kChunkTokens = 512;
// Rows of logits that exist at once in feed_all: 32 * 262,144 floats are 34 MB.
constexpr std::int64_t kLogitRows = 32;

/// Buffers of one chunk, [n, ...] each.
struct Activations {
  std::vector<float> x;                 // [n, W] residual stream
  std::vector<float> h;                 // [n, W] normed input of a block, then its output
  std::vector<float> q, k, v;           // [n, Hq, D] [n, Hkv, D] [n, Hkv, Dv]
  std::vector<float> attended;          // [n, Hq, Dv]
  std::vector<float> gate, up;          // [n, F]
  std::vector<std::int64_t> positions;  // [n]

  void resize(std::int64_t n, const DecoderConfig& c) {
    const auto grow = [n](auto& buffer, std::int64_t columns) {
      buffer.resize(std::max(buffer.size(), static_cast<std::size_t>(n * columns)));
    };
    grow(x, c.width);
    grow(h, c.width);
    grow(q, c.query_heads * c.head_dim);
    grow(k, c.kv_heads * c.head_dim);
    grow(v, c.kv_heads * c.value_dim);
    grow(attended, c.query_heads * c.value_dim);
    grow(gate, c.ffn_width);
    grow(up, c.ffn_width);
    grow(positions, 1);
  }
};

KvCacheConfig cache_config(const DecoderConfig& c, std::int64_t capacity_tokens, KvFormat format) {
  std::vector<std::optional<std::int64_t>> windows;
  for (const LayerConfig& layer : c.layer) {
    // Rotated copies are made of keys that lie in one block.
    const bool whole = depends_on_length(c.ropes[layer.rope]);
    windows.push_back(whole ? std::nullopt : layer.window_tokens);
  }
  return {.layers = c.layers,
          .batch = 1,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .value_dim = c.value_dim,
          .capacity_tokens = capacity_tokens,
          .format = format,
          .window_tokens = std::move(windows)};
}

const float* data_or_null(const Vector& vector) { return vector.empty() ? nullptr : vector.data(); }

}  // namespace

struct Session::State {
  State(const Decoder& decoder, std::int64_t capacity, KvFormat format)
      : config(decoder.state_->config), weights(decoder.state_->weights), capacity_tokens(capacity),
        cache(cache_config(config, capacity, format)) {
    for (const RopeConfig& rope : config.ropes) rotations.emplace_back(rope, config.pairing, capacity);
    rotated_keys.resize(config.layer.size());
  }

  void check(std::span<const Token> tokens) const;
  void embed(std::span<const Token> tokens);
  void attend(std::size_t layer, std::int64_t n);
  void rotate(std::vector<float>& x, std::int64_t n, std::int64_t heads, const RopeTable& table);
  KvView rotated(std::size_t layer);
  void begin_pass(std::int64_t length);
  void feed_forward(std::size_t layer, std::int64_t n);
  void run(std::span<const Token> tokens);
  void head(std::int64_t first, std::int64_t count);

  const DecoderConfig& config;
  const DecoderWeights& weights;
  std::int64_t capacity_tokens;
  KvCache cache;
  std::vector<Rotation> rotations;        // one per config.ropes
  std::vector<RotatedKeys> rotated_keys;  // [layers]; empty where keys are cached rotated
  std::int64_t expected_length = 0;
  Activations a;
  std::vector<float> logits;  // [rows, vocabulary]
};

void Session::State::check(std::span<const Token> tokens) const {
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (count == 0) base::throw_invalid("Session::feed", "tokens", "at least one token", "none");
  if (count > capacity_tokens - cache.length()) {
    base::throw_invalid("Session::feed", "tokens",
                        "at most " + std::to_string(capacity_tokens - cache.length()) + " more tokens (capacity " +
                            std::to_string(capacity_tokens) + ", " + std::to_string(cache.length()) + " used)",
                        std::to_string(count));
  }
  for (const Token token : tokens) {
    if (token < 0 || token >= config.vocabulary) {
      base::throw_invalid("Session::feed", "tokens", "ids in [0, " + std::to_string(config.vocabulary) + ")", std::to_string(token));
    }
  }
}

void Session::State::embed(std::span<const Token> tokens) {
  const auto scale = static_cast<float>(config.embedding_scale);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    float* row = a.x.data() + static_cast<std::int64_t>(i) * config.width;
    nn::dequantize_rows(weights.embedding, tokens[i], 1, row);
    if (scale != 1.0F) std::for_each(row, row + config.width, [scale](float& value) { value *= scale; });
    a.positions[i] = cache.length() + static_cast<std::int64_t>(i);
  }
}

void Session::State::rotate(std::vector<float>& x, std::int64_t n, std::int64_t heads, const RopeTable& table) {
  const MutableTensorView view(x.data(), {1, n, heads, config.head_dim});
  apply_rope_into(view, view, table.cos, table.sin, config.pairing, TensorView(a.positions.data(), {n}));
}

/// The cache of a layer with its keys rotated for this pass.
KvView Session::State::rotated(std::size_t layer) {
  KvView stored = cache.layer(static_cast<std::int64_t>(layer));
  const Rotation& rotation = rotations[config.layer[layer].rope];
  if (!rotation.follows_length()) return stored;
  return {rotated_keys[layer].update(rotation, stored.keys(), cache.length()), stored.values()};
}

void Session::State::begin_pass(std::int64_t length) {
  for (Rotation& rotation : rotations) rotation.set_length(std::max(length, expected_length));
}

void Session::State::attend(std::size_t layer, std::int64_t n) {
  const LayerWeights& w = weights.layer[layer];
  const LayerConfig& c = config.layer[layer];
  const std::int64_t q_width = config.query_heads * config.head_dim;
  const std::int64_t k_width = config.kv_heads * config.head_dim;
  const std::int64_t v_width = config.kv_heads * config.value_dim;
  nn::rms_norm(a.h.data(), a.x.data(), w.attention_norm.data(), n, config.width, config.norm_epsilon);
  nn::linear(a.q.data(), q_width, a.h.data(), config.width, n, w.q, data_or_null(w.q_bias));
  nn::linear(a.k.data(), k_width, a.h.data(), config.width, n, w.k, data_or_null(w.k_bias));
  nn::linear(a.v.data(), v_width, a.h.data(), config.width, n, w.v, data_or_null(w.v_bias));
  if (!w.q_norm.empty()) {
    nn::rms_norm(a.q.data(), a.q.data(), w.q_norm.data(), n * config.query_heads, config.head_dim, config.norm_epsilon);
    nn::rms_norm(a.k.data(), a.k.data(), w.k_norm.data(), n * config.kv_heads, config.head_dim, config.norm_epsilon);
  }
  const Rotation& rotation = rotations[c.rope];
  rotate(a.q, n, config.query_heads, rotation.table());
  if (!rotation.follows_length()) rotate(a.k, n, config.kv_heads, rotation.table());

  const auto l = static_cast<std::int64_t>(layer);
  cache.append(l, TensorView(a.k.data(), {1, n, config.kv_heads, config.head_dim}),
               TensorView(a.v.data(), {1, n, config.kv_heads, config.value_dim}));
  attention_into({.out = MutableTensorView(a.attended.data(), {1, n, config.query_heads, config.value_dim})},
                 TensorView(a.q.data(), {1, n, config.query_heads, config.head_dim}), rotated(layer),
                 {.mask = c.window_tokens ? Mask::sliding_window(*c.window_tokens) : Mask::causal(),
                  .scale = config.attention_scale,
                  .softcap = config.attention_softcap});
  nn::linear(a.h.data(), config.width, a.attended.data(), config.query_heads * config.value_dim, n, w.output);
  if (!w.post_attention_norm.empty()) {
    nn::rms_norm(a.h.data(), a.h.data(), w.post_attention_norm.data(), n, config.width, config.norm_epsilon);
  }
  nn::add(a.x.data(), a.h.data(), n * config.width);
}

void Session::State::feed_forward(std::size_t layer, std::int64_t n) {
  const LayerWeights& w = weights.layer[layer];
  nn::rms_norm(a.h.data(), a.x.data(), w.ffn_norm.data(), n, config.width, config.norm_epsilon);
  nn::linear(a.gate.data(), config.ffn_width, a.h.data(), config.width, n, w.gate);
  nn::linear(a.up.data(), config.ffn_width, a.h.data(), config.width, n, w.up);
  if (config.activation == Activation::kSilu) {
    nn::silu_multiply(a.gate.data(), a.up.data(), n * config.ffn_width);
  } else {
    nn::gelu_tanh_multiply(a.gate.data(), a.up.data(), n * config.ffn_width);
  }
  nn::linear(a.h.data(), config.width, a.gate.data(), config.ffn_width, n, w.down);
  if (!w.post_ffn_norm.empty()) {
    nn::rms_norm(a.h.data(), a.h.data(), w.post_ffn_norm.data(), n, config.width, config.norm_epsilon);
  }
  nn::add(a.x.data(), a.h.data(), n * config.width);
}

/// One chunk through all layers; a.x holds the result.
void Session::State::run(std::span<const Token> tokens) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  a.resize(n, config);
  try {
    embed(tokens);
    for (std::size_t layer = 0; layer < weights.layer.size(); ++layer) {
      attend(layer, n);
      feed_forward(layer, n);
    }
    cache.commit(n);
  } catch (...) {
    cache.truncate(cache.length());  // drop what some layers got, so that the session stays usable
    throw;
  }
}

/// Logits of rows [first, first + count) of a.x.
void Session::State::head(std::int64_t first, std::int64_t count) {
  logits.resize(std::max(logits.size(), static_cast<std::size_t>(count * config.vocabulary)));
  nn::rms_norm(a.h.data(), a.x.data() + first * config.width, weights.output_norm.data(), count, config.width, config.norm_epsilon);
  nn::linear(logits.data(), config.vocabulary, a.h.data(), config.width, count, weights.head);
  if (!config.final_softcap) return;
  const auto cap = static_cast<float>(*config.final_softcap);
  for (std::int64_t i = 0; i < count * config.vocabulary; ++i) {
    float& logit = logits[static_cast<std::size_t>(i)];
    logit = cap * std::tanh(logit / cap);
  }
}

namespace {

/// Rotated copies are made of float32 rows in one block.
void check_format(const DecoderConfig& config, KvFormat format) {
  if (format == KvFormat::kFloat32 || std::none_of(config.ropes.begin(), config.ropes.end(), depends_on_length)) return;
  base::throw_invalid("Session", "kv_format", "float32, as the rotation depends on the length", to_string(format));
}

}  // namespace

Session::Session(const Decoder& decoder, std::int64_t capacity_tokens, const SessionOptions& options) {
  check_format(decoder.config(), options.kv_format);
  const std::int64_t limit = decoder.config().context_length;
  if (capacity_tokens < 1 || capacity_tokens > limit) {
    base::throw_invalid("Session", "capacity_tokens", "1 .. " + std::to_string(limit) + " (the model's context length)",
                        std::to_string(capacity_tokens));
  }
  state_ = std::make_unique<State>(decoder, capacity_tokens, options.kv_format);
}

Session::Session(Session&&) noexcept = default;
Session::~Session() = default;

std::int64_t Session::length() const noexcept { return state_->cache.length(); }

void Session::truncate(std::int64_t length) {
  state_->cache.truncate(length);
  state_->expected_length = 0;
}

void Session::expect(std::int64_t length) {
  if (length > state_->capacity_tokens) {
    base::throw_invalid("Session::expect", "length", "at most " + std::to_string(state_->capacity_tokens) + " (the capacity)",
                        std::to_string(length));
  }
  state_->expected_length = length;
}

std::int64_t Session::earliest_length() const noexcept { return state_->cache.earliest_length(); }

std::int64_t Session::cache_bytes() const noexcept {
  std::int64_t bytes = state_->cache.bytes_in_use();
  for (const RotatedKeys& keys : state_->rotated_keys) bytes += keys.bytes();
  return bytes;
}

std::span<const float> Session::feed(std::span<const Token> tokens) {
  State& s = *state_;
  s.check(tokens);
  const std::int64_t before = s.cache.length();
  s.begin_pass(before + static_cast<std::int64_t>(tokens.size()));
  std::size_t n = 0;
  try {
    for (std::size_t begin = 0; begin < tokens.size(); begin += n) {
      n = std::min(tokens.size() - begin, static_cast<std::size_t>(kChunkTokens));
      s.run(tokens.subspan(begin, n));
    }
  } catch (...) {
    // All of the tokens or none; where windows have moved on already, no token at all.
    s.cache.truncate(before >= s.cache.earliest_length() ? before : 0);
    throw;
  }
  s.head(static_cast<std::int64_t>(n) - 1, 1);
  return {s.logits.data(), static_cast<std::size_t>(s.config.vocabulary)};
}

void Session::feed_all(std::span<const Token> tokens,
                       const std::function<void(std::int64_t index, std::span<const float> logits)>& consume) {
  State& s = *state_;
  s.check(tokens);
  const auto total = static_cast<std::int64_t>(tokens.size());
  s.begin_pass(s.cache.length() + total);
  for (std::int64_t begin = 0; begin < total; begin += kChunkTokens) {
    const std::int64_t n = std::min(total - begin, kChunkTokens);
    s.run(tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n)));
    for (std::int64_t first = 0; first < n; first += kLogitRows) {
      const std::int64_t rows = std::min(n - first, kLogitRows);
      s.head(first, rows);
      for (std::int64_t r = 0; r < rows; ++r) {
        consume(begin + first + r, {s.logits.data() + r * s.config.vocabulary, static_cast<std::size_t>(s.config.vocabulary)});
      }
    }
  }
}

}  // namespace heed::model
