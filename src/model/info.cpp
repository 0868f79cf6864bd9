// SPDX-License-Identifier: Apache-2.0
// What a model takes, by part.
#include <string_view>

#include <heed/model/decoder.hpp>

namespace heed::model {
namespace {

std::int64_t& part_of(std::string_view name, ModelInfo& info) {
  if (name == "token_embd.weight") return info.embedding_parameters;
  if (name == "output.weight") return info.output_parameters;
  if (name.find("norm") != std::string_view::npos) return info.norm_parameters;
  if (name.find("ffn_") != std::string_view::npos) return info.ffn_parameters;
  return info.attention_parameters;
}

}  // namespace

ModelInfo model_info(const GgufFile& file) {
  const DecoderConfig config = read_config(file);
  ModelInfo info;
  for (const GgufTensor& tensor : file.tensors()) {
    info.weight_bytes += tensor.size_bytes;
    if (tensor.name.rfind("rope_", 0) == 0) continue;  // tables, not parameters
    part_of(tensor.name, info) += element_count(tensor.shape);
  }
  info.kv_bytes_per_token = config.layers * config.kv_heads * (config.head_dim + config.value_dim) * size_bytes(DType::kFloat32);
  return info;
}

}  // namespace heed::model
