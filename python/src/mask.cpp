// SPDX-License-Identifier: Apache-2.0
// heed.Mask.
#include "bindings.hpp"

#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <heed/mask.hpp>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "mask/count.hpp"
#include "mask/node.hpp"

namespace heed::python {
namespace {

/// The sizes of an imagined call; the mask's own number of batch entries and heads where the caller says 1.
MaskCall call_of(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align,
                 std::int64_t batch, std::int64_t heads, std::optional<std::int64_t> query_offset) {
  if (q_tokens < 0 || k_tokens < 0) throw_value("lq, lk", "expected sizes of at least 0");
  if (align != "bottom_right" && align != "top_left") throw_value("align", "expected \"bottom_right\" or \"top_left\"");
  if (!query_offset && align == "top_left") query_offset = 0;
  return mask::fitted(function, mask, q_tokens, k_tokens, {.batch = batch, .heads = heads, .query_offset = query_offset});
}

void fill_row(const Mask& mask, const mask::Row& row, std::int64_t keys, bool* to) {
  for (std::int64_t first = 0; first < keys; first += 64) {
    const int count = static_cast<int>(std::min<std::int64_t>(64, keys - first));
    const std::uint64_t bits = mask.node().bits(row, first, count);
    for (int k = 0; k < count; ++k) to[first + k] = (bits >> k & 1U) != 0;
  }
}

/// bool [Lq, Lk], or [B, Hq, Lq, Lk] where the mask tells batch entries or heads apart.
nb::object evaluate(const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align, std::int64_t batch,
                    std::int64_t heads, std::optional<std::int64_t> query_offset) {
  const MaskCall call = call_of("Mask.evaluate", mask, q_tokens, k_tokens, align, batch, heads, query_offset);
  const mask::Traits& traits = mask.node().traits();
  const bool differs = traits.uses_batch || traits.uses_head;
  Tensor result(DType::kBool, differs ? Shape{call.batch, call.heads, q_tokens, k_tokens} : Shape{q_tokens, k_tokens});
  auto* to = static_cast<bool*>(result.data());
  if (element_count(result.shape()) > 0) {
    const nb::gil_scoped_release release;
    for (std::int64_t b = 0; b < (differs ? call.batch : 1); ++b) {
      for (std::int64_t h = 0; h < (differs ? call.heads : 1); ++h) {
        for (std::int64_t i = 0; i < q_tokens; ++i, to += k_tokens) fill_row(mask, {b, h, i, i + *call.query_offset}, k_tokens, to);
      }
    }
  }
  return to_numpy(std::move(result));
}

TileStatistics count(const char* function, const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align,
                     std::int64_t batch, std::int64_t heads, std::optional<std::int64_t> query_offset) {
  const MaskCall call = call_of(function, mask, q_tokens, k_tokens, align, batch, heads, query_offset);
  const nb::gil_scoped_release release;
  return mask::tile_statistics(function, mask, q_tokens, k_tokens, call);
}

/// How much of the work a kernel leaves out.
nb::dict tile_statistics(const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align, std::int64_t batch,
                         std::int64_t heads, std::optional<std::int64_t> query_offset) {
  const TileStatistics counts = count("Mask.tile_statistics", mask, q_tokens, k_tokens, align, batch, heads, query_offset);
  nb::dict result;
  result["tiles"] = counts.tiles;
  result["visited"] = counts.visited;
  result["partial"] = counts.partial;
  result["skipped"] = counts.tiles > 0 ? 1.0 - static_cast<double>(counts.visited) / static_cast<double>(counts.tiles) : 0.0;
  result["density"] = counts.density();
  return result;
}

double density(const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align, std::int64_t batch,
               std::int64_t heads, std::optional<std::int64_t> query_offset) {
  return count("Mask.density", mask, q_tokens, k_tokens, align, batch, heads, query_offset).density();
}

using Numbers = std::vector<std::int64_t>;

/// A list with one number for each axis.
Shape shape_of(const char* argument, const std::optional<Numbers>& numbers) {
  if (!numbers) return Shape();
  if (numbers->size() > static_cast<std::size_t>(kMaxRank)) throw_value(argument, "expected at most " + std::to_string(kMaxRank) + " axes");
  return Shape(std::span<const std::int64_t>(*numbers));
}
RandomHeads random_heads(bool each_head) { return each_head ? RandomHeads::kEach : RandomHeads::kAlike; }

Mask make_fixed(std::int64_t stride, std::int64_t vertical, std::int64_t rotation) {
  return Mask::fixed({.stride = stride, .vertical = vertical, .rotation = rotation});
}
Mask make_neighborhood(const Numbers& grid, const Numbers& window, const std::optional<Numbers>& dilation) {
  return Mask::neighborhood(
      {.grid = shape_of("grid", grid), .window = shape_of("window", window), .dilation = shape_of("dilation", dilation)});
}
Mask make_shifted_window(const Numbers& grid, const Numbers& window, const std::optional<Numbers>& shift) {
  return Mask::shifted_window({.grid = shape_of("grid", grid), .window = shape_of("window", window), .shift = shape_of("shift", shift)});
}
Mask make_random_blocks(std::int64_t block, std::int64_t per_row, std::optional<std::int64_t> columns, std::uint64_t seed, bool each_head) {
  return Mask::random_blocks({.block = block, .per_row = per_row, .columns = columns, .seed = seed, .heads = random_heads(each_head)});
}
Mask make_big_bird(std::int64_t block, std::int64_t window_blocks, std::int64_t global_blocks, std::int64_t random_blocks,
                   std::optional<std::int64_t> columns, std::uint64_t seed, bool each_head) {
  return Mask::big_bird({.block = block,
                         .window_blocks = window_blocks,
                         .global_blocks = global_blocks,
                         .random_blocks = random_blocks,
                         .columns = columns,
                         .seed = seed,
                         .heads = random_heads(each_head)});
}

Mask make_documents(nb::object ids) { return Mask::documents(Array(argument_of(ids, "ids", "int64"), "ids")); }
Mask make_block_sparse(nb::object layout, std::int64_t block) {
  return Mask::block_sparse(Array(argument_of(layout, "layout", "bool"), "layout"), block);
}
Mask make_from_array(nb::object mask) { return Mask::from_tensor(Array(argument_of(mask, "mask", "bool"), "mask")); }

/// The sparse patterns of the literature.
void bind_patterns(nb::class_<Mask>& mask) {
  mask.def_static(
          "dilated", &Mask::dilated, nb::arg("side"), nb::arg("dilation"),
          "`side` keys to each side of the query's own, `dilation` apart: abs(p - j) <= side * dilation and (p - j) % dilation == 0\n"
          "(Longformer's dilated window).")
      .def_static("strided", &Mask::strided, nb::arg("stride"), "(p - j) % stride == 0 (Sparse Transformer).")
      .def_static("fixed", make_fixed, nb::arg("stride"), nb::arg("vertical") = 1, nb::kw_only(), nb::arg("rotation") = 1,
                  "p // stride == j // stride, or j is among the last `vertical` tokens of its block of `stride` (Sparse Transformer).\n"
                  "With a rotation, head h sees the (h % rotation)-th such group from the block's end.")
      .def_static("chunked", &Mask::chunked, nb::arg("tokens"), "p // tokens == j // tokens (Llama 4's local layers, with `causal() &`).")
      .def_static(
          "axial", [](const Numbers& grid) { return Mask::axial(shape_of("grid", grid)); }, nb::arg("grid"),
          "Both on the row-major grid, and their coordinates differ along at most one axis.")
      .def_static("neighborhood", make_neighborhood, nb::arg("grid"), nb::arg("window"), nb::arg("dilation").none() = nb::none(),
                  "The `window` of grid tokens around the query, pushed inside at the borders (NATTEN).")
      .def_static("shifted_window", make_shifted_window, nb::arg("grid"), nb::arg("window"), nb::arg("shift").none() = nb::none(),
                  "Both in the same window of the grid; windows start at the shift, and those it cuts at the borders stay apart (Swin).")
      .def_static("in_blocks", &Mask::in_blocks, nb::arg("block"), nb::arg("mask"), "`mask` at p // block and j // block.")
      .def_static(
          "random_blocks", make_random_blocks, nb::arg("block"), nb::arg("per_row"), nb::kw_only(), nb::arg("columns").none() = nb::none(),
          nb::arg("seed") = 0, nb::arg("each_head") = false,
          "Each query block sees `per_row` key blocks drawn from the first `columns`, or without `columns` from those up to its own.\n"
          "The draw depends on the seed and the query block, with `each_head` also on the head.")
      .def_static(
          "columns", [](const Numbers& positions) { return Mask::columns(positions); }, nb::arg("positions"), "j is one of `positions`.")
      .def_static(
          "diagonals", [](const Numbers& distances) { return Mask::diagonals(distances); }, nb::arg("distances"),
          "p - j is one of `distances`, each at least 0.")
      .def_static(
          "vertical_slash", [](const Numbers& columns, const Numbers& diagonals) { return Mask::vertical_slash(columns, diagonals); },
          nb::arg("columns"), nb::arg("diagonals"), "causal() & (columns(columns) | diagonals(diagonals)) (MInference).")
      .def_static(
          "tree", [](const std::vector<std::optional<std::int64_t>>& parents) { return Mask::tree(parents); }, nb::arg("parents"),
          "Draft tokens behind a prefix: query i sees the whole prefix, its ancestors and itself. parents[i] < i; None: the prefix.")
      .def_static(
          "longformer", [](std::int64_t side, const Numbers& global_tokens) { return Mask::longformer(side, global_tokens); },
          nb::arg("side"), nb::arg("global_tokens"),
          "window(side, side) | global_tokens(global_tokens); Hugging Face's attention_window is 2 * side.")
      .def_static("big_bird", make_big_bird, nb::arg("block") = 64, nb::kw_only(), nb::arg("window_blocks") = 3,
                  nb::arg("global_blocks") = 1, nb::arg("random_blocks") = 3, nb::arg("columns").none() = nb::none(), nb::arg("seed") = 0,
                  nb::arg("each_head") = false,
                  "Blocks around the query's (`window_blocks` with its own, odd), the first `global_blocks` as queries and keys, and\n"
                  "`random_blocks` as in `random_blocks` (BigBird).")
      .def_static("sinks_and_window", &Mask::sinks_and_window, nb::arg("sinks"), nb::arg("window"),
                  "causal() & (sink_tokens(sinks) | sliding_window(window)) (StreamingLLM).")
      .def_static("a_shape", &Mask::a_shape, nb::arg("initial"), nb::arg("local"),
                  "The same keys as sinks_and_window(initial, local), under MInference's name.");
}

}  // namespace

void bind_mask(nb::module_& module) {
  nb::class_<Mask> mask(
      module, "Mask",
      "Which query may look at which key; combine with `&`, `|`, `~`. Work is skipped tile by tile, no L x L tensor is made.\n\n"
      "A mask is a statement about a query at position p and a key at position j; see `align` of `heed.attention` for p.\n"
      "Immutable, and safe to use from several threads.\n\n"
      ">>> import heed\n"
      ">>> m = heed.Mask.causal() & (heed.Mask.window(2, 0) | heed.Mask.sink_tokens(1))\n"
      ">>> m\n"
      "heed.Mask('causal & (window 2 0 | sink_tokens 1)')\n"
      ">>> m.evaluate(5, 5).astype(int)\n"
      "array([[1, 0, 0, 0, 0],\n"
      "       [1, 1, 0, 0, 0],\n"
      "       [1, 1, 1, 0, 0],\n"
      "       [1, 1, 1, 1, 0],\n"
      "       [1, 0, 1, 1, 1]])\n");
  mask.def(nb::init<>(), "Every key.")
      .def_static("none", &Mask::none, "Every key.")
      .def_static("causal", &Mask::causal, "j <= p.")
      .def_static("window", &Mask::window, nb::arg("left").none(), nb::arg("right").none(),
                  "p - left <= j <= p + right: inclusive distances, at least 0; None opens a side.")
      .def_static("sliding_window", &Mask::sliding_window, nb::arg("tokens"),
                  "`tokens` keys with the query's own: p - tokens < j <= p (Mistral, Hugging Face's sliding_window).")
      .def_static("prefix_lm", &Mask::prefix_lm, nb::arg("n"), "The first n keys for everybody, causal for the rest.")
      .def_static("sink_tokens", &Mask::sink_tokens, nb::arg("n"), "The first n keys, for everybody.")
      .def_static(
          "global_tokens", [](const std::vector<std::int64_t>& positions) { return Mask::global_tokens(positions); }, nb::arg("positions"),
          "p or j is one of `positions` (Longformer).")
      .def_static("documents", make_documents, nb::arg("ids"),
                  "Tokens of the same document: ids[p] == ids[j]. ids int32 or int64, [L] or [B, L]; copied.")
      .def_static("block_sparse", make_block_sparse, nb::arg("layout"), nb::arg("block"),
                  "layout[p // block, j // block]. Boolean [rows, columns] or [Hq, rows, columns]; copied.")
      .def_static("from_array", make_from_array, nb::arg("mask"),
                  "mask[b, h, i, j] by query index: boolean, [Lq, Lk] up to [B, Hq, Lq, Lk], right-aligned broadcast; copied.")
      .def_static("per_head", &Mask::per_head, nb::arg("masks"), "masks[h] for query head h.")
      .def_static("parse", &Mask::parse, nb::arg("text"), "Reads what `str` writes: \"causal & (window 128 0 | sink_tokens 4)\".")
      .def("evaluate", evaluate, nb::arg("lq"), nb::arg("lk"), nb::kw_only(), nb::arg("align") = "bottom_right", nb::arg("batch") = 1,
           nb::arg("heads") = 1, nb::arg("query_offset").none() = nb::none(),
           nb::sig("def evaluate(self, lq: int, lk: int, *, align: str = 'bottom_right', batch: int = 1, heads: int = 1, "
                   "query_offset: int | None = None) -> numpy.typing.NDArray[numpy.bool_]"),
           "The mask as a boolean array: [Lq, Lk], or [B, Hq, Lq, Lk] where it tells batch entries or heads apart.")
      .def("tile_statistics", tile_statistics, nb::arg("lq"), nb::arg("lk"), nb::kw_only(), nb::arg("align") = "bottom_right",
           nb::arg("batch") = 1, nb::arg("heads") = 1, nb::arg("query_offset").none() = nb::none(),
           "How much a kernel leaves out: `tiles` of 48 queries x 64 keys, those `visited`, the `partial` ones among them, the share\n"
           "`skipped`, and the `density`: visible slots / all slots.")
      .def("density", density, nb::arg("lq"), nb::arg("lk"), nb::kw_only(), nb::arg("align") = "bottom_right", nb::arg("batch") = 1,
           nb::arg("heads") = 1, nb::arg("query_offset").none() = nb::none(),
           "Visible slots / all slots, counted tile by tile: no [Lq, Lk] array is made.")
      .def("describe", &Mask::describe, "The mask as an English sentence, for people; the wording may change.")
      .def(nb::self & nb::self)
      .def(nb::self | nb::self)
      .def("__invert__", [](const Mask& m) { return ~m; })
      .def("__bool__",  // otherwise `a and b` would be b, without a word
           [](const Mask&) -> bool {
             throw nb::type_error("a heed.Mask is neither true nor false: combine masks with &, | and ~, not and, or, not");
           })
      .def(
          "__eq__", [](const Mask& a, const Mask& b) { return a == b; }, nb::is_operator())
      .def("__hash__", [](const Mask& m) { return std::hash<std::string>{}(m.to_string()); })
      .def("__copy__", [](nb::object self) { return self; })
      .def(
          "__deepcopy__", [](nb::object self, nb::object /*memo*/) { return self; }, nb::arg("memo"))
      .def("__str__", &Mask::to_string)
      .def("__repr__", [](const Mask& m) { return "heed.Mask('" + m.to_string() + "')"; });
  bind_patterns(mask);
}

}  // namespace heed::python
