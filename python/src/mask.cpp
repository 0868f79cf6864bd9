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
#include <string>
#include <vector>

#include "mask/node.hpp"
#include "mask/plan.hpp"

namespace heed::python {
namespace {

/// Where the queries of an imagined call sit.
struct Call {
  std::int64_t batch, heads, q_tokens, k_tokens, query_offset;
};

Call call_of(const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align, std::int64_t batch, std::int64_t heads,
             std::optional<std::int64_t> query_offset) {
  const mask::Traits& traits = mask.node().traits();
  if (q_tokens < 0 || k_tokens < 0) throw_value("lq, lk", "expected sizes of at least 0");
  if (batch < 1 || heads < 1) throw_value("batch, heads", "expected at least 1");
  if (traits.batch != 0 && batch == 1) batch = traits.batch;
  if (traits.heads != 0 && heads == 1) heads = traits.heads;
  if (traits.batch != 0 && batch != traits.batch) throw_value("batch", "this mask is for " + std::to_string(traits.batch));
  if (traits.heads != 0 && heads != traits.heads) throw_value("heads", "this mask is for " + std::to_string(traits.heads));
  if (align != "bottom_right" && align != "top_left") throw_value("align", "expected \"bottom_right\" or \"top_left\"");
  const std::int64_t offset = query_offset.value_or(align == "bottom_right" ? k_tokens - q_tokens : 0);
  return {batch, heads, q_tokens, k_tokens, offset};
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
  const Call call = call_of(mask, q_tokens, k_tokens, align, batch, heads, query_offset);
  const mask::Traits& traits = mask.node().traits();
  const bool differs = traits.uses_batch || traits.uses_head;
  Tensor result(DType::kBool, differs ? Shape{call.batch, call.heads, q_tokens, k_tokens} : Shape{q_tokens, k_tokens});
  auto* to = static_cast<bool*>(result.data());
  if (element_count(result.shape()) > 0) {
    const nb::gil_scoped_release release;
    for (std::int64_t b = 0; b < (differs ? call.batch : 1); ++b) {
      for (std::int64_t h = 0; h < (differs ? call.heads : 1); ++h) {
        for (std::int64_t i = 0; i < q_tokens; ++i, to += k_tokens) fill_row(mask, {b, h, i, i + call.query_offset}, k_tokens, to);
      }
    }
  }
  return to_numpy(std::move(result));
}

constexpr std::int32_t kTileRows = 48;  // a row block of the AVX-512 kernels, for one query head per KV head

/// How much of the work a kernel leaves out.
nb::dict tile_statistics(const Mask& mask, std::int64_t q_tokens, std::int64_t k_tokens, std::string_view align, std::int64_t batch,
                         std::int64_t heads, std::optional<std::int64_t> query_offset) {
  const Call call = call_of(mask, q_tokens, k_tokens, align, batch, heads, query_offset);
  std::vector<mask::Geometry> geometry(static_cast<std::size_t>(call.batch));
  for (std::int64_t b = 0; b < call.batch; ++b) {
    geometry[static_cast<std::size_t>(b)] = {.tokens = q_tokens, .keys = k_tokens, .query_offset = call.query_offset, .batch = b};
  }
  const mask::PlanSet plans(mask, geometry, call.heads, 1, kTileRows);
  const std::int64_t row_blocks = (q_tokens + kTileRows - 1) / kTileRows;
  const std::int64_t key_blocks = (k_tokens + kernels::kBlockKeys - 1) / kernels::kBlockKeys;
  std::int64_t visited = 0, partial = 0;
  for (std::int64_t b = 0; b < call.batch; ++b) {
    for (std::int64_t h = 0; h < call.heads; ++h) {
      const kernels::TilePlan& plan = plans.plan(b, h);
      for (std::int64_t run = plan.run_begin[0]; run < plan.run_begin[row_blocks]; ++run) {
        visited += plan.runs[run].block_count;
        partial += plan.runs[run].bits >= 0 ? 1 : 0;
      }
    }
  }
  const std::int64_t all = call.batch * call.heads * row_blocks * key_blocks;
  const double slots = static_cast<double>(call.batch * call.heads) * static_cast<double>(q_tokens) * static_cast<double>(k_tokens);
  nb::dict result;
  result["tiles"] = all;
  result["visited"] = visited;
  result["partial"] = partial;
  result["skipped"] = all > 0 ? 1.0 - static_cast<double>(visited) / static_cast<double>(all) : 0.0;
  result["density"] = slots > 0 ? static_cast<double>(plans.visible_slots()) / slots : 0.0;
  return result;
}

Mask make_documents(nb::object ids) { return Mask::documents(Array(argument_of(ids, "ids", "int64"), "ids")); }
Mask make_block_sparse(nb::object layout, std::int64_t block) {
  return Mask::block_sparse(Array(argument_of(layout, "layout", "bool"), "layout"), block);
}
Mask make_from_array(nb::object mask) { return Mask::from_tensor(Array(argument_of(mask, "mask", "bool"), "mask")); }

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
}

}  // namespace heed::python
