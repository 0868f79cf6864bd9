// SPDX-License-Identifier: Apache-2.0
// heed bench attention: prefill against the measured FMA peak, decode against the measured read bandwidth.
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <heed/heed.hpp>

#include "cli/bench_measure.hpp"
#include "cli/commands.hpp"
#include "cli/io.hpp"
#include "cli/tables.hpp"

namespace heed::cli {
namespace {

constexpr const char* kFooter =
    R"(Each kernel's speed is a share of what the machine does at the same moment: prefill of its FMA peak (bfloat16:
of its bf16 dot peak, where it has one), decode of its read bandwidth, over caches of more than 1 GB together
that no last-level cache can hold. Masked-out work is not counted. Medians of rounds.

Examples:
  heed bench attention
  heed bench attention --json > bench.json
  HEED_ISA=avx2 heed bench attention --threads 1)";

struct AttentionBenchOptions {
  int threads = 0, rounds = 7;
  bool quick = false;
  std::string json;
};

struct Sizes {
  std::int64_t prefill_tokens, decode_keys, decode_bytes;
};
constexpr std::int64_t kHeadDim = 128, kPrefillHeads = 8, kDecodeHeads = 32, kDecodeKvHeads = 8;
constexpr Sizes kFullSizes = {2048, 8192, std::int64_t{1} << 30};
constexpr Sizes kQuickSizes = {256, 1024, std::int64_t{32} << 20};

/// Values in [-1, 1): a linear congruential generator, as a gigabyte must be filled in no time.
void fill(float* data, std::int64_t count, std::uint32_t seed) {
  std::uint32_t state = seed;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    data[i] = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31F;
  }
}

Tensor random_tensor(DType dtype, const Shape& shape, std::uint32_t seed) {
  Tensor values(DType::kFloat32, shape);
  fill(values.data_as<float>(), element_count(shape), seed);
  return dtype == DType::kFloat32 ? std::move(values) : convert(values, dtype);
}

struct PrefillInputs {
  Tensor q, k, v, out;
};

BenchCase prefill_case(DType dtype, const Mask& mask, const char* mask_name, std::int64_t length) {
  const Shape shape = {1, length, kPrefillHeads, kHeadDim};
  auto inputs = std::make_shared<PrefillInputs>(
      PrefillInputs{random_tensor(dtype, shape, 1), random_tensor(dtype, shape, 2), random_tensor(dtype, shape, 3), Tensor(dtype, shape)});
  const auto pairs = static_cast<double>(mask == Mask::causal() ? length * (length + 1) / 2 : length * length);
  const bool native_dot = dtype == DType::kBFloat16 && probe_bf16_dot(1) > 0;
  return {fmt::format("prefill {} {}", to_string(dtype), mask_name),
          fmt::format("B1 Hq{0} Hkv{0} L{1} D{2}", kPrefillHeads, length, kHeadDim), native_dot ? Bound::kBf16Dot : Bound::kFma,
          4.0 * pairs * kPrefillHeads * kHeadDim,
          [inputs, mask] { attention_into({.out = inputs->out}, inputs->q, inputs->k, inputs->v, {.mask = mask}); }};
}

std::vector<BenchCase> prefill_cases(const Sizes& sizes) {
  std::vector<BenchCase> cases;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    cases.push_back(prefill_case(dtype, Mask::none(), "no mask", sizes.prefill_tokens));
    cases.push_back(prefill_case(dtype, Mask::causal(), "causal", sizes.prefill_tokens));
  }
  return cases;
}

/// Keys and values of many independent caches in one stretch of memory, each [Hkv, keys, D] as a KvCache keeps them.
class CacheRow {
 public:
  CacheRow(DType dtype, const Sizes& sizes) : dtype_(dtype), keys_(sizes.decode_keys) {
    const std::int64_t elements = sizes.decode_bytes / size_bytes(dtype);
    count_ = (elements + 2 * block() - 1) / (2 * block());
    memory_ = Tensor(dtype, {count_ * 2 * block()});
    fill_memory();
    q_ = random_tensor(dtype, {1, 1, kDecodeHeads, kHeadDim}, 4);
    out_ = Tensor(dtype, q_.shape());
  }

  /// One query against every cache in turn.
  void attend_all() {
    for (std::int64_t i = 0; i < count_; ++i) attention_into({.out = out_}, q_, view(2 * i), view(2 * i + 1), {.mask = Mask::causal()});
  }
  [[nodiscard]] double bytes() const { return static_cast<double>(count_ * 2 * block() * size_bytes(dtype_)); }
  [[nodiscard]] std::span<const float> as_floats() const {
    return {static_cast<const float*>(memory_.data()), static_cast<std::size_t>(bytes()) / sizeof(float)};
  }
  [[nodiscard]] std::string shape() const {
    return fmt::format("B1 Hq{} Hkv{} Lq1 Lk{} D{}, {} caches", kDecodeHeads, kDecodeKvHeads, keys_, kHeadDim, count_);
  }

 private:
  [[nodiscard]] std::int64_t block() const { return kDecodeKvHeads * keys_ * kHeadDim; }

