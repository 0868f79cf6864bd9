// SPDX-License-Identifier: Apache-2.0
// heed._core: the library for Python's own layer (python/heed), which makes the arrays, names the options and documents them.
#include "bindings.hpp"

#include <heed/error.hpp>
#include <heed/kernels.hpp>

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace heed::python {

nb::object to_numpy(Tensor&& tensor) {
  auto owner = std::make_unique<Tensor>(std::move(tensor));
  const Tensor& held = *owner;
  size_t shape[kMaxRank] = {};
  std::int64_t strides[kMaxRank] = {};
  for (int axis = 0; axis < held.shape().rank(); ++axis) {
    shape[axis] = static_cast<size_t>(held.shape()[axis]);
    strides[axis] = held.strides()[axis];
  }
  nb::dlpack::dtype dtype = nb::dtype<float>();
  switch (held.dtype()) {
    case DType::kFloat32: break;
    case DType::kBFloat16: dtype = nb::dtype<std::uint16_t>(); break;
    case DType::kFloat16: dtype.bits = 16; break;
    case DType::kFloat64: dtype = nb::dtype<double>(); break;
    case DType::kBool: dtype = nb::dtype<bool>(); break;
    case DType::kInt32: dtype = nb::dtype<std::int32_t>(); break;
    case DType::kInt64: dtype = nb::dtype<std::int64_t>(); break;
  }
  void* data = owner->data();
  const int rank = held.shape().rank();
  const nb::capsule keeper(owner.release(), [](void* p) noexcept { delete static_cast<Tensor*>(p); });
  return nb::cast(nb::ndarray<nb::numpy>(data, static_cast<size_t>(rank), shape, keeper, strides, dtype));
}

namespace {

/// The function and the argument that an error begins with, as Python names them: "attention_into: dropout.p: ..." becomes
/// "attention: dropout_p: ...", and "Mask::from_tensor: mask: ..." "Mask.from_array: mask: ...".
std::string in_words_of_python(const std::string& text) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {{"_into:", ":"},
                                                                      {"Mask::from_tensor:", "Mask.from_array:"},
                                                                      {"::", "."},
                                                                      {" dropout.p:", " dropout_p:"},
                                                                      {" capacity_tokens:", " capacity:"}};
  const std::size_t end = text.find(' ', text.find(' ') + 1);
  std::string head = text.substr(0, end);
  for (const auto& [from, to] : kNames) {
    const std::size_t at = head.find(from);
    if (at != std::string::npos) head.replace(at, from.size(), to);
  }
  return end == std::string::npos ? head : head + text.substr(end);
}

void translate(const std::exception_ptr& error, void* /*unused*/) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& e) {
    PyErr_SetString(PyExc_ValueError, in_words_of_python(e.what()).c_str());
  }
}

nb::list kernels_as_dicts() {
  nb::list list;
  for (const KernelInfo& kernel : list_kernels()) {
    nb::dict entry;
    entry["family"] = kernel.family;
    entry["isa"] = kernel.isa;
    entry["dtypes"] = kernel.dtypes;
    entry["available"] = kernel.available;
    entry["selected"] = kernel.selected;
    entry["reason"] = kernel.reason;
    list.append(entry);
  }
  return list;
}

}  // namespace
}  // namespace heed::python

NB_MODULE(_core, module) {
  namespace nb = nanobind;
  using namespace heed::python;
  module.doc() = "heed's C++ library. Private: use the functions of the heed package.";
  nb::set_leak_warnings(false);  // masks that live as long as the program (module constants, copyreg) are no leaks
  nb::register_exception_translator(translate);
  bind_mask(module);
  bind_cache(module);
  bind_paged_cache(module);
  bind_rope(module);
  bind_attention(module);
  bind_backward(module);
  module.def(
      "kernels", kernels_as_dicts, nb::sig("def kernels() -> list[dict[str, object]]"),
      "Every kernel of this build: `family`, `isa`, `dtypes`, whether it is `available` on this CPU and `selected` (the fastest one\n"
      "of its family, which calls take where their shape allows), and the `reason` why not. `explain` answers for one call.");
  module.def(
      "active_isa", &heed::active_isa,
      "The instruction set that calls use: the fastest one of this CPU, or what the environment variable HEED_ISA named at the start.");
  module.def("set_num_threads", &heed::set_num_threads, nb::arg("n"),
             "How many threads calls from this Python thread use from now on; at least 1, else ValueError.");
  module.def("get_num_threads", &heed::get_num_threads,
             "How many threads a call from this Python thread uses: what `set_num_threads` set, else what OMP_NUM_THREADS, affinity and\n"
             "container limits leave.");
  module.def("version", &heed::version);
  module.def("probe_fma", &heed::probe_fma, nb::arg("rounds"), nb::call_guard<nb::gil_scoped_release>());
  module.def("probe_bf16_dot", &heed::probe_bf16_dot, nb::arg("rounds"), nb::call_guard<nb::gil_scoped_release>());
  module.def(
      "probe_read",
      [](nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu> memory) {
        const nb::gil_scoped_release release;
        return heed::probe_read({memory.data(), memory.size()});
      },
      nb::arg("memory"), nb::sig("def probe_read(memory: object) -> float"));
}
