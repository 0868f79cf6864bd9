// SPDX-License-Identifier: Apache-2.0
// heed_ladder [--quick] [--length L] [--head-dim D]... [--rounds N] [--json FILE]
//
// Checks every step against float64, then measures it as a share of the machine's FMA peak, on one thread. HEED_ISA=avx2 chooses another
// instruction set, for the steps as for the library. Ends with 1 when a step is wrong.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <heed/kernels.hpp>

#include "ladder/measure.hpp"
#include "ladder/problem.hpp"

namespace ladder {
namespace {

constexpr std::int64_t kCheckedLength = 128;  ///< two blocks of keys; two and two thirds of 48 rows

struct Options {
  std::int64_t length = 2048;
  std::vector<std::int64_t> head_dims;
  int rounds = 7;
  std::string json;
  bool help = false;
};

constexpr const char* kUsage =
    R"(heed_ladder [--quick] [--length L] [--head-dim D]... [--rounds N] [--json FILE]
Checks every step of docs/kernel-ladder.md against float64, then measures them in turn as shares of the FMA peak, on one thread. A minute or two.
  --quick       short sequences and one round: checks everything, measures nothing
  --length L    tokens, a multiple of 64 (default: 2048)
  --head-dim D  head dimension, a multiple of 8; may be repeated (default: 64 and 128)
  --rounds N    samples per step (default: 7)
  --json FILE   writes what bench/ladder/plot.py draws
HEED_ISA=avx2 chooses another instruction set.
)";

// One line per step.
// clang-format off
#define LADDER_RUNGS(isa)                                     \
  {{"step01_naive", isa::step01_naive},                       \
   {"step02_contiguous", isa::step02_contiguous},             \
   {"step03_online_softmax", isa::step03_online_softmax},     \
   {"step04_cache_tiles", isa::step04_cache_tiles},           \
   {"step05_queries_in_lanes", isa::step05_queries_in_lanes}, \
   {"step06_register_tile", isa::step06_register_tile},       \
   {"step07_polynomial_exp2", isa::step07_polynomial_exp2},   \
   {"step08_lazy_rescale", isa::step08_lazy_rescale},         \
   {"step09_super_blocks", isa::step09_super_blocks},         \
   {"step10_heed", step10_heed}}
// clang-format on

std::vector<Rung> rungs_of(std::string_view isa) {
#if defined(LADDER_HAS_AVX512)
  if (isa == "avx512" || isa == "avx512bf16") return LADDER_RUNGS(avx512);
  if (isa == "avx2") return LADDER_RUNGS(avx2);
#endif
  (void)isa;
  return LADDER_RUNGS(baseline);
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0 && line.size() > line.find(':') + 2) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

/// The rule of docs/accuracy.md, the naive step being the plain implementation; the naive step itself must keep a bound from arithmetic alone.
int check(const std::vector<Rung>& rungs, const Example& example) {
  const Problem p = example.problem();
  const std::vector<double> exact = exact_rows(p);
  double largest = 0;
  for (const double x : exact) largest = std::max(largest, std::abs(x));
  double bound = float32_bound(p);
  int right = 0;
  for (const Rung& rung : rungs) {
    example.forget();
    rung.step(p);
    const double error = largest_error(p, exact);
    const bool good = error <= bound;
    if (!good) std::printf("%s: L %ld D %ld: off by %.3g, allowed %.3g\n", rung.name, long(p.length), long(p.head_dim), error, bound);
    if (&rung == rungs.data() && good) bound = 2 * error + 1e-6 * largest;
    right += good ? 1 : 0;
  }
  return right;
}

std::string row_json(const Result& r, std::int64_t length, std::int64_t head_dim) {
  char text[400];
  std::snprintf(text, sizeof text,
                R"({"name": "%s", "shape": "B1 Hq1 Hkv1 L%ld D%ld", "threads": 1, "value": %.3f, "unit": "GFLOP/s", "peak": %.3f, )"
                R"("ratio": %.5f, "ratio_q1": %.5f, "ratio_q3": %.5f, "target": null})",
                r.name.c_str(), long(length), long(head_dim), r.speed / 1e9, r.peak / 1e9, r.ratio, r.ratio_q1, r.ratio_q3);
  return text;
}

/// CPU names come from the system: what JSON would misread is left out.
std::string quoted(const std::string& text) {
  std::string clean;
  for (const char c : text) {
    if (c >= ' ' && c != '"' && c != '\\') clean += c;
  }
  return '"' + clean + '"';
}

/// Of the measurement, UTC: 2026-11-30.
std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", &parts);
  return text;
}

