// SPDX-License-Identifier: Apache-2.0
// The GGUF reader: what good files come to, the error of every check, and damaged headers (errors or success, never a crash).
#include <heed/model/gguf.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <system_error>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <heed/error.hpp>

#include "support/allocations.hpp"
#include "support/block_formulas.hpp"
#include "support/gguf_builder.hpp"
#include "support/model_files.hpp"

namespace heed::model {
namespace {

using test::AlignedBytes;
using test::GgufBuilder;

GgufFile parse(const AlignedBytes& bytes) { return GgufFile::parse(bytes.span(), "test.gguf"); }

/// The text of the FormatError that a file gives; empty when it parses.
std::string error_of(const std::vector<std::byte>& file) {
  try {
    const AlignedBytes bytes(file);
    static_cast<void>(parse(bytes));
  } catch (const FormatError& error) {
    return error.what();
  }
  return "";
}
std::string error_of(const GgufBuilder& builder) { return error_of(builder.finish()); }

/// A file with one of everything, tensors of all types, and a string list as long as a vocabulary's start.
GgufBuilder realistic(std::uint64_t seed = 1) {
  GgufBuilder b;
  b.string("general.architecture", "llama").string("general.name", "A model");
  b.scalar<std::uint32_t>("general.alignment", 32).scalar<std::uint32_t>("llama.block_count", 30);
  b.scalar<float>("llama.attention.layer_norm_rms_epsilon", 1e-5F).scalar<bool>("tokenizer.ggml.add_bos_token", true);
  b.scalar<std::uint64_t>("a.u64", 1ULL << 40).scalar<std::int64_t>("a.i64", -5).scalar<double>("a.f64", 0.25);
  b.scalar<std::uint8_t>("a.u8", 200)
      .scalar<std::int8_t>("a.i8", -3)
      .scalar<std::uint16_t>("a.u16", 60000)
      .scalar<std::int16_t>("a.i16", -9);
  b.scalar<std::int32_t>("a.i32", -70000);
  std::vector<std::string> tokens;
  for (int i = 0; i < 300; ++i) tokens.push_back("token" + std::to_string(i));
  b.strings("tokenizer.ggml.tokens", tokens);
  std::vector<std::int32_t> kinds(300, 1);
  b.array("tokenizer.ggml.token_type", kinds).array("tokenizer.ggml.scores", std::vector<float>(300, -1.5F));
  b.array("a.bools", std::vector<bool>{true, false, true}).array("a.empty", std::vector<std::uint8_t>{});
  for (const GgmlType type : test::kAllGgmlTypes) {
    const std::vector<std::uint8_t> blocks = test::random_blocks(type, 768 / block_values(type), seed++);
    b.tensor(std::string("blk.0.") + to_string(type), static_cast<std::uint32_t>(type), {256, 3}, std::as_bytes(std::span(blocks)));
  }
  return b;
}

TEST(Gguf, ReadsScalarsOfEveryType) {
  const AlignedBytes bytes(realistic().finish());
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.name(), "test.gguf");
  EXPECT_EQ(file.file_bytes(), static_cast<std::int64_t>(bytes.span().size()));
  EXPECT_EQ(file.keys().size(), 19U);
  EXPECT_EQ(file.keys()[0], "general.architecture");
  EXPECT_EQ(file.require_string("general.architecture"), "llama");
  EXPECT_EQ(file.require_int("llama.block_count"), 30);
  EXPECT_EQ(file.require_int("a.u64"), std::int64_t{1} << 40);
  EXPECT_EQ(file.require_int("a.i64"), -5);
  EXPECT_EQ(file.require_int("a.u8"), 200);
  EXPECT_EQ(file.require_int("a.i8"), -3);
  EXPECT_EQ(file.require_int("a.u16"), 60000);
  EXPECT_EQ(file.require_int("a.i16"), -9);
  EXPECT_EQ(file.require_int("a.i32"), -70000);
  EXPECT_EQ(file.require_double("a.f64"), 0.25);
  EXPECT_EQ(file.require_double("llama.attention.layer_norm_rms_epsilon"), static_cast<double>(1e-5F));
  EXPECT_EQ(file.find_bool("tokenizer.ggml.add_bos_token"), true);
}

TEST(Gguf, ReadsArrays) {
  const AlignedBytes bytes(realistic().finish());
  const GgufFile file = parse(bytes);
  const std::vector<std::string>& tokens = file.require_strings("tokenizer.ggml.tokens");
  ASSERT_EQ(tokens.size(), 300U);
  EXPECT_EQ(tokens[299], "token299");
  EXPECT_EQ(std::get<std::vector<std::int64_t>>(*file.find("tokenizer.ggml.token_type")), std::vector<std::int64_t>(300, 1));
  EXPECT_EQ(std::get<std::vector<double>>(*file.find("tokenizer.ggml.scores")), std::vector<double>(300, -1.5));
  EXPECT_EQ(std::get<std::vector<bool>>(*file.find("a.bools")), (std::vector<bool>{true, false, true}));
  EXPECT_TRUE(std::get<std::vector<std::int64_t>>(*file.find("a.empty")).empty());
}

TEST(Gguf, ReadsVersion2) {
  const AlignedBytes bytes(realistic().version(2).finish());
  EXPECT_EQ(parse(bytes).version(), 2U);
}

TEST(Gguf, AnEmptyFileListIsAFile) {
  const AlignedBytes bytes(GgufBuilder().finish());
  const GgufFile file = parse(bytes);
  EXPECT_TRUE(file.keys().empty());
  EXPECT_TRUE(file.tensors().empty());
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_EQ(file.find_tensor("x"), nullptr);
}

TEST(Gguf, TensorsHaveRowMajorShapesAndPointIntoTheFile) {
  const std::vector<std::byte> data(2 * 3 * 4 * 5 * 4, std::byte{7});
  GgufBuilder b;
  b.tensor("first", 0, {2, 3, 4, 5}, data).tensor("second", 8, {64, 2}, std::span(data).first(4 * 34));
  const AlignedBytes bytes(b.finish());
  const GgufFile file = parse(bytes);
  ASSERT_EQ(file.tensors().size(), 2U);
  const GgufTensor* first = file.find_tensor("first");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->shape, (Shape{5, 4, 3, 2}));
  EXPECT_EQ(first->size_bytes, 480);
  EXPECT_EQ(first->data + 480, file.tensors()[1].data);  // 480 is a multiple of the alignment
  EXPECT_EQ(file.tensors()[1].shape, (Shape{2, 64}));
  EXPECT_EQ(file.tensors()[1].type, GgmlType::kQ8_0);
  EXPECT_EQ(file.tensors()[1].size_bytes, 4 * 34);
}

