// SPDX-License-Identifier: Apache-2.0
#include <heed/model/gguf.hpp>

#include "base/floating_point.hpp"
#include "base/message.hpp"
#include "nn/linear.hpp"

namespace heed::model {

Tensor dequantize(const GgufTensor& tensor) {
  const std::int64_t per_block = block_values(tensor.type);
  const std::int64_t count = element_count(tensor.shape);
  if (per_block == 0 || count % per_block != 0 || tensor.size_bytes != count / per_block * block_bytes(tensor.type)) {
    base::throw_invalid("dequantize", "tensor", "size_bytes of its type and shape", std::to_string(tensor.size_bytes));
  }
  Tensor result(DType::kFloat32, tensor.shape);
  const base::DefaultFloatingPoint environment;  // a denormal scale stays one
  // Blocks follow each other without a break between rows: the whole tensor is one row.
  nn::dequantize_rows({tensor.type, tensor.data, 1, count}, 0, 1, result.data_as<float>());
  return result;
}

}  // namespace heed::model
