// SPDX-License-Identifier: Apache-2.0
// Everything of heed::heed.
#pragma once

#include <heed/attention.hpp>
#include <heed/dtype.hpp>
#include <heed/error.hpp>
#include <heed/kernels.hpp>
#include <heed/kv_cache.hpp>
#include <heed/mask.hpp>
#include <heed/paged_kv_cache.hpp>
#include <heed/reference.hpp>
#include <heed/rope.hpp>
#include <heed/select_blocks.hpp>
#include <heed/tensor.hpp>
#include <heed/version.hpp>
