// SPDX-License-Identifier: Apache-2.0
// heed mask: what an expression of masks lets through, as numbers, as text and as a picture.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <heed/heed.hpp>

#include "cli/commands.hpp"
#include "cli/io.hpp"
#include "cli/picture.hpp"
#include "mask/node.hpp"

namespace heed::cli {
namespace {

constexpr const char* kFooter =
    R"text(SPEC is what docs/patterns.md shows beside each picture: names with numbers, joined by & (and), | (or), ~ (not) and
brackets. Queries run down, keys to the right. Where a cell stands for several elements, its shade is their visible share.

Examples:
  heed mask causal --lq 16
  heed mask "causal & (window 128 0 | sink_tokens 4)" --lq 4096 --png mask.png
  heed mask "per_head (causal) (strided 8)" --lq 64 --head 1)text";

constexpr std::int64_t kMostLength = std::int64_t{1} << 20;
constexpr std::int64_t kMostPixels = 1024;  // on a side
constexpr std::int64_t kMostColumns = 64;   // of text
/// Query rows looked at for a cell of a large mask; all of its keys always are.
constexpr std::int64_t kSampledRows = 8;

struct MaskOptions {
  std::string spec, png;
  std::int64_t queries = 0, keys = 0, heads = 1, head = 0;
  bool top_left = false;
};

std::int64_t offset_of(const MaskOptions& o) { return o.top_left ? 0 : o.keys - o.queries; }

/// Visible shares of rows x columns cells, each of `side` x `side` elements, the last ones less.
struct Shares {
  std::int64_t rows, columns, side;
  std::vector<double> share;
};

std::int64_t count_keys(const MaskNode& node, const mask::Row& row, std::int64_t begin, std::int64_t end) {
  std::int64_t count = 0;
  for (std::int64_t key = begin; key < end; key += 64) {
    count += std::popcount(node.bits(row, key, static_cast<int>(std::min<std::int64_t>(64, end - key))));
  }
  return count;
}

Shares shares_of(const Mask& mask, const MaskOptions& o, std::int64_t most_cells) {
  const std::int64_t side = (std::max(o.queries, o.keys) + most_cells - 1) / most_cells;
  Shares s{(o.queries + side - 1) / side, (o.keys + side - 1) / side, side, {}};
  const std::int64_t offset = offset_of(o);
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const std::int64_t first = r * side, rows = std::min(side, o.queries - first), step = std::max<std::int64_t>(1, rows / kSampledRows);
    for (std::int64_t c = 0; c < s.columns; ++c) {
      const std::int64_t begin = c * side, end = std::min(begin + side, o.keys);
      std::int64_t visible = 0, all = 0;
      for (std::int64_t i = first; i < first + rows; i += step, all += end - begin) {
        visible += count_keys(mask.node(), {.batch = 0, .head = o.head, .index = i, .position = i + offset}, begin, end);
      }
      s.share.push_back(static_cast<double>(visible) / static_cast<double>(all));
    }
  }
  return s;
}

std::string as_text(const Shares& s) {
  static constexpr const char* kShades[] = {"\u2591", "\u2592", "\u2593"};
  std::string text;
  for (std::size_t i = 0; i < s.share.size(); ++i) {
    const double share = s.share[i];
    text += share == 0 ? "." : share == 1 ? "#" : kShades[std::min(2, static_cast<int>(share * 3))];
    text += (static_cast<std::int64_t>(i) + 1) % s.columns == 0 ? "\n" : " ";
  }
  return text;
}

Colour mixed(Colour a, Colour b, double share) {
  const auto mix = [share](std::uint8_t x, std::uint8_t y) { return static_cast<std::uint8_t>(std::lround(x + (y - x) * share)); };
  return {mix(a.red, b.red), mix(a.green, b.green), mix(a.blue, b.blue)};
}

/// Cells as squares; a thin line every 16 elements where they are large enough to be counted.
Picture as_picture(const Shares& s) {
  constexpr Colour kHidden{244, 244, 240}, kVisible{24, 72, 140}, kLine{200, 200, 195};
  constexpr std::int64_t kGrid = 16, kLeastForLines = 4;
  const std::int64_t scale = std::clamp<std::int64_t>(kMostPixels / std::max(s.rows, s.columns), 1, 24);
  Picture picture(s.columns * scale, s.rows * scale, kHidden);
  for (std::int64_t y = 0; y < picture.height(); ++y) {
    for (std::int64_t x = 0; x < picture.width(); ++x) {
      const bool lined = scale >= kLeastForLines && ((x % (kGrid * scale) == 0 && x > 0) || (y % (kGrid * scale) == 0 && y > 0));
      const double share = s.share[static_cast<std::size_t>(y / scale * s.columns + x / scale)];
      picture.set(x, y, lined ? kLine : mixed(kHidden, kVisible, share));
    }
  }
  return picture;
}

std::string statistics(const Mask& mask, const MaskOptions& o) {
  const MaskCall call = {.heads = o.heads, .query_offset = offset_of(o)};
  const TileStatistics t = mask.tile_statistics(o.queries, o.keys, call);
  return fmt::format("{}\n{}\n{:.2f} % of the pairs are visible; of {} tiles of 48 queries and 64 keys {} are full, {} mixed, {} skipped\n",
                     mask.to_string(), mask.describe(), 100 * t.density(), grouped(t.tiles), grouped(t.visited - t.partial),
                     grouped(t.partial), grouped(t.tiles - t.visited));
}

int draw(MaskOptions o) {
  if (o.keys == 0) o.keys = o.queries;
  const Mask mask = Mask::parse(o.spec);
  if (o.heads == 1) o.heads = std::max<std::int64_t>(1, mask.node().traits().heads);
  if (o.head >= o.heads) throw std::runtime_error(fmt::format("--head {}: there are {} heads, from 0 on (--heads)", o.head, o.heads));
  if (!o.png.empty()) require_writable(o.png);
  print(statistics(mask, o));
  if (o.png.empty()) {
    print("\n" + as_text(shares_of(mask, o, kMostColumns)));
  } else {
    write_text(o.png, as_picture(shares_of(mask, o, kMostPixels)).png());
  }
  return kSuccess;
}

}  // namespace

void add_mask(CLI::App& app, Action& action) {
  const auto options = std::make_shared<MaskOptions>();
  CLI::App* command = app.add_subcommand("mask", "Draw which query may look at which key");
  command->footer(kFooter);
  command->add_option("spec", options->spec, "The mask, as text")->required()->type_name("SPEC");
  command->add_option("--lq", options->queries, "Queries")->required()->check(CLI::Range(std::int64_t{1}, kMostLength))->type_name("N");
  command->add_option("--lk", options->keys, "Keys (default: as many)")->check(CLI::Range(std::int64_t{1}, kMostLength))->type_name("N");
  command->add_option("--png", options->png, "Write a picture in place of text")->type_name("FILE");
  command->add_option("--heads", options->heads, "Query heads, where the mask does not say (default: 1)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{4096}))
      ->type_name("N");
  command->add_option("--head", options->head, "The head to draw (default: 0)")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{4095}))
      ->type_name("N");
  command->add_flag("--top-left", options->top_left, "Query i sits at i (default: at i + lk - lq)");
  command->callback([options, &action] { action = [options] { return draw(*options); }; });
}

}  // namespace heed::cli
