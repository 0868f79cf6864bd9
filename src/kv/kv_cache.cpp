// SPDX-License-Identifier: Apache-2.0
// The contiguous cache: one lazily touched block; per layer the keys [B, Hkv, capacity, D], then the values [B, Hkv, capacity, Dv].
#include <heed/kv_cache.hpp>

#include <cstddef>
#include <cstring>
#include <new>
#include <string>
#include <type_traits>
#include <vector>

#include "base/message.hpp"
#include "base/parallel.hpp"
#include "kv/lazy_memory.hpp"

namespace heed {
namespace {

/// Every head starts on a cache line of its own.
constexpr std::int64_t kLineBytes = 64;
/// Below this many elements a parallel region costs more than it saves.
constexpr std::int64_t kSerialElements = 1 << 16;

DType dtype_of_format(KvFormat format) {
  switch (format) {
    case KvFormat::kBFloat16: return DType::kBFloat16;
    case KvFormat::kFloat16: return DType::kFloat16;
    default: return DType::kFloat32;
  }
}

std::int64_t product(std::initializer_list<std::int64_t> factors) {
  std::int64_t result = 1;
  for (const std::int64_t factor : factors) {
    if (__builtin_mul_overflow(result, factor, &result)) throw std::bad_alloc();
  }
  return result;
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(a, b, &result)) throw std::bad_alloc();
  return result;
}

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
  return config;
}

/// Elements from one head to the next.
std::int64_t head_elements(std::int64_t capacity, std::int64_t dim, std::int64_t element_bytes) {
  const std::int64_t per_line = kLineBytes / element_bytes;
  return product({sum(product({capacity, dim}), per_line - 1) / per_line, per_line});
}

/// The rows of one head in a caller's tensor.
struct SourceRows {
  const void* data;
  std::int64_t row_stride, dim_stride;
  std::int64_t rows, dim;
};

template <class To, class From>
void copy_rows(To* to, const SourceRows& from) {
  const auto* source = static_cast<const From*>(from.data);
  if constexpr (std::is_same_v<To, From>) {
    if (from.dim_stride == 1 && from.row_stride == from.dim) {
      std::memcpy(to, source, static_cast<std::size_t>(from.rows * from.dim) * sizeof(To));
      return;
    }
  }
  for (std::int64_t row = 0; row < from.rows; ++row, to += from.dim, source += from.row_stride) {
    for (std::int64_t d = 0; d < from.dim; ++d) {
      if constexpr (std::is_same_v<To, From>) {
        to[d] = source[d * from.dim_stride];
      } else {
        to[d] = static_cast<To>(static_cast<float>(source[d * from.dim_stride]));
      }
    }
  }
}

template <class To>
void copy_rows_as(To* to, const SourceRows& from, DType dtype) {
  switch (dtype) {
    case DType::kBFloat16: return copy_rows<To, bfloat16>(to, from);
    case DType::kFloat16: return copy_rows<To, float16>(to, from);
    default: return copy_rows<To, float>(to, from);
  }
}

}  // namespace

const char* to_string(KvFormat format) noexcept { return to_string(dtype_of_format(format)); }

struct KvCache::State {
  explicit State(const KvCacheConfig& wanted)
      : config(checked(wanted)), dtype(dtype_of_format(config.format)),
        key_head(head_elements(config.capacity_tokens, config.head_dim, size_bytes(dtype))),
        value_head(head_elements(config.capacity_tokens, config.value_dim, size_bytes(dtype))),
        memory(product({config.layers, layer_bytes()})), pending(static_cast<std::size_t>(config.layers), 0) {
    static_cast<void>(product({config.layers, config.kv_heads, sum(config.head_dim, config.value_dim), size_bytes(dtype)}));
  }

  [[nodiscard]] std::int64_t layer_bytes() const {
    return product({config.batch, config.kv_heads, sum(key_head, value_head), size_bytes(dtype)});
  }
  [[nodiscard]] std::byte* keys(std::int64_t layer) const { return memory.data() + layer * layer_bytes(); }
  [[nodiscard]] std::byte* values(std::int64_t layer) const {
    return keys(layer) + config.batch * config.kv_heads * key_head * size_bytes(dtype);
  }
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

  /// Rows [first, first + n) of every head; `head` is the distance between heads.
  void write(std::byte* block, std::int64_t head, std::int64_t first, const TensorView& source) const {
    const std::int64_t heads = config.batch * config.kv_heads;
    const bool small = element_count(source.shape()) < kSerialElements;
    base::parallel_for(heads, small ? 1 : base::num_threads(), [&](std::int64_t index, int) noexcept {
      const std::int64_t b = index / config.kv_heads;
      const std::int64_t h = index % config.kv_heads;
      const std::int64_t from = b * source.stride(0) + h * source.stride(2);
      const SourceRows rows{static_cast<const std::byte*>(source.data()) + from * size_bytes(source.dtype()), source.stride(1),
                            source.stride(3), source.size(1), source.size(3)};
      const std::int64_t to = index * head + first * rows.dim;
      switch (dtype) {
        case DType::kBFloat16: return copy_rows_as(reinterpret_cast<bfloat16*>(block) + to, rows, source.dtype());
        case DType::kFloat16: return copy_rows_as(reinterpret_cast<float16*>(block) + to, rows, source.dtype());
        default: return copy_rows_as(reinterpret_cast<float*>(block) + to, rows, source.dtype());
      }
    });
  }

  [[nodiscard]] TensorView view(const std::byte* block, std::int64_t head, std::int64_t tokens, std::int64_t dim) const {
    return TensorView(block, dtype, {config.batch, tokens, config.kv_heads, dim}, {config.kv_heads * head, dim, head, 1});
  }

  KvCacheConfig config;
  DType dtype;
  std::int64_t key_head, value_head;
  std::int64_t length = 0;
  kv::LazyMemory memory;              // before `pending`: whatever is too large fails here, where nothing is touched yet
  std::vector<std::int64_t> pending;  // [layers] tokens since the last commit
};

KvCache::KvCache(const KvCacheConfig& config) : state_(std::make_unique<State>(config)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

const KvCacheConfig& KvCache::config() const noexcept { return state_->config; }

std::int64_t KvCache::length() const noexcept { return state_->length; }

std::int64_t KvCache::bytes_per_token() const noexcept {
  const KvCacheConfig& c = state_->config;
  return c.layers * c.kv_heads * (c.head_dim + c.value_dim) * size_bytes(state_->dtype);
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
  if (k.dtype() == DType::kFloat64) return append(layer, convert(k, s.dtype), v);
  if (v.dtype() == DType::kFloat64) return append(layer, k, convert(v, s.dtype));
  s.write(s.keys(layer), s.key_head, first, k);
  s.write(s.values(layer), s.value_head, first, v);
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
  s.length = length;
  for (std::int64_t& tokens : s.pending) tokens = 0;
}

KvView KvCache::layer(std::int64_t layer) const {
  const State& s = *state_;
  s.check_layer("KvCache::layer", layer);
  const std::int64_t tokens = s.stored(layer);
  return KvView(s.view(s.keys(layer), s.key_head, tokens, s.config.head_dim),
                s.view(s.values(layer), s.value_head, tokens, s.config.value_dim));
}

}  // namespace heed