TEST(Gguf, AlignmentComesFromTheFile) {
  GgufBuilder b;
  const std::vector<std::byte> data(4, std::byte{1});
  b.alignment(128).scalar<std::uint32_t>("general.alignment", 128).tensor("a", 0, {1}, data).tensor("b", 0, {1}, data);
  const AlignedBytes bytes(b.finish());
  const GgufFile file = parse(bytes);
  EXPECT_EQ((file.tensors()[0].data - bytes.span().data()) % 128, 0);
  EXPECT_EQ(file.tensors()[1].data - file.tensors()[0].data, 128);
}

TEST(Gguf, LookUpsCheckTypes) {
  const AlignedBytes bytes(realistic().finish());
  const GgufFile file = parse(bytes);
  EXPECT_EQ(file.find_int("absent"), std::nullopt);
  EXPECT_EQ(file.find_double("absent"), std::nullopt);
  EXPECT_EQ(file.find_bool("absent"), std::nullopt);
  EXPECT_EQ(file.find_string("absent"), std::nullopt);
  EXPECT_EQ(file.find_double("llama.block_count"), 30.0);  // an integer is a number
  EXPECT_THROW(static_cast<void>(file.find_int("a.f64")), FormatError);
  EXPECT_THROW(static_cast<void>(file.find_double("general.name")), FormatError);
  EXPECT_THROW(static_cast<void>(file.find_bool("a.u8")), FormatError);
  EXPECT_THROW(static_cast<void>(file.find_string("a.u8")), FormatError);
  EXPECT_THROW(static_cast<void>(file.require_strings("a.bools")), FormatError);
  EXPECT_THROW(static_cast<void>(file.require_int("absent")), FormatError);
  EXPECT_THROW(static_cast<void>(file.require_double("absent")), FormatError);
  EXPECT_THROW(static_cast<void>(file.require_strings("absent")), FormatError);
  try {
    static_cast<void>(file.require_string("a.u64"));
    FAIL();
  } catch (const FormatError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("test.gguf: key \"a.u64\": expected a string, got another type (byte "), std::string::npos) << text;
  }
}

