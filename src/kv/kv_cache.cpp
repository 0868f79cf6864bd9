// SPDX-License-Identifier: Apache-2.0
// A cache is a list of layers, each of which keeps its tokens as its own rules say, and the count of tokens that all of them agree on.
#include <heed/kv_cache.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/message.hpp"
#include "kv/checked_math.hpp"
#include "kv/contiguous_layer.hpp"
#include "kv/paged_layer.hpp"

namespace heed {
namespace {

void require(const char* field, std::int64_t least, std::int64_t value) {
  if (value < least) base::throw_invalid("KvCache", field, "at least " + std::to_string(least), std::to_string(value));
}

KvCacheConfig checked(KvCacheConfig config) {
  if (config.value_dim == 0) config.value_dim = config.head_dim;
  require("layers", 1, config.layers);
  require("batch", 1, config.batch);
  require("kv_heads", 1, config.kv_heads);
  require("head_dim", 1, config.head_dim);
  require("value_dim", 1, config.value_dim);
  require("capacity_tokens", 0, config.capacity_tokens);
  const auto windows = static_cast<std::int64_t>(config.window_tokens.size());
  if (windows != 0 && windows != config.layers) {
    base::throw_invalid("KvCache", "window_tokens", "none or one for each of the " + std::to_string(config.layers) + " layers",
                        std::to_string(windows));
  }
  for (const auto& window : config.window_tokens) require("window_tokens", 1, window.value_or(1));
  return config;
}

using Layer = std::variant<kv::ContiguousLayer, kv::PagedLayer>;

std::optional<std::int64_t> window_of(const KvCacheConfig& config, std::int64_t layer) {
  return config.window_tokens.empty() ? std::nullopt : config.window_tokens[static_cast<std::size_t>(layer)];
}

/// Integers lie in pages, as their kernels read them.
bool is_paged(const KvCacheConfig& config, std::int64_t layer) { return config.format == KvFormat::kInt8 || window_of(config, layer); }

std::vector<Layer> make_layers(const KvCacheConfig& config) {
  static_cast<void>(kv::product({config.layers, kv::ContiguousLayer::bytes(config)}));  // fails before anything is allocated
  std::vector<Layer> layers;
  for (std::int64_t l = 0; l < config.layers; ++l) {
    if (is_paged(config, l)) {
      layers.emplace_back(std::in_place_type<kv::PagedLayer>, config, window_of(config, l));
    } else {
      layers.emplace_back(std::in_place_type<kv::ContiguousLayer>, config);
    }
  }
  return layers;
}

}  // namespace

const char* to_string(KvFormat format) noexcept { return format == KvFormat::kInt8 ? "int8" : to_string(kv::dtype_of(format)); }

struct KvCache::State {
  explicit State(const KvCacheConfig& wanted)
      : config(checked(wanted)),
        bytes_per_token(
            kv::product({config.layers, kv::PageLayout(config.format, config.kv_heads, config.head_dim, config.value_dim).token_bytes()})),
        layers(make_layers(config)), pending(layers.size(), 0) {}

  [[nodiscard]] std::int64_t stored(std::int64_t layer) const { return length + pending[static_cast<std::size_t>(layer)]; }

  void check_layer(const char* function, std::int64_t layer) const {
    if (layer >= 0 && layer < config.layers) return;
    base::throw_invalid(function, "layer", "a layer in [0, " + std::to_string(config.layers) + ")", std::to_string(layer));
  }

  void check_source(const char* name, const TensorView& source, std::int64_t tokens, std::int64_t dim) const {
    const Shape shape = {config.batch, tokens, config.kv_heads, dim};
    if (!source || !(source.shape() == shape)) {
      base::throw_invalid("KvCache::append", name, to_string(shape) + " ([B, n, Hkv, dim])",
                          source ? to_string(source.shape()) : "nothing");
    }
    if (!is_floating(source.dtype())) {
      base::throw_invalid("KvCache::append", name, "a floating dtype", to_string(source.dtype()));
    }
    base::require_memory("KvCache::append", name, source);
  }

