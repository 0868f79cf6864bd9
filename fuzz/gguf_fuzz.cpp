// SPDX-License-Identifier: Apache-2.0
// libFuzzer entry for the GGUF reader: any bytes give a file or a FormatError. What parses is also read to its last value.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

#include <heed/error.hpp>
#include <heed/model/gguf.hpp>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::unique_ptr<std::byte[]> copy(new std::byte[size]);  // libFuzzer promises no alignment
  if (size > 0) std::memcpy(copy.get(), data, size);
  try {
    const heed::model::GgufFile file = heed::model::GgufFile::parse({copy.get(), size}, "fuzz");
    for (const std::string& key : file.keys()) static_cast<void>(file.find(key));
    // Many tensors may share the same bytes: a bound on the work, not on what is read.
    std::int64_t budget = 1 << 24;
    for (const heed::model::GgufTensor& tensor : file.tensors()) {
      budget -= element_count(tensor.shape);
      if (budget < 0) break;
      static_cast<void>(heed::model::dequantize(tensor));
    }
  } catch (const heed::FormatError&) {
  }
  return 0;
}