std::string machine_json() {
#if defined(__clang__)
  const std::string compiler = "Clang " __clang_version__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
  return "{\"cpu\": " + quoted(cpu_name()) + ", \"isa\": " + quoted(heed::active_isa()) + ", \"compiler\": " + quoted(compiler) +
         ", \"version\": " + quoted(heed::version()) + ", \"date\": " + quoted(today()) + "}";
}

void write_json(const std::string& path, const std::vector<std::string>& rows) {
  std::ofstream file(path);
  file << "{\"machine\": " << machine_json() << ",\n \"rows\": [";
  for (std::size_t i = 0; i < rows.size(); ++i) file << (i == 0 ? "\n  " : ",\n  ") << rows[i];
  file << "\n]}\n";
  if (!file.flush()) throw std::runtime_error("cannot write " + path);
}

std::int64_t number(const std::string& text, std::int64_t unit) {
  const std::int64_t n = std::atoll(text.c_str());
  if (n <= 0 || n % unit != 0) throw std::invalid_argument("expected a positive multiple of " + std::to_string(unit) + ", got " + text);
  return n;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options.length = kCheckedLength;
      options.rounds = 1;
      continue;
    }
    if (name == "--help") {
      options.help = true;
      return options;
    }
    if (i + 1 == argc) throw std::invalid_argument(name + ": expected a value");
    const std::string value = argv[++i];
    if (name == "--length") {
      options.length = number(value, 64);
    } else if (name == "--head-dim") {
      options.head_dims.push_back(number(value, 8));
    } else if (name == "--rounds") {
      options.rounds = static_cast<int>(number(value, 1));
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw std::invalid_argument("unknown option " + name);
    }
  }
  if (options.head_dims.empty()) options.head_dims = {64, 128};
  return options;
}

int run(const Options& options) {
  if (options.help) {
    std::fputs(kUsage, stdout);
    return EXIT_SUCCESS;
  }
  heed::set_num_threads(1);
  const std::vector<Rung> rungs = rungs_of(heed::active_isa());
  std::printf("%s, instruction set %s, 1 thread, L %ld\n", cpu_name().c_str(), heed::active_isa().c_str(), long(options.length));
  std::vector<std::string> rows;
  int right = 0, checked = 0;
  for (const std::int64_t head_dim : options.head_dims) {
    for (const Keys keys : {Keys::kAlike, Keys::kRising}) {
      right += check(rungs, Example(kCheckedLength, head_dim, keys));
      checked += static_cast<int>(rungs.size());
    }
    const Example example(options.length, head_dim, Keys::kAlike);
    std::printf("\nD %-22ld GFLOP/s    peak   share\n", long(head_dim));
    for (const Result& r : measure(rungs, example.problem(), options.rounds)) {
      std::printf("%-25s %7.1f %7.1f  %5.1f %% (%.1f-%.1f)\n", r.name.c_str(), r.speed / 1e9, r.peak / 1e9, 100 * r.ratio, 100 * r.ratio_q1,
                  100 * r.ratio_q3);
      rows.push_back(row_json(r, options.length, head_dim));
    }
  }
  std::printf("\n%d results right\n", right);
  if (!options.json.empty()) write_json(options.json, rows);
  return right == checked ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace ladder

int main(int argc, char** argv) {
  try {
    return ladder::run(ladder::parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "heed_ladder: %s\n", error.what());
    return 2;
  }
}
