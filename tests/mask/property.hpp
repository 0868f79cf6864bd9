// SPDX-License-Identifier: Apache-2.0
// RapidCheck with a fixed seed: every run sees the same cases. RC_PARAMS from the environment wins, to look further.
#pragma once

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace heed::test {

template <class Property>
void check_property(const std::string& description, Property property) {
  // Read by RapidCheck once, at the first property of the program.
  setenv("RC_PARAMS", "seed=20240607 max_size=60 max_success=1000", 0);
  EXPECT_TRUE(rc::check(description, property));
}

}  // namespace heed::test
