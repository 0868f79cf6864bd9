// SPDX-License-Identifier: Apache-2.0
// Forward calls. Every array is the caller's, the results too; the GIL is released while the library works.
#include "bindings.hpp"
#include "options.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <heed/kv_cache.hpp>
#include <heed/select_blocks.hpp>

#include <vector>

namespace heed::python {
namespace {

void run_attention(nb::object out, nb::object lse, nb::object q, nb::object k, nb::object v, const nb::tuple& options,
                   std::string_view layout_text) {
  const Layout layout = parse_layout(layout_text);
  const Options parsed(options);
  const Array q_array(q, "q");
  const OutputArray out_array(out, "out"), lse_array(lse, "lse");
  const AttentionOutputs outputs = {.out = tokens_first(out_array.view(), layout), .lse = lse_array};
  const TensorView q_view = tokens_first(q_array.view(), layout);
  const KvView* cache = nullptr;
  if (nb::try_cast(k, cache) && cache != nullptr) {
    const KvView view = *cache;
    const nb::gil_scoped_release release;
    attention_into(outputs, q_view, view, parsed.get());
    return;
  }
  const Array k_array(k, "k"), v_array(v, "v");
  const nb::gil_scoped_release release;
  attention_into(outputs, q_view, tokens_first(k_array.view(), layout), tokens_first(v_array.view(), layout), parsed.get());
}

void run_varlen(nb::object out, nb::object lse, nb::object q, nb::object k, nb::object v, nb::object q_offsets, nb::object k_offsets,
                const nb::tuple& options) {
  const Options parsed(options);
  const Array q_array(q, "q"), k_array(k, "k"), v_array(v, "v"), q_rows(q_offsets, "q_offsets"), k_rows(k_offsets, "k_offsets");
  const OutputArray out_array(out, "out"), lse_array(lse, "lse");
  const nb::gil_scoped_release release;
  attention_varlen_into({.out = out_array, .lse = lse_array}, q_array, k_array, v_array, q_rows, k_rows, parsed.get());
}

/// Tensors of their own: merge_states reads states that own their memory.
AttentionState copy_state(const nb::tuple& pair) {
  const Array out(pair[0], "out"), lse(pair[1], "lse");
  return {convert(out, out.view().dtype()), convert(lse, lse.view().dtype())};
}

nb::tuple run_merge(const nb::list& states) {
  std::vector<AttentionState> copies;
  for (nb::handle state : states) copies.push_back(copy_state(nb::cast<nb::tuple>(state)));
  AttentionState merged;
  {
    const nb::gil_scoped_release release;
    merged = merge_states(copies);
  }
  return nb::make_tuple(to_numpy(std::move(merged.out)), to_numpy(std::move(merged.lse)));
}

Mask run_select_blocks(nb::object q, nb::object k, std::int64_t block, std::int64_t keep, std::int64_t first, std::int64_t local,
                       std::string_view layout_text) {
  const Layout layout = parse_layout(layout_text);
  const Array q_array(q, "q"), k_array(k, "k");
  const nb::gil_scoped_release release;
  return select_blocks(tokens_first(q_array.view(), layout), tokens_first(k_array.view(), layout),
                       {.block = block, .keep = keep, .first = first, .local = local});
}

std::string run_explain(const std::vector<std::int64_t>& q, const std::vector<std::int64_t>& k, nb::object like, const nb::tuple& options) {
  const Options parsed(options);
  const Array array(like, "dtype");
  return explain(Shape(q), Shape(k), array.view().dtype(), parsed.get());
}

}  // namespace

void bind_attention(nb::module_& module) {
  module.def("attention_into", run_attention, nb::arg("out"), nb::arg("lse").none(), nb::arg("q"), nb::arg("k"), nb::arg("v").none(),
             nb::arg("options"), nb::arg("layout"));
  module.def("attention_varlen_into", run_varlen, nb::arg("out"), nb::arg("lse").none(), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("q_offsets"), nb::arg("k_offsets"), nb::arg("options"));
  module.def("merge_states", run_merge, nb::arg("states"));
  module.def("select_blocks", run_select_blocks, nb::arg("q"), nb::arg("k"), nb::arg("block"), nb::arg("keep"), nb::arg("first"),
             nb::arg("local"), nb::arg("layout"));
  module.def("explain", run_explain, nb::arg("q_shape"), nb::arg("k_shape"), nb::arg("like"), nb::arg("options"));
}

}  // namespace heed::python
