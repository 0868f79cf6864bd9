// SPDX-License-Identifier: Apache-2.0
#include <heed/kernels.hpp>
#include <heed/version.hpp>

#include "base/parallel.hpp"

namespace heed {

const char* version() noexcept { return HEED_VERSION_STRING; }

void set_num_threads(int n) { base::set_num_threads(n); }

int get_num_threads() { return base::num_threads(); }

}  // namespace heed
