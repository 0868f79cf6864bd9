// SPDX-License-Identifier: Apache-2.0
// heed.KvCache.
#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>

#include <heed/kv_cache.hpp>

#include <mutex>
#include <string>

namespace heed::python {
namespace {

KvFormat parse_format(std::string_view name) {
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16}) {
    if (name == to_string(format)) return format;
  }
  throw_value("dtype", "expected \"float32\", \"bfloat16\" or \"float16\", got \"" + std::string(name) + "\"");
}

/// Threads that append at once would both find room for one of them. Taken without the GIL or by who then waits for no other thread's Python.
struct SharedCache {
  explicit SharedCache(const KvCacheConfig& config) : cache(config) {}
  KvCache cache;
  std::mutex guard;
};

void make_cache(SharedCache* self, std::int64_t layers, std::int64_t batch, std::int64_t kv_heads, std::int64_t head_dim,
                std::int64_t value_dim, std::int64_t capacity, std::string_view dtype) {
  new (self) SharedCache({.layers = layers,
                          .batch = batch,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .value_dim = value_dim,
                          .capacity_tokens = capacity,
                          .format = parse_format(dtype)});
}

std::string describe(const SharedCache& self) {
  const KvCache& cache = self.cache;
  const KvCacheConfig& c = cache.config();
  return "heed.KvCache(layers=" + std::to_string(c.layers) + ", batch=" + std::to_string(c.batch) +
         ", kv_heads=" + std::to_string(c.kv_heads) + ", head_dim=" + std::to_string(c.head_dim) +
         ", capacity=" + std::to_string(c.capacity_tokens) + ", dtype=\"" + to_string(c.format) + "\"; length " +
         std::to_string(cache.length()) + ")";
}

}  // namespace

void bind_cache(nb::module_& module) {
  nb::class_<KvView>(module, "KvView",
                     "Keys and values of one layer of a `KvCache`, for `attention(q, view)`.\n\n"
                     "Valid until the next append or truncate of its cache; it keeps the cache alive.")
      .def_prop_ro(
          "shape",
          [](const KvView& view) {
            const Shape& s = view.keys().shape();
            return nb::make_tuple(s[0], s[1], s[2], s[3]);
          },
          nb::sig("def shape(self) -> tuple[int, int, int, int]"), "[B, length, Hkv, D].")
      .def_prop_ro(
          "value_dim", [](const KvView& view) { return view.values().size(3); }, "Dv.")
      .def_prop_ro(
          "dtype", [](const KvView& view) { return to_string(view.keys().dtype()); }, "Storage type, by name.")
      .def(
          "keys_as_float32", [](const KvView& view) { return to_numpy(convert(view.keys(), DType::kFloat32)); },
          nb::sig("def keys_as_float32(self) -> numpy.typing.NDArray[numpy.float32]"), "A copy of the keys, float32 [B, length, Hkv, D].")
      .def(
          "values_as_float32", [](const KvView& view) { return to_numpy(convert(view.values(), DType::kFloat32)); },
          nb::sig("def values_as_float32(self) -> numpy.typing.NDArray[numpy.float32]"),
          "A copy of the values, float32 [B, length, Hkv, Dv].");

  nb::class_<SharedCache>(
      module, "KvCache",
      "Keys and values of the tokens seen so far, for all layers of a model.\n\n"
      "A step appends to every layer, attends, then commits once:\n\n"
      ">>> import heed, numpy as np\n"
      ">>> cache = heed.KvCache(layers=1, batch=1, kv_heads=2, head_dim=64, capacity=128)\n"
      ">>> q, k, v = (np.ones((1, 3, 2, 64), np.float32) for _ in range(3))\n"
      ">>> cache.append(0, k, v)\n"
      ">>> heed.attention(q, cache.layer(0), mask=heed.Mask.causal()).shape\n"
      "(1, 3, 2, 64)\n"
      ">>> cache.commit(3)\n"
      ">>> cache.length\n"
      "3\n\n"
      "`value_dim` 0 means `head_dim`; `capacity` is the most tokens per sequence (memory is touched only as they arrive);\n"
      "`dtype` \"float32\", \"bfloat16\" or \"float16\" is how they are stored. Raises ValueError naming the argument.")
      .def("__init__", make_cache, nb::kw_only(), nb::arg("layers") = 1, nb::arg("batch") = 1, nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("value_dim") = 0, nb::arg("capacity"), nb::arg("dtype") = "float32")
      .def_prop_ro(
          "length", [](const SharedCache& self) { return self.cache.length(); }, "Committed tokens per sequence.")
      .def_prop_ro(
          "bytes_per_token", [](const SharedCache& self) { return self.cache.bytes_per_token(); },
          "Bytes of one token in all layers together, per sequence.")
      .def(
          "append",
          [](SharedCache& self, std::int64_t layer, nb::object k, nb::object v) {
            const nb::object k_argument = argument_of(k, "k", "float32"), v_argument = argument_of(v, "v", "float32");
            const Array keys(k_argument, "k"), values(v_argument, "v");
            const nb::gil_scoped_release release;
            const std::lock_guard lock(self.guard);
            self.cache.append(layer, keys, values);
          },
          nb::arg("layer"), nb::arg("k"), nb::arg("v"),
          "Appends k [B, n, Hkv, D] and v [B, n, Hkv, Dv], of any floating dtype, behind the tokens of `layer`.\n\n"
          "Raises ValueError when the capacity would be exceeded; nothing is appended then.")
      .def(
          "commit",
          [](SharedCache& self, std::int64_t n) {
            const std::lock_guard lock(self.guard);
            self.cache.commit(n);
          },
          nb::arg("n"), "Ends a step in which every layer received n tokens; ValueError names one that did not.")
      .def(
          "truncate",
          [](SharedCache& self, std::int64_t length) {
            const std::lock_guard lock(self.guard);
            self.cache.truncate(length);
          },
          nb::arg("length"), "Forgets every token at and past `length`, and appends without a commit.")
      .def(
          "layer",
          [](SharedCache& self, std::int64_t layer) {
            const std::lock_guard lock(self.guard);
            return self.cache.layer(layer);
          },
          nb::arg("layer"), nb::keep_alive<0, 1>(), "What `attention` reads, uncommitted tokens included.")
      .def("__repr__", describe);
}

}  // namespace heed::python