  /// A part of random values, repeated: what the values are does not matter, only that they are finite and not all alike.
  void fill_memory() {
    const Tensor part = random_tensor(dtype_, {block()}, 5);
    const std::int64_t part_bytes = block() * size_bytes(dtype_);
    for (std::int64_t i = 0; i < 2 * count_; ++i) {
      std::copy_n(static_cast<const std::byte*>(part.data()), part_bytes, static_cast<std::byte*>(memory_.data()) + i * part_bytes);
    }
  }

  /// [1, keys, Hkv, D] of block i.
  [[nodiscard]] TensorView view(std::int64_t i) const {
    const auto* data = static_cast<const std::byte*>(memory_.data()) + i * block() * size_bytes(dtype_);
    return permute(TensorView(static_cast<const void*>(data), dtype_, {1, kDecodeKvHeads, keys_, kHeadDim}), {0, 2, 1, 3});
  }

  DType dtype_;
  std::int64_t keys_, count_ = 0;
  Tensor memory_, q_, out_;
};

using Results = std::vector<BenchResult>;

void append(Results& all, const Results& more) { all.insert(all.end(), more.begin(), more.end()); }

void bench_prefill(Results& results, const Sizes& sizes, const std::set<int>& threads, int rounds) {
  const auto cases = prefill_cases(sizes);
  for (const int n : threads) append(results, measure(cases, Yardsticks(n, {}), rounds));
}

void bench_decode(Results& results, DType dtype, const Sizes& sizes, const std::set<int>& threads, int rounds) {
  CacheRow caches(dtype, sizes);
  const BenchCase decode = {fmt::format("decode {}", to_string(dtype)), caches.shape(), Bound::kRead, caches.bytes(),
                            [&caches] { caches.attend_all(); }};
  for (const int n : threads) append(results, measure({&decode, 1}, Yardsticks(n, caches.as_floats()), rounds));
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(std::min(line.size(), line.find(':') + 2));
  }
  return "unknown CPU";
}

std::string as_json(const Results& results) {
  nlohmann::json list = nlohmann::json::array();
  for (const BenchResult& r : results) {
    list.push_back({{"name", r.name},
                    {"shape", r.shape},
                    {"threads", r.threads},
                    {"unit", unit_of(r.bound)},
                    {"speed", r.speed / 1e9},
                    {"peak", r.peak / 1e9},
                    {"peak_of", to_string(r.bound)},
                    {"ratio", r.ratio},
                    {"ratio_min", r.ratio_min},
                    {"ratio_max", r.ratio_max}});
  }
  const nlohmann::json result = {
      {"bench", "attention"}, {"version", version()}, {"isa", active_isa()}, {"cpu", cpu_name()}, {"results", list}};
  return result.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string as_table(const Results& results) {
  std::vector<Row> rows = {{"kernel", "threads", "speed", "machine's own", "share", "rounds from - to", "shape"}};
  for (const BenchResult& r : results) {
    rows.push_back({r.name, std::to_string(r.threads), fmt::format("{:6.1f} {}", r.speed / 1e9, unit_of(r.bound)),
                    fmt::format("{:6.1f} {}", r.peak / 1e9, to_string(r.bound)), fmt::format("{:5.1f} %", 100 * r.ratio),
                    fmt::format("{:5.1f} - {:.1f} %", 100 * r.ratio_min, 100 * r.ratio_max), r.shape});
  }
  return fmt::format("heed {}, instruction set {}, {}\n\n", version(), active_isa(), cpu_name()) + format_table(rows);
}

int bench_attention(const AttentionBenchOptions& options) {
  use_threads(options.threads);
  const std::set<int> threads = options.threads > 0 ? std::set<int>{options.threads} : std::set<int>{1, get_num_threads()};
  const Sizes& sizes = options.quick ? kQuickSizes : kFullSizes;
  const int rounds = options.quick ? 3 : options.rounds;
  if (!options.json.empty()) require_writable(options.json);
  Results results;
  note("prefill ...\n");
  bench_prefill(results, sizes, threads, rounds);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    if (interrupted()) return kInterrupted;
    note(fmt::format("decode {} ...\n", to_string(dtype)));
    bench_decode(results, dtype, sizes, threads, rounds);
  }
  if (interrupted()) return kInterrupted;
  if (!options.json.empty()) write_text(options.json, as_json(results));
  if (options.json != "-") print(as_table(results));
  return kSuccess;
}

}  // namespace

void add_bench_attention(CLI::App& bench, Action& action) {
  const auto options = std::make_shared<AttentionBenchOptions>();
  CLI::App* command = bench.add_subcommand("attention", "Attention kernels as shares of the machine's own peaks");
  command->footer(kFooter);
  add_threads(*command, options->threads);
  CLI::Option* rounds =
      command->add_option("--rounds", options->rounds, "Timed rounds (default: 7)")->check(CLI::Range(1, 10000))->type_name("N");
  command->add_flag("--quick", options->quick, "Small sizes and three rounds: shows that everything runs, measures nothing worth keeping")
      ->excludes(rounds);
  command->add_option("--json", options->json, "JSON in place of the table; with a FILE, in addition to it")
      ->expected(0, 1)
      ->default_str("-")
      ->type_name("[FILE]");
  command->callback([options, command, &action] {
    if (command->count("--json") > 0 && options->json.empty()) options->json = "-";
    action = [options] { return bench_attention(*options); };
  });
}

}  // namespace heed::cli