TEST(Gguf, MovesKeepPointers) {
  const AlignedBytes bytes(realistic().finish());
  GgufFile first = parse(bytes);
  const GgufTensor* tensor = first.find_tensor("blk.0.Q4_1");
  GgufFile second = std::move(first);
  EXPECT_EQ(second.find_tensor("blk.0.Q4_1"), tensor);
  first = std::move(second);
  EXPECT_EQ(first.find_tensor("blk.0.Q4_1"), tensor);
}

// --- errors

struct BadFile {
  const char* name;
  std::function<std::vector<std::byte>()> make;
  const char* error;  ///< whole text after the file name
};
void PrintTo(const BadFile& bad, std::ostream* stream) { *stream << bad.name; }

std::vector<std::byte> first_bytes(std::vector<std::byte> file, std::size_t size) {
  file.resize(size);
  return file;
}
GgufBuilder with_key(std::uint32_t type, std::initializer_list<std::uint8_t> value) {
  GgufBuilder b;
  b.key("k", type);
  for (const std::uint8_t byte : value) GgufBuilder::put(b.metadata(), byte);
  return b;
}
constexpr std::uint64_t kHuge = 0xFFFFFFFFFFFFFFFFULL;
const std::vector<std::byte> kFourBytes(4);

// The first key's entry starts at byte 24; its value type is at 24 + 8 + 1, the value at 37. A first tensor's record starts at 24 too:
// name "t" ends at 33, rank at 33, dimension 0 at 37, type and offset of a vector at 45 and 49.
const BadFile kBadFiles[] = {
    {"empty", [] { return std::vector<std::byte>(); }, "header: magic: needs 4 bytes, but only 0 are left in the file (byte 0)"},
    {"magic", [] { return GgufBuilder().magic("GG\x01\"").finish(); }, "header: magic: expected \"GGUF\", got \"GG\\x01\\x22\" (byte 0)"},
    {"big_endian_magic", [] { return GgufBuilder().magic("FUGG").finish(); }, "header: magic: big-endian files are not supported (byte 0)"},
    {"version_1", [] { return GgufBuilder().version(1).finish(); },
     "header: version: version 1 (32-bit lengths) is not supported, expected 2 or 3 (byte 4)"},
    {"version_4", [] { return GgufBuilder().version(4).finish(); }, "header: version: expected 2 or 3, got 4 (byte 4)"},
    {"version_0", [] { return GgufBuilder().version(0).finish(); }, "header: version: expected 2 or 3, got 0 (byte 4)"},
    {"big_endian_version", [] { return GgufBuilder().version(0x03000000).finish(); },
     "header: version: big-endian files are not supported (byte 4)"},
    {"no_version", [] { return first_bytes(GgufBuilder().finish(), 6); },
     "header: version: needs 4 bytes, but only 2 are left in the file (byte 4)"},
    {"no_tensor_count", [] { return first_bytes(GgufBuilder().finish(), 15); },
     "header: tensor count: needs 8 bytes, but only 7 are left in the file (byte 8)"},
    {"no_metadata_count", [] { return first_bytes(GgufBuilder().finish(), 16); },
     "header: metadata count: needs 8 bytes, but only 0 are left in the file (byte 16)"},
    {"tensor_count", [] { return GgufBuilder().finish(kHuge, 0); },
     "header: tensor count: 18446744073709551615 is more than the 16 bytes left in the file can hold (byte 8)"},
    {"metadata_count", [] { return GgufBuilder().finish(0, 1); },
     "header: metadata count: 1 is more than the 8 bytes left in the file can hold (byte 16)"},
    {"metadata_count_of_63_bits", [] { return GgufBuilder().finish(0, 1ULL << 63); },
     "header: metadata count: 9223372036854775808 is more than the 8 bytes left in the file can hold (byte 16)"},
    {"key_length",
     [] {
       auto f = GgufBuilder().string("k", "abcdefgh").finish();
       std::memset(f.data() + 24, 0xff, 8);
       return first_bytes(f, 50);
     },
     "metadata entry 0: key: string of 18446744073709551615 bytes, but only 18 are left in the file (byte 24)"},
    {"empty_key", [] { return GgufBuilder().scalar<std::uint8_t>("", 1).finish(); },
     "metadata entry 0: key: expected 1 to 65535 bytes, got 0 (byte 24)"},
    {"long_key", [] { return GgufBuilder().scalar<std::uint8_t>(std::string(65536, 'k'), 1).finish(); },
     "metadata entry 0: key: expected 1 to 65535 bytes, got 65536 (byte 24)"},
    {"no_value_type", [] { return first_bytes(GgufBuilder().scalar<std::uint32_t>("kkkkkk", 1).finish(), 40); },
     "key \"kkkkkk\": value type: needs 4 bytes, but only 2 are left in the file (byte 38)"},
    {"value_type", [] { return with_key(13, {}).finish(); }, "key \"k\": value type: expected 0 to 12, got 13 (byte 33)"},
    {"cut_value", [] { return first_bytes(GgufBuilder().scalar<std::uint64_t>("k", 1).finish(), 44); },
     "key \"k\": value: needs 8 bytes, but only 7 are left in the file (byte 37)"},
    {"bool", [] { return with_key(7, {2}).finish(); }, "key \"k\": value: expected a bool of 0 or 1, got 2 (byte 37)"},
    {"u64", [] { return GgufBuilder().scalar<std::uint64_t>("k", 1ULL << 63).finish(); },
     "key \"k\": value: expected an integer below 2^63, got 9223372036854775808 (byte 37)"},
    {"string_length", [] { return first_bytes(GgufBuilder().string("k", "abc").finish(), 47); },
     "key \"k\": value: string of 3 bytes, but only 2 are left in the file (byte 37)"},
    {"array_type",
     [] {
       return with_key(9, {13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}).finish();
     },
     "key \"k\": array element type: expected 0 to 12, got 13 (byte 37)"},
    {"nested_array",
     [] {
       return with_key(9, {9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}).finish();
     },
     "key \"k\": array element type: arrays of arrays are not supported (byte 37)"},
    {"array_length", [] { return first_bytes(GgufBuilder().array("k", std::vector<std::uint32_t>(3)).finish(), 60); },
     "key \"k\": array length: 3 is more than the 11 bytes left in the file can hold (byte 41)"},
    {"array_bool",
     [] {
       return with_key(9, {7, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 9}).finish();
     },
     "key \"k\": value: expected a bool of 0 or 1, got 9 (byte 50)"},
    {"string_array_length",
     [] {
       return first_bytes(GgufBuilder().strings("k", {"", "", ""}).finish(), 72);
     },
     "key \"k\": array length: 3 is more than the 23 bytes left in the file can hold (byte 41)"},
    {"string_array_element",
     [] {
       return first_bytes(GgufBuilder().strings("k", {"", "abc"}).finish(), 67);
     },
     "key \"k\": array element: string of 3 bytes, but only 2 are left in the file (byte 57)"},
    {"twice_the_key", [] { return GgufBuilder().scalar<std::uint8_t>("k", 1).scalar<bool>("l", true).scalar<bool>("k", true).finish(); },
     "key \"k\": appears twice (byte 52)"},
    {"alignment_0", [] { return GgufBuilder().scalar<std::uint32_t>("general.alignment", 0).finish(); },
     "key \"general.alignment\": expected an integer power of two from 8, got 0 (byte 24)"},
    {"alignment_48", [] { return GgufBuilder().scalar<std::uint32_t>("general.alignment", 48).finish(); },
     "key \"general.alignment\": expected an integer power of two from 8, got 48 (byte 24)"},
    {"alignment_type", [] { return GgufBuilder().string("general.alignment", "32").finish(); },
     "key \"general.alignment\": expected an integer power of two from 8, got another type (byte 24)"},
    {"tensor_name", [] { return first_bytes(GgufBuilder().tensor(std::string(40, 't'), 0, {1}, kFourBytes).finish(), 60); },
     "tensor 0: name: string of 40 bytes, but only 28 are left in the file (byte 24)"},
    {"rank_0", [] { return GgufBuilder().tensor("t", 0, {}, kFourBytes).finish(); },
     "tensor \"t\": rank: expected 1 to 4, got 0 (byte 33)"},
    {"rank_5",
     [] {
       return GgufBuilder().tensor("t", 0, {1, 1, 1, 1, 1}, kFourBytes).finish();
     },
     "tensor \"t\": rank: expected 1 to 4, got 5 (byte 33)"},
    {"dimension_0",
     [] {
       return GgufBuilder().tensor("t", 0, {1, 0}, kFourBytes).finish();
     },
     "tensor \"t\": dimension 1: expected at least 1 and a product below 2^63, got 0 (byte 45)"},
    {"dimension_product",
     [] {
       return GgufBuilder().tensor("t", 0, {1ULL << 32, 1ULL << 31}, kFourBytes).finish();
     },
     "tensor \"t\": dimension 1: expected at least 1 and a product below 2^63, got 2147483648 (byte 45)"},
    {"dimension_of_64_bits", [] { return GgufBuilder().tensor("t", 0, {kHuge}, kFourBytes).finish(); },
     "tensor \"t\": dimension 0: expected at least 1 and a product below 2^63, got 18446744073709551615 (byte 37)"},
    {"tensor_type", [] { return GgufBuilder().tensor("t", 10, {256}, kFourBytes).finish(); },
     "tensor \"t\": type: expected one of F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q8_0 Q4_K Q5_K Q6_K, got 10 (Q2_K) (byte 45)"},
    {"unknown_tensor_type", [] { return GgufBuilder().tensor("t", 4000, {256}, kFourBytes).finish(); },
     "tensor \"t\": type: expected one of F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q8_0 Q4_K Q5_K Q6_K, got 4000 (byte 45)"},
    {"block_multiple",
     [] {
       return GgufBuilder().tensor("t", 3, {33, 32}, std::vector<std::byte>(1000)).finish();
     },
     "tensor \"t\": dimension 0: 33 is not a multiple of the 32 values in a block of Q4_1 (byte 53)"},
    {"offset_alignment", [] { return GgufBuilder().tensor("s", 0, {1}, kFourBytes).record("t", 0, {1}, 4).finish(); },
     "tensor \"t\": offset: 4 is not a multiple of the alignment 32 (byte 82)"},
    {"offset", [] { return GgufBuilder().record("t", 0, {1}, 32).finish(); },
     "tensor \"t\": offset: 1 blocks of 4 bytes at offset 32 end after the 0 bytes of tensor data (byte 49)"},
    {"offset_of_64_bits", [] { return GgufBuilder().record("t", 0, {1}, kHuge - 31).finish(); },
     "tensor \"t\": offset: 1 blocks of 4 bytes at offset 18446744073709551584 end after the 0 bytes of tensor data (byte 49)"},
    {"data_end", [] { return GgufBuilder().tensor("t", 0, {9}, std::vector<std::byte>(32)).finish(); },
     "tensor \"t\": offset: 9 blocks of 4 bytes at offset 0 end after the 32 bytes of tensor data (byte 49)"},
    {"data_size_overflow", [] { return GgufBuilder().tensor("t", 0, {1ULL << 62}, kFourBytes).finish(); },
     "tensor \"t\": offset: 4611686018427387904 blocks of 4 bytes at offset 0 end after the 32 bytes of tensor data (byte 49)"},
    {"padding_cut", [] { return first_bytes(GgufBuilder().tensor("t", 0, {1}, kFourBytes).finish(), 60); },
     "tensor \"t\": offset: 1 blocks of 4 bytes at offset 0 end after the 0 bytes of tensor data (byte 49)"},
    {"twice_the_tensor", [] { return GgufBuilder().tensor("t", 0, {1}, kFourBytes).tensor("t", 0, {1}, kFourBytes).finish(); },
     "tensor \"t\": appears twice (byte 57)"},
};

