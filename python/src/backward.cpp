// SPDX-License-Identifier: Apache-2.0
// Gradients, into arrays that the Python layer made.
#include "bindings.hpp"
#include "options.hpp"

#include <nanobind/stl/string_view.h>

namespace heed::python {
namespace {

/// (dq, dk, dv, dbias, dsink_logits), the last two None where they are not wanted.
struct Gradients {
  explicit Gradients(const nb::tuple& parts)
      : dq(parts[0], "dq"), dk(parts[1], "dk"), dv(parts[2], "dv"), dbias(parts[3], "dbias"), dsink_logits(parts[4], "dsink_logits") {}
  OutputArray dq, dk, dv, dbias, dsink_logits;
};

void run_backward(const nb::tuple& gradients, nb::object dout, nb::object q, nb::object k, nb::object v, nb::object out, nb::object lse,
                  const nb::tuple& options, std::string_view layout_text) {
  const Layout layout = parse_layout(layout_text);
  const Options parsed(options);
  const Gradients g(gradients);
  const Array dout_array(dout, "dout"), q_array(q, "q"), k_array(k, "k"), v_array(v, "v"), out_array(out, "out"), lse_array(lse, "lse");
  const auto in_order = [layout](const auto& array) { return tokens_first(array.view(), layout); };
  const AttentionGradOutputs outputs = {
      .dq = in_order(g.dq), .dk = in_order(g.dk), .dv = in_order(g.dv), .dbias = g.dbias, .dsink_logits = g.dsink_logits};
  const nb::gil_scoped_release release;
  attention_backward_into(outputs, in_order(dout_array), in_order(q_array), in_order(k_array), in_order(v_array), in_order(out_array),
                          lse_array, parsed.get());
}

void run_varlen_backward(const nb::tuple& gradients, nb::object dout, nb::object q, nb::object k, nb::object v, nb::object out,
                         nb::object lse, nb::object q_offsets, nb::object k_offsets, const nb::tuple& options) {
  const Options parsed(options);
  const Gradients g(gradients);
  const Array dout_array(dout, "dout"), q_array(q, "q"), k_array(k, "k"), v_array(v, "v"), out_array(out, "out"), lse_array(lse, "lse"),
      q_rows(q_offsets, "q_offsets"), k_rows(k_offsets, "k_offsets");
  const AttentionGradOutputs outputs = {.dq = g.dq, .dk = g.dk, .dv = g.dv, .dsink_logits = g.dsink_logits};
  const nb::gil_scoped_release release;
  attention_varlen_backward_into(outputs, dout_array, q_array, k_array, v_array, out_array, lse_array, q_rows, k_rows, parsed.get());
}

}  // namespace

void bind_backward(nb::module_& module) {
  module.def("attention_backward_into", run_backward, nb::arg("gradients"), nb::arg("dout"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
             nb::arg("out"), nb::arg("lse"), nb::arg("options"), nb::arg("layout"));
  module.def("attention_varlen_backward_into", run_varlen_backward, nb::arg("gradients"), nb::arg("dout"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("out"), nb::arg("lse"), nb::arg("q_offsets"), nb::arg("k_offsets"), nb::arg("options"));
}

}  // namespace heed::python
