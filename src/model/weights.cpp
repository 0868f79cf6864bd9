// SPDX-License-Identifier: Apache-2.0
#include "model/weights.hpp"

#include <array>
#include <set>
#include <string>

#include <heed/error.hpp>

#include "model/architecture.hpp"
#include "model/gguf_cursor.hpp"

namespace heed::model {
namespace {

/// Finds tensors by name and remembers which ones were asked for.
class Loader {
 public:
  explicit Loader(const GgufFile& file) : file_(file) {}

  nn::WeightMatrix matrix(const std::string& name, std::int64_t rows, std::int64_t columns) {
    const GgufTensor& tensor = require(name);
    try {
      return nn::weight_matrix(tensor, rows, columns);
    } catch (const FormatError& error) {  // which knows the tensor, not its file
      throw FormatError(file_.name() + ": " + error.what());
    }
  }

  Vector vector(const std::string& name, std::int64_t size) {
    const GgufTensor& tensor = require(name);
    if (tensor.shape.rank() != 1 || tensor.shape[0] != size) {
      throw FormatError(file_.name() + ": tensor " + name + ": expected shape [" + std::to_string(size) + "], got " +
                        to_string(tensor.shape));
    }
    const Tensor values = dequantize(tensor);
    const auto* data = values.data_as<float>();
    return {data, data + size};
  }

  [[nodiscard]] bool has(const std::string& name) const { return file_.find_tensor(name) != nullptr; }
  void ignore(const std::string& name) { used_.insert(name); }

  void refuse_unknown() const {
    for (const GgufTensor& tensor : file_.tensors()) {
      if (used_.count(tensor.name) == 0) {
        throw FormatError(file_.name() + ": tensor " + quoted(tensor.name) + ": this architecture has no such weight");
      }
    }
  }

 private:
  const GgufTensor& require(const std::string& name) {
    const GgufTensor* tensor = file_.find_tensor(name);
    if (tensor == nullptr) throw FormatError(file_.name() + ": tensor " + name + ": absent");
    used_.insert(name);
    return *tensor;
  }

  const GgufFile& file_;
  std::set<std::string> used_;
};

void load_attention(Loader& loader, const std::string& prefix, const DecoderConfig& c, const ArchitectureTraits& traits, LayerWeights& w) {
  const std::int64_t q_width = c.query_heads * c.head_dim;
  const std::int64_t k_width = c.kv_heads * c.head_dim;
  const std::int64_t v_width = c.kv_heads * c.value_dim;
  w.attention_norm = loader.vector(prefix + "attn_norm.weight", c.width);
  w.q = loader.matrix(prefix + "attn_q.weight", q_width, c.width);
  w.k = loader.matrix(prefix + "attn_k.weight", k_width, c.width);
  w.v = loader.matrix(prefix + "attn_v.weight", v_width, c.width);
  w.output = loader.matrix(prefix + "attn_output.weight", c.width, c.query_heads * c.value_dim);
  if (traits.qkv_bias || loader.has(prefix + "attn_q.bias")) {
    w.q_bias = loader.vector(prefix + "attn_q.bias", q_width);
    w.k_bias = loader.vector(prefix + "attn_k.bias", k_width);
    w.v_bias = loader.vector(prefix + "attn_v.bias", v_width);
  }
  if (traits.qk_norm) {
    w.q_norm = loader.vector(prefix + "attn_q_norm.weight", c.head_dim);
    w.k_norm = loader.vector(prefix + "attn_k_norm.weight", c.head_dim);
  }
  if (traits.post_norms) w.post_attention_norm = loader.vector(prefix + "post_attention_norm.weight", c.width);
}

void load_ffn(Loader& loader, const std::string& prefix, const DecoderConfig& c, const ArchitectureTraits& traits, LayerWeights& w) {
  w.ffn_norm = loader.vector(prefix + "ffn_norm.weight", c.width);
  w.gate = loader.matrix(prefix + "ffn_gate.weight", c.ffn_width, c.width);
  w.up = loader.matrix(prefix + "ffn_up.weight", c.ffn_width, c.width);
  w.down = loader.matrix(prefix + "ffn_down.weight", c.width, c.ffn_width);
  if (traits.post_norms) w.post_ffn_norm = loader.vector(prefix + "post_ffw_norm.weight", c.width);
}

}  // namespace

DecoderWeights load_weights(const GgufFile& file, const DecoderConfig& config) {
  const ArchitectureTraits& traits = architecture_traits(file);
  Loader loader(file);
  DecoderWeights weights;
  weights.embedding = loader.matrix("token_embd.weight", config.vocabulary, config.width);
  weights.output_norm = loader.vector("output_norm.weight", config.width);
  weights.head = loader.has("output.weight") ? loader.matrix("output.weight", config.vocabulary, config.width) : weights.embedding;
  for (std::int64_t l = 0; l < config.layers; ++l) {
    const std::string prefix = "blk." + std::to_string(l) + ".";
    LayerWeights layer;
    load_attention(loader, prefix, config, traits, layer);
    load_ffn(loader, prefix, config, traits, layer);
    weights.layer.push_back(std::move(layer));
  }
  for (const char* read_with_the_config : {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}) {
    loader.ignore(read_with_the_config);
  }
  loader.refuse_unknown();
  return weights;
}

}  // namespace heed::model