class GgufError : public testing::TestWithParam<BadFile> {};
TEST_P(GgufError, NamesFileFieldAndByte) { EXPECT_EQ(error_of(GetParam().make()), std::string("test.gguf: ") + GetParam().error); }
INSTANTIATE_TEST_SUITE_P(Gguf, GgufError, testing::ValuesIn(kBadFiles),
                         [](const testing::TestParamInfo<BadFile>& test) { return std::string(test.param.name); });

TEST(Gguf, HostileNamesAreShortAndPrintableInErrors) {
  const std::string text = error_of(GgufBuilder().scalar<std::uint8_t>(std::string(5000, '\x1b'), 1).key(std::string(5000, '\x1b'), 99));
  EXPECT_LT(text.size(), 600U);
  for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST(Gguf, UnalignedMemoryIsRefused) {
  const std::vector<std::byte> file = GgufBuilder().finish();
  const std::vector<std::byte> shifted = first_bytes(file, file.size() + 1);
  EXPECT_THROW(static_cast<void>(GgufFile::parse(std::span(shifted).subspan(1), "x")), InvalidArgument);
}

// --- files on disk

class TemporaryFile {
 public:
  explicit TemporaryFile(std::span<const std::byte> bytes)
      : path_(std::filesystem::temp_directory_path() / ("heed_gguf_test_" + std::to_string(std::random_device{}()) + ".gguf")) {
    std::ofstream(path_, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST(Gguf, OpensAMappedFile) {
  const std::vector<std::byte> bytes = realistic().finish();
  const TemporaryFile on_disk(bytes);
  const GgufFile file = GgufFile::open(on_disk.path());
  EXPECT_EQ(file.file_bytes(), static_cast<std::int64_t>(bytes.size()));
  EXPECT_EQ(file.name(), on_disk.path());
  const GgufTensor* tensor = file.find_tensor("blk.0.Q6_K");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(std::memcmp(tensor->data, bytes.data() + bytes.size() - 640, 3 * 210), 0);  // the last: 630 bytes padded to 640
}

TEST(Gguf, FilesThatCannotBeMappedAreSystemErrors) {
  EXPECT_THROW(static_cast<void>(GgufFile::open("/nonexistent/x.gguf")), std::system_error);
  EXPECT_THROW(static_cast<void>(GgufFile::open(std::filesystem::temp_directory_path().string())), std::system_error);
  EXPECT_THROW(static_cast<void>(GgufFile::open("/dev/null")), std::system_error);
  const std::string pipe = std::filesystem::temp_directory_path() / ("heed_pipe_" + std::to_string(::getpid()));
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(static_cast<void>(GgufFile::open(pipe)), std::system_error);  // and no wait for a writer
  std::filesystem::remove(pipe);
  const TemporaryFile empty({});
  EXPECT_THROW(static_cast<void>(GgufFile::open(empty.path())), FormatError);
}

// --- values

class Dequantize : public testing::TestWithParam<GgmlType> {};

TEST_P(Dequantize, IsTheFormulaRoundedOnce) {
  const GgmlType type = GetParam();
  constexpr std::int64_t kBlocks = 200;
  const std::vector<std::uint8_t> blocks = test::random_blocks(type, kBlocks, 17);
  GgufTensor tensor;
  tensor.type = type;
  tensor.shape = Shape{2, kBlocks / 2 * block_values(type)};
  tensor.data = reinterpret_cast<const std::byte*>(blocks.data());
  tensor.size_bytes = static_cast<std::int64_t>(blocks.size());
  const Tensor values = dequantize(tensor);
  const std::vector<double> expected = test::block_values_of(type, blocks.data(), kBlocks);
  ASSERT_EQ(values.shape(), tensor.shape);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(values.data_as<float>()[i], static_cast<float>(expected[i])) << to_string(type) << " value " << i;
  }
}

TEST_P(Dequantize, BlockSizesAreTheFormats) {
  EXPECT_EQ(block_values(GetParam()), test::block_size(GetParam()).values);
  EXPECT_EQ(block_bytes(GetParam()), test::block_size(GetParam()).bytes);
}

TEST_P(Dequantize, RefusesAWrongSize) {
  GgufTensor tensor;
  tensor.type = GetParam();
  tensor.shape = Shape{block_values(tensor.type)};
  tensor.size_bytes = block_bytes(tensor.type) - 1;
  EXPECT_THROW(static_cast<void>(dequantize(tensor)), InvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Gguf, Dequantize, testing::ValuesIn(test::kAllGgmlTypes),
                         [](const testing::TestParamInfo<GgmlType>& test) { return std::string(to_string(test.param)); });

TEST(Gguf, EveryHalfPrecisionScaleIsExact) {
  std::vector<std::uint16_t> bits(65536);
  std::iota(bits.begin(), bits.end(), std::uint16_t{0});
  const GgufTensor tensor{"all", GgmlType::kF16, Shape{65536}, reinterpret_cast<const std::byte*>(bits.data()), 131072};
  const Tensor values = dequantize(tensor);
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const std::uint8_t bytes[2] = {static_cast<std::uint8_t>(i & 255), static_cast<std::uint8_t>(i >> 8)};
    const double expected = test::half_value(bytes);
    const double got = values.data_as<float>()[i];
    ASSERT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected))) << i;
  }
}

