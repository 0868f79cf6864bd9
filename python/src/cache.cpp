// SPDX-License-Identifier: Apache-2.0
// heed.KvCache.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <heed/kv_cache.hpp>

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace heed::python {

KvFormat parse_format(std::string_view name) {
  for (const KvFormat format : {KvFormat::kFloat32, KvFormat::kBFloat16, KvFormat::kFloat16, KvFormat::kInt8}) {
    if (name == to_string(format)) return format;
  }
  throw_value("dtype", "expected \"float32\", \"bfloat16\", \"float16\" or \"int8\", got \"" + std::string(name) + "\"");
}
namespace {

/// Threads that append at once would both find room for one of them. Taken without the GIL or by who then waits for no other thread's Python.
struct SharedCache {
  explicit SharedCache(const KvCacheConfig& config) : cache(config) {}
  KvCache cache;
  std::mutex guard;
};

using Window = std::optional<std::int64_t>;
using Windows = std::variant<std::monostate, std::int64_t, std::vector<Window>>;

/// One for all layers, or one for each.
std::vector<Window> list_windows(const Windows& windows, std::int64_t layers) {
  if (const auto* one = std::get_if<std::int64_t>(&windows)) {
    constexpr std::int64_t kMostLayers = 1 << 20;  // whatever is wrong with more, the library says
    return std::vector<Window>(static_cast<std::size_t>(std::clamp<std::int64_t>(layers, 0, kMostLayers)), *one);
  }
  if (const auto* each = std::get_if<std::vector<Window>>(&windows)) return *each;
  return {};
}

void make_cache(SharedCache* self, std::int64_t layers, std::int64_t batch, std::int64_t kv_heads, std::int64_t head_dim,
                std::int64_t value_dim, std::int64_t capacity, std::string_view dtype, const Windows& window_tokens) {
  new (self) SharedCache({.layers = layers,
                          .batch = batch,
                          .kv_heads = kv_heads,
                          .head_dim = head_dim,
                          .value_dim = value_dim,
                          .capacity_tokens = capacity,
                          .format = parse_format(dtype),
                          .window_tokens = list_windows(window_tokens, layers)});
}

std::vector<std::int64_t> list_of(const KvView& view, std::int64_t (KvView::*property)(std::int64_t) const noexcept) {
  std::vector<std::int64_t> list;
  for (std::int64_t b = 0; b < view.batch(); ++b) list.push_back((view.*property)(b));
  return list;
}

KvView make_paged(nb::object k_pages, nb::object v_pages, nb::object block_table, nb::object lengths) {
  const nb::object k = argument_of(k_pages, "k_pages", "float32"), v = argument_of(v_pages, "v_pages", "float32");
  const nb::object table = argument_of(block_table, "block_table", "int64"), counts = argument_of(lengths, "lengths", "int64");
  const Array keys(k, "k_pages"), values(v, "v_pages"), pages(table, "block_table"), tokens(counts, "lengths");
  return KvView::paged(keys, values, pages, tokens);
}

std::string describe(const SharedCache& self) {
  const KvCache& cache = self.cache;
  const KvCacheConfig& c = cache.config();
  return "heed.KvCache(layers=" + std::to_string(c.layers) + ", batch=" + std::to_string(c.batch) +
         ", kv_heads=" + std::to_string(c.kv_heads) + ", head_dim=" + std::to_string(c.head_dim) +
         ", capacity=" + std::to_string(c.capacity_tokens) + ", dtype=\"" + to_string(c.format) + "\"; length " +
         std::to_string(cache.length()) + ")";
}

void bind_view(nb::module_& module) {
  nb::class_<KvView>(module, "KvView",
                     "Keys and values of one layer of a `KvCache`, or of pages, for `attention(q, view)`.\n\n"
                     "A cache's view is valid until the next append, commit or truncate of its cache; it keeps the cache alive.")
      .def_static(
          "paged", make_paged, nb::kw_only(), nb::arg("k_pages"), nb::arg("v_pages"), nb::arg("block_table"), nb::arg("lengths"),
          nb::keep_alive<0, 1>(), nb::keep_alive<0, 2>(),  // the view points into k_pages and v_pages
          "Sequences whose tokens lie in pages: token t of sequence b is row t % page_size of page block_table[b, t // page_size].\n\n"
          "k_pages [P, page_size, Hkv, D] and v_pages [P, page_size, Hkv, Dv], float32, bfloat16 or float16, are read in place and kept\n"
          "alive; block_table [B, n] and lengths [B], int32 or int64, are copied. Raises ValueError naming the argument.\n\n"
          ">>> import heed, numpy as np\n"
          ">>> pages = np.ones((5, 16, 2, 64), np.float32)\n"
          ">>> view = heed.KvView.paged(k_pages=pages, v_pages=pages, block_table=np.array([[4, 0], [2, 1]]), lengths=np.array([20, 7]))\n"
          ">>> heed.attention(np.ones((2, 1, 4, 64), np.float32), view).shape\n"
          "(2, 1, 4, 64)")
      .def_prop_ro(
          "shape", [](const KvView& view) { return nb::make_tuple(view.batch(), view.length(), view.kv_heads(), view.head_dim()); },
          nb::sig("def shape(self) -> tuple[int, int, int, int]"), "[B, length, Hkv, D], the length of the longest sequence.")
      .def_prop_ro(
          "value_dim", [](const KvView& view) { return view.value_dim(); }, "Dv.")
      .def_prop_ro(
          "dtype", [](const KvView& view) { return to_string(view.format()); }, "Storage type, by name.")
      .def_prop_ro(
          "lengths", [](const KvView& view) { return list_of(view, &KvView::length); }, "Tokens of each sequence.")
      .def_prop_ro(
          "first_keys", [](const KvView& view) { return list_of(view, &KvView::first_key); },
          "The first token of each sequence that is still held; a window drops those before it.")
      .def(
          "keys_as_float32", [](const KvView& view) { return to_numpy(convert(view.copy_keys(), DType::kFloat32)); },
          nb::sig("def keys_as_float32(self) -> numpy.typing.NDArray[numpy.float32]"),
          "A copy of the keys, float32 [B, length, Hkv, D]; rows that a sequence does not have, or no longer, are 0.")
      .def(
          "values_as_float32", [](const KvView& view) { return to_numpy(convert(view.copy_values(), DType::kFloat32)); },
          nb::sig("def values_as_float32(self) -> numpy.typing.NDArray[numpy.float32]"),
          "A copy of the values, float32 [B, length, Hkv, Dv], as `keys_as_float32`.");
}

void bind_kv_cache(nb::module_& module) {
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
      "`dtype` \"float32\", \"bfloat16\", \"float16\" or \"int8\" (with a scale for each token and head) is how they are stored. "
      "`window_tokens`, one number or one for each layer (None:\n"
      "all), keeps what `Mask.sliding_window` of as many tokens can show, in pages of 256, and drops the rest: memory is bounded by the\n"
      "window and the longest step. Raises ValueError naming the argument.")
      .def("__init__", make_cache, nb::kw_only(), nb::arg("layers") = 1, nb::arg("batch") = 1, nb::arg("kv_heads"), nb::arg("head_dim"),
           nb::arg("value_dim") = 0, nb::arg("capacity"), nb::arg("dtype") = "float32", nb::arg("window_tokens") = nb::none())
      .def_prop_ro(
          "length", [](const SharedCache& self) { return self.cache.length(); }, "Committed tokens per sequence.")
      .def_prop_ro(
          "bytes_per_token", [](const SharedCache& self) { return self.cache.bytes_per_token(); },
          "Bytes of one token in all layers together, per sequence, while no window has dropped it.")
      .def_prop_ro(
          "bytes_in_use", [](const SharedCache& self) { return self.cache.bytes_in_use(); },
          "Bytes of the tokens that are held; windows count in whole pages.")
      .def_prop_ro(
          "earliest_length", [](const SharedCache& self) { return self.cache.earliest_length(); },
          "The shortest length that `truncate` accepts beside 0: windows have dropped what a shorter sequence needs.")
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

}  // namespace

void bind_cache(nb::module_& module) {
  bind_view(module);
  bind_kv_cache(module);
}

}  // namespace heed::python
