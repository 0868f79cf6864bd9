// SPDX-License-Identifier: Apache-2.0
// The exact meaning of every block format, one value at a time. The fast kernels give the same bits.
//
// Scales are float16 (11 significant bits) and the integers beside them are small, so d * scale * q always fits float32's 24 bits: only
// the addition of a minimum rounds, once.
#include <array>
#include <cstring>
#include <span>

#include <heed/dtype.hpp>
#include <heed/model/gguf.hpp>

#include "base/message.hpp"

namespace heed::model {
namespace {

using Block = const std::uint8_t*;

float half_at(Block bytes) {
  std::uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return static_cast<float>(float16::from_bits(bits));
}

/// Value i of 32 four-bit numbers: low nibbles first, then the high ones.
int nibble(Block packed, int i) { return i < 16 ? packed[i] & 15 : packed[i - 16] >> 4; }

void decode_f32(Block block, float* out) { std::memcpy(out, block, sizeof(float)); }
void decode_f16(Block block, float* out) { *out = half_at(block); }
void decode_bf16(Block block, float* out) {
  std::uint16_t bits;
  std::memcpy(&bits, block, sizeof(bits));
  *out = static_cast<float>(bfloat16::from_bits(bits));
}

void decode_q4_0(Block block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 2, i) - 8);
}

void decode_q4_1(Block block, float* out) {
  const float d = half_at(block);
  const float m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(nibble(block + 4, i)) + m;
}

void decode_q5_0(Block block, float* out) {
  const float d = half_at(block);
  std::uint32_t fifth_bits;
  std::memcpy(&fifth_bits, block + 2, sizeof(fifth_bits));
  for (int i = 0; i < 32; ++i) {
    const int fifth = static_cast<int>((fifth_bits >> i) & 1U) << 4;
    out[i] = d * static_cast<float>((nibble(block + 6, i) | fifth) - 16);
  }
}

void decode_q8_0(Block block, float* out) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<std::int8_t>(block[2 + i]));
}

struct ScaleAndMinimum {
  int scale, minimum;
};

/// Eight pairs of 6-bit numbers in 12 bytes: the first four in the low 6 bits of bytes 0-7, the rest in nibbles of bytes 8-11 with
/// their upper two bits on top of bytes 0-7.
ScaleAndMinimum packed_scale(Block s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4)};
}

/// Q4_K, and Q5_K where `fifth_bits` is not null: bit j of byte i belongs to value i of sub-block j.
void decode_k_with_minimum(Block block, Block fifth_bits, Block quants, float* out) {
  const float d = half_at(block);
  const float dmin = half_at(block + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleAndMinimum packed = packed_scale(block + 4, j);
    const float scale = d * static_cast<float>(packed.scale);
    const float minimum = dmin * static_cast<float>(packed.minimum);
    for (int i = 0; i < 32; ++i) {
      const int byte = quants[32 * (j / 2) + i];
      int q = j % 2 == 0 ? byte & 15 : byte >> 4;
      if (fifth_bits != nullptr) q |= ((fifth_bits[i] >> j) & 1) << 4;
      out[32 * j + i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

void decode_q4_k(Block block, float* out) { decode_k_with_minimum(block, nullptr, block + 16, out); }
void decode_q5_k(Block block, float* out) { decode_k_with_minimum(block, block + 16, block + 48, out); }

void decode_q6_k(Block block, float* out) {
  const float d = half_at(block + 208);
  for (int v = 0; v < 256; ++v) {
    const int half = v / 128, run = v % 128 / 32, i = v % 32;
    const int low = block[64 * half + 32 * (run & 1) + i];
    const int high = (block[128 + 32 * half + i] >> (2 * run)) & 3;
    const int q = ((run < 2 ? low & 15 : low >> 4) | (high << 4)) - 32;
    const auto scale = static_cast<std::int8_t>(block[192 + v / 16]);
    out[v] = d * static_cast<float>(scale) * static_cast<float>(q);
  }
}

using Decode = void (*)(Block block, float* out);

Decode decoder_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32: return decode_f32;
    case GgmlType::kF16: return decode_f16;
    case GgmlType::kBF16: return decode_bf16;
    case GgmlType::kQ4_0: return decode_q4_0;
    case GgmlType::kQ4_1: return decode_q4_1;
    case GgmlType::kQ5_0: return decode_q5_0;
    case GgmlType::kQ8_0: return decode_q8_0;
    case GgmlType::kQ4_K: return decode_q4_k;
    case GgmlType::kQ5_K: return decode_q5_k;
    case GgmlType::kQ6_K: return decode_q6_k;
  }
  return nullptr;
}

}  // namespace

Tensor dequantize(const GgufTensor& tensor) {
  const std::int64_t per_block = block_values(tensor.type);
  const Decode decode = decoder_of(tensor.type);
  const std::int64_t count = element_count(tensor.shape);
  if (decode == nullptr || count % per_block != 0 || tensor.size_bytes != count / per_block * block_bytes(tensor.type)) {
    base::throw_invalid("dequantize", "tensor", "size_bytes of its type and shape", std::to_string(tensor.size_bytes));
  }
  Tensor result(DType::kFloat32, tensor.shape);
  auto* out = result.data_as<float>();
  const auto* block = reinterpret_cast<Block>(tensor.data);
  for (std::int64_t i = 0; i < count; i += per_block, block += block_bytes(tensor.type)) decode(block, out + i);
  return result;
}

}  // namespace heed::model