// --- damaged headers

struct Damage {
  std::mt19937_64 engine;

  std::uint64_t below(std::uint64_t n) { return engine() % n; }

  void flip_bits(std::span<std::byte> header) {
    for (std::uint64_t n = 1 + below(8); n > 0; --n) header[below(header.size())] ^= std::byte{1} << static_cast<int>(below(8));
  }
  /// A length, count, dimension or offset somewhere becomes enormous.
  void write_huge(std::span<std::byte> header) {
    static constexpr std::uint64_t kSizes[] = {kHuge, 1ULL << 63, (1ULL << 63) - 1, 1ULL << 40, 1ULL << 32, 0x7FFFFFFF, 1ULL << 28};
    const std::uint64_t value = kSizes[below(std::size(kSizes))];
    const std::uint64_t place = below(3) == 0 ? 8 + 8 * below(3) : below(header.size() - 8);  // often a count or the first key's length
    std::memcpy(header.data() + place, &value, sizeof(value));
  }
};

/// What the consumer of a file reads, so that a sanitizer sees bad pointers. Tensors are bounded: they may all share the same bytes.
void read_everything(const GgufFile& file) {
  for (const std::string& key : file.keys()) ASSERT_NE(file.find(key), nullptr);
  std::int64_t budget = 1 << 16;
  for (const GgufTensor& tensor : file.tensors()) {
    ASSERT_EQ(file.find_tensor(tensor.name), &tensor);
    ASSERT_NE(static_cast<int>(tensor.data[0] ^ tensor.data[tensor.size_bytes - 1]), 256);
    budget -= element_count(tensor.shape);
    if (budget >= 0) static_cast<void>(dequantize(tensor));
  }
}

