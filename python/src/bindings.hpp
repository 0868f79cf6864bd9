// SPDX-License-Identifier: Apache-2.0
// The parts of heed._core, and what they share.
#pragma once

#include "arrays.hpp"

namespace heed::python {

void bind_attention(nb::module_& module);
void bind_backward(nb::module_& module);
void bind_cache(nb::module_& module);
void bind_mask(nb::module_& module);
void bind_rope(nb::module_& module);

/// A NumPy array that owns the tensor's memory; bfloat16 arrives as uint16, which NumPy can hold.
[[nodiscard]] nb::object to_numpy(Tensor&& tensor);

}  // namespace heed::python