  KvCacheConfig config;
  std::int64_t bytes_per_token;
  std::vector<Layer> layers;
  std::vector<std::int64_t> pending;  // [layers] tokens since the last commit
  std::int64_t length = 0;
};

KvCache::KvCache(const KvCacheConfig& config) : state_(std::make_unique<State>(config)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

const KvCacheConfig& KvCache::config() const noexcept { return state_->config; }

std::int64_t KvCache::length() const noexcept { return state_->length; }

std::int64_t KvCache::earliest_length() const noexcept {
  std::int64_t earliest = 0;
  for (const Layer& layer : state_->layers) {
    if (const auto* paged = std::get_if<kv::PagedLayer>(&layer)) earliest = std::max(earliest, paged->earliest_length());
  }
  return earliest;
}

std::int64_t KvCache::bytes_per_token() const noexcept { return state_->bytes_per_token; }

std::int64_t KvCache::bytes_in_use() const noexcept {
  const State& s = *state_;
  const std::int64_t token_bytes = s.bytes_per_token / s.config.layers * s.config.batch;
  std::int64_t bytes = 0;
  for (std::int64_t l = 0; l < s.config.layers; ++l) {
    const auto* paged = std::get_if<kv::PagedLayer>(&s.layers[static_cast<std::size_t>(l)]);
    bytes += paged != nullptr ? paged->bytes_in_use() : s.stored(l) * token_bytes;
  }
  return bytes;
}

void KvCache::append(std::int64_t layer, const TensorView& k, const TensorView& v) {
  State& s = *state_;
  s.check_layer("KvCache::append", layer);
  const std::int64_t tokens = k && k.rank() == 4 ? k.size(1) : 0;
  s.check_source("k", k, tokens, s.config.head_dim);
  s.check_source("v", v, tokens, s.config.value_dim);
  const std::int64_t first = s.stored(layer);
  if (tokens > s.config.capacity_tokens - first) {
    base::throw_invalid("KvCache::append", "k",
                        "at most " + std::to_string(s.config.capacity_tokens - first) + " tokens (capacity " +
                            std::to_string(s.config.capacity_tokens) + ", " + std::to_string(first) + " stored)",
                        std::to_string(tokens));
  }
  // Going from float64 through float32 would round twice.
  const DType dtype = kv::dtype_of(s.config.format);
  if (k.dtype() == DType::kFloat64) return append(layer, convert(k, dtype), v);
  if (v.dtype() == DType::kFloat64) return append(layer, k, convert(v, dtype));
  Layer& store = s.layers[static_cast<std::size_t>(layer)];
  if (auto* paged = std::get_if<kv::PagedLayer>(&store)) {
    paged->append(s.length, first, k, v);
  } else {
    std::get<kv::ContiguousLayer>(store).append(first, k, v);
  }
  s.pending[static_cast<std::size_t>(layer)] += tokens;
}

void KvCache::commit(std::int64_t n) {
  State& s = *state_;
  for (std::size_t layer = 0; layer < s.pending.size(); ++layer) {
    if (s.pending[layer] == n) continue;
    base::throw_invalid(
        "KvCache::commit", "n",
        std::to_string(s.pending[layer]) + " (tokens that layer " + std::to_string(layer) + " received since the last commit)",
        std::to_string(n));
  }
  s.length += n;
  for (std::int64_t& tokens : s.pending) tokens = 0;
}

void KvCache::truncate(std::int64_t length) {
  State& s = *state_;
  if (length < 0 || length > s.length) {
    base::throw_invalid("KvCache::truncate", "length", "a length in [0, " + std::to_string(s.length) + "]", std::to_string(length));
  }
  if (length != 0 && length < earliest_length()) {
    base::throw_invalid("KvCache::truncate", "length",
                        "0 or at least " + std::to_string(earliest_length()) + ": windows have dropped what a shorter sequence needs",
                        std::to_string(length));
  }
  s.length = length;
  for (std::int64_t& tokens : s.pending) tokens = 0;
  for (Layer& layer : s.layers) {
    if (auto* paged = std::get_if<kv::PagedLayer>(&layer)) paged->truncate(length);
  }
}

KvView KvCache::layer(std::int64_t layer) const {
  const State& s = *state_;
  s.check_layer("KvCache::layer", layer);
  const std::int64_t tokens = s.stored(layer);
  const Layer& store = s.layers[static_cast<std::size_t>(layer)];
  if (const auto* paged = std::get_if<kv::PagedLayer>(&store)) return KvView(paged->view(tokens));
  return std::get<kv::ContiguousLayer>(store).view(tokens);
}

}  // namespace heed