/// 200 damaged copies of a file whose header has `header_bytes` bytes. Returns how many still parse.
int survive_damage(std::vector<std::byte> file, std::size_t header_bytes) {
  const std::vector<std::byte> header(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(header_bytes));
  int parsed = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Damage damage{std::mt19937_64(seed)};
    std::size_t size = file.size();
    const std::span<std::byte> target = std::span(file).first(header_bytes);
    if (seed % 3 == 0) damage.flip_bits(target);
    if (seed % 3 == 1) damage.write_huge(target);
    if (seed % 3 == 2) size = damage.below(header_bytes + 1);
    const bool cut = size < file.size();
    const AlignedBytes copy(cut ? std::span<const std::byte>(file).first(size) : std::span<const std::byte>());
    test::forget_allocations();
    try {
      const GgufFile result = GgufFile::parse(cut ? copy.span() : std::span<const std::byte>(file), "damaged.gguf");
      EXPECT_LE(test::largest_allocation(), 8 * file.size());  // a list of bytes becomes one of int64
      read_everything(result);
      ++parsed;
    } catch (const FormatError& error) {
      EXPECT_LE(test::largest_allocation(), 8 * file.size());
      EXPECT_NE(std::string(error.what()).find("(byte "), std::string::npos);
    }
    std::copy(header.begin(), header.end(), file.begin());
  }
  return parsed;
}

