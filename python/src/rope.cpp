// SPDX-License-Identifier: Apache-2.0
// Rotary position embedding: the configurations, tables, rotation.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <heed/rope.hpp>

namespace heed::python {
namespace {

void bind_scalings(nb::module_& module) {
  nb::class_<RopeLinear>(module, "RopeLinear", "theta_i / factor: position interpolation (arXiv 2306.15595).")
      .def(
          "__init__", [](RopeLinear* self, double factor) { new (self) RopeLinear{factor}; }, nb::arg("factor"))
      .def_rw("factor", &RopeLinear::factor);
  nb::class_<RopeNtk>(module, "RopeNtk", "base * alpha^(d/(d-2)): \"NTK-aware\".")
      .def(
          "__init__", [](RopeNtk* self, double alpha) { new (self) RopeNtk{alpha}; }, nb::arg("alpha"))
      .def_rw("alpha", &RopeNtk::alpha);
  nb::class_<RopeDynamic>(module, "RopeDynamic", "NTK-aware by the length of the sequence (Hugging Face's \"dynamic\").")
      .def(
          "__init__",
          [](RopeDynamic* self, double factor, std::int64_t n) {
            new (self) RopeDynamic{factor, n};
          },
          nb::arg("factor"), nb::arg("max_positions"))
      .def_rw("factor", &RopeDynamic::factor)
      .def_rw("max_positions", &RopeDynamic::max_positions);
  nb::class_<RopeYarn>(module, "RopeYarn", "YaRN (arXiv 2309.00071); `truncate=False` is gpt-oss's variant.")
      .def(
          "__init__",
          [](RopeYarn* self, double factor, std::int64_t original_length, double beta_fast, double beta_slow,
             std::optional<double> attention_factor, double mscale, double mscale_all_dim, bool truncate) {
            new (self)
                RopeYarn{factor,           original_length, beta_fast,      beta_slow,
                         attention_factor, mscale,          mscale_all_dim, truncate ? RopeYarn::Truncate::kYes : RopeYarn::Truncate::kNo};
          },
          nb::arg("factor"), nb::arg("original_length"), nb::kw_only(), nb::arg("beta_fast") = 32.0, nb::arg("beta_slow") = 1.0,
          nb::arg("attention_factor").none() = nb::none(), nb::arg("mscale") = 0.0, nb::arg("mscale_all_dim") = 0.0,
          nb::arg("truncate") = true)
      .def_rw("factor", &RopeYarn::factor)
      .def_rw("original_length", &RopeYarn::original_length);
  nb::class_<RopeLong>(module, "RopeLong", "LongRoPE (arXiv 2402.13753): a divisor per pair, another list past `original_length`.")
      .def(
          "__init__",
          [](RopeLong* self, std::vector<double> short_factors, std::vector<double> long_factors, double factor,
             std::int64_t original_length, std::optional<double> attention_factor) {
            new (self) RopeLong{std::move(short_factors), std::move(long_factors), factor, original_length, attention_factor};
          },
          nb::arg("short_factors"), nb::arg("long_factors"), nb::arg("factor"), nb::arg("original_length"), nb::kw_only(),
          nb::arg("attention_factor").none() = nb::none())
      .def_rw("factor", &RopeLong::factor)
      .def_rw("original_length", &RopeLong::original_length);
  nb::class_<RopeLlama3>(module, "RopeLlama3", "Llama 3.1's wavelength bands.")
      .def(
          "__init__",
          [](RopeLlama3* self, double factor, double low, double high, std::int64_t original_length) {
            new (self) RopeLlama3{factor, low, high, original_length};
          },
          nb::arg("factor") = 8.0, nb::arg("low_freq_factor") = 1.0, nb::arg("high_freq_factor") = 4.0, nb::arg("original_length") = 8192)
      .def_rw("factor", &RopeLlama3::factor)
      .def_rw("original_length", &RopeLlama3::original_length);
  nb::class_<RopeProportional>(module, "RopeProportional", "The first part of the pairs rotates, the others do not (Gemma 4).")
      .def(
          "__init__",
          [](RopeProportional* self, double proportion, double factor) {
            new (self) RopeProportional{proportion, factor};
          },
          nb::arg("proportion"), nb::arg("factor") = 1.0)
      .def_rw("proportion", &RopeProportional::proportion);
  nb::class_<RopeDivisors>(module, "RopeDivisors", "One divisor per pair (GGUF's rope_freqs.weight).")
      .def(
          "__init__", [](RopeDivisors* self, std::vector<double> divisors) { new (self) RopeDivisors{std::move(divisors)}; },
          nb::arg("divisors"))
      .def_rw("divisors", &RopeDivisors::divisors);
}

nb::tuple table_of(const RopeConfig& config, std::int64_t length) {
  RopeTable table = rope_table(config, length);
  return nb::make_tuple(to_numpy(std::move(table.cos)), to_numpy(std::move(table.sin)));
}

void rotate_into(nb::object out, nb::object x, nb::object cos, nb::object sin, nb::object positions, bool interleaved,
                 std::string_view layout_text) {
  const Layout layout = parse_layout(layout_text);
  const OutputArray out_array(out, "out");
  const Array x_array(x, "x"), cos_array(cos, "cos"), sin_array(sin, "sin"), position_array(positions, "positions");
  const RopePairing pairing = interleaved ? RopePairing::kInterleaved : RopePairing::kHalf;
  const nb::gil_scoped_release release;
  apply_rope_into(tokens_first(out_array.view(), layout), tokens_first(x_array.view(), layout), cos_array, sin_array, pairing,
                  position_array);
}

}  // namespace

void bind_rope(nb::module_& module) {
  bind_scalings(module);
  nb::class_<RopeConfig>(module, "RopeConfig",
                         "Rotary position embedding (arXiv 2104.09864).\n\n"
                         "`rotary_dim` is even; elements of a head past it are not rotated. `scaling` is one of RopeLinear, RopeNtk,\n"
                         "RopeDynamic, RopeYarn, RopeLong, RopeLlama3, RopeProportional, RopeDivisors, or None.")
      .def(
          "__init__",
          [](RopeConfig* self, std::int64_t rotary_dim, double base, RopeScaling scaling) {
            new (self) RopeConfig{rotary_dim, base, std::move(scaling)};
          },
          nb::arg("rotary_dim"), nb::kw_only(), nb::arg("base") = 10000.0, nb::arg("scaling").none() = nb::none())
      .def_rw("rotary_dim", &RopeConfig::rotary_dim)
      .def_rw("base", &RopeConfig::base)
      .def_rw("scaling", &RopeConfig::scaling, nb::arg("scaling").none());
  module.def("rope_table", table_of, nb::arg("config"), nb::arg("length"));
  module.def("apply_rope_into", rotate_into, nb::arg("out"), nb::arg("x"), nb::arg("cos"), nb::arg("sin"), nb::arg("positions").none(),
             nb::arg("interleaved"), nb::arg("layout"));
}

}  // namespace heed::python
