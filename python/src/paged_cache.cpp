// SPDX-License-Identifier: Apache-2.0
// heed.PagedKvCache.
#include "bindings.hpp"

#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <heed/paged_kv_cache.hpp>

#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace heed::python {
namespace {

using Sequence = PagedKvCache::Sequence;

/// Threads that reserve at once would both find room for one of them.
struct SharedPool {
  explicit SharedPool(const PagedKvCacheConfig& config) : pool(config) {}
  PagedKvCache pool;
  std::mutex guard;
};

/// Calls f(pool) while no other thread is in it, without the GIL.
template <class F>
auto locked(SharedPool& self, F&& f) {
  const nb::gil_scoped_release release;
  const std::lock_guard lock(self.guard);
  return f(self.pool);
}

void make_pool(SharedPool* self, std::int64_t layers, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t value_dim,
               std::int64_t capacity_pages, std::string_view dtype) {
  new (self) SharedPool({.layers = layers,
                         .kv_heads = kv_heads,
                         .head_dim = head_dim,
                         .value_dim = value_dim,
                         .capacity_pages = capacity_pages,
                         .format = parse_format(dtype)});
}

/// Integers of an array or list [n].
std::vector<std::int64_t> integers_of(nb::object x, const char* name) {
  const nb::object argument = argument_of(x, name, "int64");
  const Array array(argument, name);
  const TensorView view = array.view();
  if (view.rank() != 1 || (view.dtype() != DType::kInt64 && view.dtype() != DType::kInt32)) {
    throw_value(name, "expected integers [n], got " + std::string(to_string(view.dtype())) + " " + to_string(view.shape()));
  }
  std::vector<std::int64_t> integers;
  for (std::int64_t i = 0; i < view.size(0); ++i) integers.push_back(static_cast<std::int64_t>(element(view, {i})));
  return integers;
}

std::vector<PagedKvCache::TokenId> ids_of(nb::object x, const char* name) {
  std::vector<PagedKvCache::TokenId> ids;
  if (x.is_none()) return ids;
  for (const std::int64_t id : integers_of(x, name)) {
    if (id < std::numeric_limits<PagedKvCache::TokenId>::min() || id > std::numeric_limits<PagedKvCache::TokenId>::max()) {
      throw_value(name, "expected token ids of 32 bits, got " + std::to_string(id));
    }
    ids.push_back(static_cast<PagedKvCache::TokenId>(id));
  }
  return ids;
}

nb::tuple create(SharedPool& self, nb::object prompt) {
  const auto ids = ids_of(prompt, "prompt");
  const auto start = locked(self, [&](PagedKvCache& pool) { return pool.create(ids); });
  return nb::make_tuple(start.sequence, start.length);
}

void append(SharedPool& self, std::int64_t layer, Sequence sequence, nb::object k, nb::object v) {
  const nb::object k_argument = argument_of(k, "k", "float32"), v_argument = argument_of(v, "v", "float32");
  const Array keys(k_argument, "k"), values(v_argument, "v");
  locked(self, [&](PagedKvCache& pool) { pool.append(layer, sequence, keys, values); });
}

void append_slots(SharedPool& self, std::int64_t layer, nb::object k, nb::object v, nb::object slots) {
  const nb::object k_argument = argument_of(k, "k", "float32"), v_argument = argument_of(v, "v", "float32");
  const Array keys(k_argument, "k"), values(v_argument, "v");
  const auto list = integers_of(slots, "slots");
  locked(self, [&](PagedKvCache& pool) { pool.append(layer, keys, values, list); });
}

Tensor tensor_of(const std::vector<std::int64_t>& values) {
  Tensor tensor(DType::kInt64, {static_cast<std::int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.data_as<std::int64_t>());
  return tensor;
}

std::string describe(SharedPool& self) {
  const PagedKvCacheConfig& c = self.pool.config();
  const auto usage = locked(self, [](PagedKvCache& pool) { return pool.usage(); });
  return "heed.PagedKvCache(layers=" + std::to_string(c.layers) + ", kv_heads=" + std::to_string(c.kv_heads) +
         ", head_dim=" + std::to_string(c.head_dim) + ", capacity_pages=" + std::to_string(c.capacity_pages) + ", dtype=\"" +
         to_string(c.format) + "\"; pages: " + std::to_string(usage.used_pages) + " used, " + std::to_string(usage.cached_pages) +
         " cached, " + std::to_string(usage.free_pages) + " free)";
}

constexpr const char* kDocumentation =
    "Keys and values of many sequences in one pool of pages of 256 tokens, for all layers of a model.\n\n"
    "Pages are counted by their users: `fork` shares all of them, and a page that is not full is copied when one of its users appends. "
    "Full\n"
    "pages whose token ids are known stay after their last user has gone, for sequences that begin with the same tokens; the one that "
    "nobody\n"
    "has used for the longest time goes first when a page is needed.\n\n"
    ">>> import heed, numpy as np\n"
    ">>> pool = heed.PagedKvCache(kv_heads=2, head_dim=64, capacity_pages=8)\n"
    ">>> prompt = np.arange(300)\n"
    ">>> sequence, cached = pool.create(prompt)           # tokens [0, cached) need not be computed\n"
    ">>> q, k, v = (np.ones((1, 300 - cached, 2, 64), np.float32) for _ in range(3))\n"
    ">>> pool.reserve(sequence, 300 - cached)\n"
    ">>> pool.append(0, sequence, k, v)                   # for every layer\n"
    ">>> heed.attention(q, pool.view(0, [sequence]), mask=heed.Mask.causal()).shape\n"
    "(1, 300, 2, 64)\n"
    ">>> pool.commit(sequence, prompt[cached:])\n"
    ">>> pool.create(prompt)[1]                           # another one with this prompt: a page is there already\n"
    "256\n\n"
    "`capacity_pages` is for all sequences together; memory is touched only as pages are used. `dtype` as in `KvCache`. Raises ValueError\n"
    "naming the argument.";

}  // namespace

void bind_paged_cache(nb::module_& module) {
  using Pool = PagedKvCache;
  nb::class_<SharedPool>(module, "PagedKvCache", kDocumentation)
      .def("__init__", make_pool, nb::kw_only(), nb::arg("layers") = 1, nb::arg("kv_heads"), nb::arg("head_dim"), nb::arg("value_dim") = 0,
           nb::arg("capacity_pages"), nb::arg("dtype") = "float32")
      .def("create", create, nb::arg("prompt") = nb::none(), nb::sig("def create(self, prompt: object | None = None) -> tuple[int, int]"),
           "(sequence, cached): a new sequence, which begins with what the pool has of `prompt`, whole pages of token ids; at least one "
           "token\n"
           "is left over.")
      .def(
          "fork", [](SharedPool& self, Sequence s) { return locked(self, [s](Pool& pool) { return pool.fork(s); }); }, nb::arg("sequence"),
          "A sequence with the same committed tokens.")
      .def(
          "release", [](SharedPool& self, Sequence s) { locked(self, [s](Pool& pool) { pool.release(s); }); }, nb::arg("sequence"),
          "Ends a sequence.")
      .def(
          "truncate",
          [](SharedPool& self, Sequence s, std::int64_t length) { locked(self, [&](Pool& pool) { pool.truncate(s, length); }); },
          nb::arg("sequence"), nb::arg("length"), "Forgets every token at and past `length`, and what was reserved.")
      .def(
          "length", [](SharedPool& self, Sequence s) { return locked(self, [s](Pool& pool) { return pool.length(s); }); },
          nb::arg("sequence"), "Committed tokens.")
      .def(
          "reserve", [](SharedPool& self, Sequence s, std::int64_t n) { locked(self, [&](Pool& pool) { pool.reserve(s, n); }); },
          nb::arg("sequence"), nb::arg("n"),
          "Room for n tokens behind the committed ones; ValueError, and nothing changes, when there are not enough pages.")
      .def("append", append, nb::arg("layer"), nb::arg("sequence"), nb::arg("k"), nb::arg("v"),
           "Writes all reserved tokens of a layer: k [1, n, Hkv, D], v [1, n, Hkv, Dv], any floating dtype.")
      .def("append_slots", append_slots, nb::arg("layer"), nb::arg("k"), nb::arg("v"), nb::arg("slots"),
           "The same for tokens of several sequences, by slot: k [T, Hkv, D], v [T, Hkv, Dv]; a slot of -1 skips its token.")
      .def(
          "slots",
          [](SharedPool& self, Sequence s, std::int64_t first, std::int64_t count) {
            return to_numpy(tensor_of(locked(self, [&](Pool& pool) { return pool.slots(s, first, count); })));
          },
          nb::arg("sequence"), nb::arg("first"), nb::arg("count"),
          nb::sig("def slots(self, sequence: int, first: int, count: int) -> numpy.typing.NDArray[numpy.int64]"),
          "Slots of tokens [first, first + count), reserved ones included: page * 256 + row.")
      .def(
          "commit",
          [](SharedPool& self, Sequence s, nb::object ids) {
            const auto list = ids_of(ids, "ids");
            locked(self, [&](Pool& pool) { pool.commit(s, list); });
          },
          nb::arg("sequence"), nb::arg("ids") = nb::none(), nb::sig("def commit(self, sequence: int, ids: object | None = None) -> None"),
          "The reserved tokens become part of the sequence. With their ids, full pages can be found by `create(prompt)`.")
      .def(
          "view",
          [](SharedPool& self, std::int64_t layer, const std::vector<Sequence>& s) {
            return locked(self, [&](Pool& pool) { return pool.view(layer, s); });
          },
          nb::arg("layer"), nb::arg("sequences"),
          "What `attention` reads: one batch entry for each sequence, reserved tokens included. Valid until one of them changes.")
      .def(
          "block_table", [](SharedPool& self, Sequence s) { return locked(self, [s](Pool& pool) { return pool.block_table(s); }); },
          nb::arg("sequence"), "Pages of a sequence in order.")
      .def_prop_ro(
          "usage",
          [](SharedPool& self) {
            const auto usage = locked(self, [](Pool& pool) { return pool.usage(); });
            nb::dict pages;
            pages["used"] = usage.used_pages;
            pages["cached"] = usage.cached_pages;
            pages["free"] = usage.free_pages;
            return pages;
          },
          nb::sig("def usage(self) -> dict[str, int]"), "Pages: of sequences, kept for sequences to come, and free.")
      .def_prop_ro(
          "page_bytes", [](const SharedPool& self) { return self.pool.page_bytes(); }, "Bytes of a page in all layers.")
      .def("__repr__", describe);
}

}  // namespace heed::python