TEST(Gguf, DamagedSyntheticHeadersGiveErrorsOrFiles) {
  const GgufBuilder builder = realistic();
  const int parsed = survive_damage(builder.finish(), builder.header_bytes());
  EXPECT_LT(parsed, 120);  // more would mean that the damage does not reach what is checked
}

TEST(Gguf, EveryTruncationOfASyntheticFileIsAnError) {
  const std::vector<std::byte> file = realistic().finish();
  const std::size_t last_value = file.size() - 10;  // the last tensor's 630 bytes are padded to 640
  for (std::size_t size = 0; size < last_value; size += 1 + size / 1000) EXPECT_NE(error_of(first_bytes(file, size)), "") << size;
  EXPECT_EQ(error_of(first_bytes(file, last_value)), "");
}

class GgufModel : public testing::TestWithParam<const char*> {};

TEST_P(GgufModel, DamagedHeadersGiveErrorsOrFiles) {
  const std::filesystem::path path = test::model_path(GetParam());
  if (path.empty()) GTEST_SKIP() << "HEED_TEST_MODELS does not lead to this file";
  std::size_t header_bytes = 0;
  {
    const GgufFile file = GgufFile::open(path.string());
    ASSERT_FALSE(file.tensors().empty());
    const std::byte* first = file.tensors()[0].data;
    for (const GgufTensor& tensor : file.tensors()) first = std::min(first, tensor.data);
    std::int64_t data_bytes = 0;
    for (const GgufTensor& tensor : file.tensors()) data_bytes = std::max(data_bytes, tensor.data + tensor.size_bytes - first);
    header_bytes = static_cast<std::size_t>(file.file_bytes() - data_bytes);
  }
  EXPECT_LT(survive_damage(test::read_file(path), header_bytes), 200);
}

INSTANTIATE_TEST_SUITE_P(Gguf, GgufModel, testing::Values("smollm2", "gemma3"),
                         [](const testing::TestParamInfo<const char*>& test) { return std::string(test.param); });

}  // namespace
}  // namespace heed::model
