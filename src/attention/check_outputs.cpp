// SPDX-License-Identifier: Apache-2.0
// Outputs: type, shape, and proof that writing them disturbs neither themselves nor anything that is read.
#include <string>

#include "attention/arguments.hpp"
#include "attention/backward.hpp"
#include "base/message.hpp"
#include "base/overlap.hpp"

namespace heed::front {
namespace {

using base::may_overlap;
using base::overlaps_itself;
using base::throw_invalid;

struct Named {
  const char* name;
  TensorView view;
};

void check_apart(const Arguments& a, const Named& output, const Named& other) {
  if (may_overlap(output.view, other.view)) {
    throw_invalid(a.function, output.name, "memory apart from every input and other output", std::string("an overlap with ") + other.name);
  }
}

void check_output(const Arguments& a, const Named& output, DType dtype, const Shape& shape) {
  const TensorView& view = output.view;
  if (view.dtype() != dtype) throw_invalid(a.function, output.name, to_string(dtype), to_string(view.dtype()));
  if (view.shape() != shape) throw_invalid(a.function, output.name, to_string(shape), to_string(view.shape()));
  base::require_memory(a.function, output.name, view);
  if (overlaps_itself(view)) {
    throw_invalid(a.function, output.name, "strides that give every element its own memory", "strides " + to_string(view.strides()));
  }
  const AttentionOptions& o = a.options;
  const bool in_blocks = a.rows == nullptr;
  const Named inputs[] = {{"q", a.q},
                          {"k", in_blocks ? a.k : a.rows->k_memory},
                          {"v", in_blocks ? a.v : a.rows->v_memory},
                          {"bias", o.bias},
                          {"alibi_slopes", o.alibi_slopes},
                          {"sink_logits", o.sink_logits},
                          {"query_offset", o.query_offset},
                          {"kv_lengths", o.kv_lengths},
                          {"q_offsets", a.q_offsets},
                          {"k_offsets", a.k_offsets}};
  for (const Named& input : inputs) check_apart(a, output, input);
}

}  // namespace

void check_outputs(const Arguments& a, const Sizes& s, const AttentionOutputs& outputs) {
  const Named out = {"out", outputs.out};
  const Named lse = {"lse", outputs.lse};
  const Named row_max = {"row_max", outputs.row_max};
  const Shape statistics = statistics_shape(a, s);
  const DType statistics_type = statistics_dtype(a.q.dtype());
  if (!out.view) throw_invalid(a.function, "out", a.q.rank() == 3 ? "a tensor [Tq, Hq, Dv]" : "a tensor [B, Lq, Hq, Dv]", "none");
  check_output(a, out, a.q.dtype(), out_shape(a, s));
  if (lse.view) check_output(a, lse, statistics_type, statistics);
  if (row_max.view) check_output(a, row_max, statistics_type, statistics);
  check_apart(a, out, lse);
  check_apart(a, out, row_max);
  check_apart(a, lse, row_max);
}

void check_gradients(const Arguments& a, const BackwardInputs& inputs, const AttentionGradOutputs& gradients) {
  struct Gradient {
    Named output;
    const TensorView& argument;
    const char* argument_name;
  };
  const Gradient all[] = {{{"dq", gradients.dq}, a.q, "q"},
                          {{"dk", gradients.dk}, a.k, "k"},
                          {{"dv", gradients.dv}, a.v, "v"},
                          {{"dbias", gradients.dbias}, a.options.bias, "bias"},
                          {{"dsink_logits", gradients.dsink_logits}, a.options.sink_logits, "sink_logits"}};
  const Named read[] = {{"dout", inputs.dout}, {"out", inputs.out}, {"lse", inputs.lse}};
  for (const auto& [output, argument, argument_name] : all) {
    const bool required = &argument == &a.q || &argument == &a.k || &argument == &a.v;
    if (!output.view && required) throw_invalid(a.function, output.name, std::string("a tensor like ") + argument_name, "none");
    if (!output.view) continue;
    if (!argument)
      throw_invalid(a.function, output.name, std::string("none, since there is no ") + argument_name, to_string(output.view.shape()));
    check_output(a, output, argument.dtype(), argument.shape());
    for (const Named& input : read) check_apart(a, output, input);
    for (const Gradient* other = &all[0]; other->output.name != output.name; ++other) check_apart(a, output, other->output);
  }
}

}  // namespace heed::front
