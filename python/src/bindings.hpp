// SPDX-License-Identifier: Apache-2.0
// The parts of heed._core, and what they share.
#pragma once

#include <string_view>

#include <heed/kv_cache.hpp>

#include "arrays.hpp"

namespace heed::python {

void bind_attention(nb::module_& module);
void bind_backward(nb::module_& module);
void bind_cache(nb::module_& module);
void bind_mask(nb::module_& module);
void bind_paged_cache(nb::module_& module);
void bind_rope(nb::module_& module);

/// "float32", ...; ValueError for other names.
[[nodiscard]] KvFormat parse_format(std::string_view name);

/// A NumPy array that owns the tensor's memory; bfloat16 arrives as uint16, which NumPy can hold.
[[nodiscard]] nb::object to_numpy(Tensor&& tensor);

}  // namespace heed::python
