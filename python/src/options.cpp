// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>

namespace heed::python {
namespace {

[[noreturn]] void throw_kind(const char* name, const std::string& expected, nb::handle got) {
  throw_type(name, "expected " + expected + ", got " + name_of_type(got));
}

/// What was probably meant where something else than a mask was given.
const char* advice_on_mask(nb::handle object) {
  if (PyUnicode_Check(object.ptr()) != 0) return "; heed.Mask.parse reads text";
  if (nb::hasattr(object, "dtype")) return "; heed.Mask.from_array takes booleans, `bias` what is added to the scores";
  return PyCallable_Check(object.ptr()) != 0 ? "; it lacks its parentheses, as in heed.Mask.causal()" : "";
}

std::optional<double> optional_number(nb::handle object, const char* name) {
  if (object.is_none()) return std::nullopt;
  double number = 0;
  if (!nb::try_cast(object, number)) throw_kind(name, "a number or None", object);
  return number;
}

Align parse_align(nb::handle object) {
  std::string_view text;
  if (!nb::try_cast(object, text)) throw_kind("align", "\"bottom_right\" or \"top_left\"", object);
  if (text == "bottom_right") return Align::kBottomRight;
  if (text == "top_left") return Align::kTopLeft;
  throw_value("align", "expected \"bottom_right\" or \"top_left\", got \"" + std::string(text) + "\"");
}

}  // namespace

Options::Options(const nb::tuple& parts)
    : bias_(parts[4], "bias"), alibi_slopes_(parts[5], "alibi_slopes"), sink_logits_(parts[6], "sink_logits"),
      query_offset_(parts[7], "query_offset"), kv_lengths_(parts[8], "kv_lengths") {
  if (!parts[0].is_none()) {
    const Mask* mask = nullptr;
    if (!nb::try_cast(parts[0], mask) || mask == nullptr) {
      throw_type("mask", "expected a heed.Mask or None, got " + name_of_type(parts[0]) + advice_on_mask(parts[0]));
    }
    options_.mask = *mask;
  }
  options_.align = parse_align(parts[1]);
  options_.scale = optional_number(parts[2], "scale");
  options_.softcap = optional_number(parts[3], "softcap");
  options_.bias = bias_;
  options_.alibi_slopes = alibi_slopes_;
  options_.sink_logits = sink_logits_;
  options_.query_offset = query_offset_;
  options_.kv_lengths = kv_lengths_;
  const double dropout_p = optional_number(parts[9], "dropout_p").value_or(0.0);
  if (dropout_p == 0.0) return;
  std::uint64_t seed = 0;
  if (!nb::try_cast(parts[10], seed)) throw_kind("seed", "an integer from 0 to 2**64 - 1", parts[10]);
  options_.dropout = Dropout{dropout_p, seed};
}

}  // namespace heed::python
