// SPDX-License-Identifier: Apache-2.0
#include "base/cpu_quota.hpp"

#include <gtest/gtest.h>

namespace heed::base {
namespace {

TEST(CpuQuota, RoundsUpToWholeCores) {
  EXPECT_EQ(parse_cpu_max("200000 100000"), 2);
  EXPECT_EQ(parse_cpu_max("150000 100000"), 2);
  EXPECT_EQ(parse_cpu_max("50000 100000"), 1);
  EXPECT_EQ(parse_cpu_max("1 100000"), 1);
  EXPECT_EQ(parse_cpu_max("6400000 100000\n"), 64);
}

TEST(CpuQuota, NoLimitOrAnotherForm) {
  for (const char* text :
       {"max 100000", "", "200000", "200000 ", "200000 0", "0 100000", "-1 100000", "200000,100000", "99999999999999999999 1", "x y"}) {
    EXPECT_EQ(parse_cpu_max(text), std::nullopt) << '"' << text << '"';
  }
}

}  // namespace
}  // namespace heed::base
