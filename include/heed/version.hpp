// SPDX-License-Identifier: Apache-2.0
// The version of the headers; CMake reads it from here. Compare with heed::version() to see a header/library mismatch.
#pragma once

#define HEED_VERSION_MAJOR 0
#define HEED_VERSION_MINOR 1
#define HEED_VERSION_PATCH 0
#define HEED_VERSION_STRING "0.1.0"
