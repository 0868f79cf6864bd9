// SPDX-License-Identifier: Apache-2.0
// ISA names, detection, and HEED_ISA. The environment is read once, so those tests run in processes of their own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

#include <heed/error.hpp>
#include <heed/kernels.hpp>
#include <heed/version.hpp>

#include "base/cpu.hpp"

namespace heed::test {
namespace {

using base::Isa;

TEST(Cpu, NamesRoundTrip) {
  for (const Isa isa : base::kAllIsas) EXPECT_EQ(base::parse_isa(base::to_string(isa)), isa);
  EXPECT_EQ(base::parse_isa("avx"), std::nullopt);
  EXPECT_EQ(base::parse_isa(""), std::nullopt);
  EXPECT_EQ(base::parse_isa("AVX2"), std::nullopt);
}

TEST(Cpu, GenericAlwaysRunsAndEveryReasonIsText) {
  EXPECT_TRUE(base::runs_here(Isa::kGeneric));
  for (const Isa isa : base::kAllIsas) EXPECT_EQ(base::runs_here(isa), base::missing_for(isa).empty());
}

/// Every ISA includes the ones of its architecture before it.
TEST(Cpu, IsasAreNested) {
  EXPECT_TRUE(!base::runs_here(Isa::kAvx512Bf16) || base::runs_here(Isa::kAvx512));
  EXPECT_TRUE(!base::runs_here(Isa::kAvx512) || base::runs_here(Isa::kAvx2));
}

TEST(Cpu, ForceIsaNests) {
  const Isa before = base::active_isa();
  {
    const base::ForceIsa outer(Isa::kGeneric);
    EXPECT_EQ(base::active_isa(), Isa::kGeneric);
    {
      const base::ForceIsa inner(Isa::kAvx2);
      EXPECT_EQ(base::active_isa(), Isa::kAvx2);
    }
    EXPECT_EQ(base::active_isa(), Isa::kGeneric);
  }
  EXPECT_EQ(base::active_isa(), before);
  EXPECT_EQ(active_isa(), base::to_string(before));
}

TEST(Cpu, VersionIsThatOfTheHeader) { EXPECT_STREQ(version(), HEED_VERSION_STRING); }

/// Prints what two calls of active_isa do under HEED_ISA=value.
void report(const char* value) {
  setenv("HEED_ISA", value, 1);
  for (int call = 0; call < 2; ++call) {
    try {
      std::fprintf(stderr, "[%s]", base::to_string(base::active_isa()));
    } catch (const InvalidArgument& error) {
      std::fprintf(stderr, "[%s]", error.what());
    }
  }
  std::exit(0);
}

class HeedIsa : public ::testing::Test {
 protected:
  // The child starts from main, so that nothing has read the environment yet.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(HeedIsa, Forces) { EXPECT_EXIT(report("generic"), ::testing::ExitedWithCode(0), "\\[generic\\]\\[generic\\]"); }

TEST_F(HeedIsa, EmptyIsNotGiven) { EXPECT_EXIT(report(""), ::testing::ExitedWithCode(0), "\\[[a-z0-9]+\\]\\[[a-z0-9]+\\]"); }

TEST_F(HeedIsa, UnknownNamesThrowOnEveryCall) {
  EXPECT_EXIT(report("sse9"), ::testing::ExitedWithCode(0),
              "\\[heed: HEED_ISA: expected generic, neon, avx2, avx512 or avx512bf16, got \"sse9\"\\]\\[heed: HEED_ISA: expected generic");
}

#if defined(__x86_64__)
TEST_F(HeedIsa, WhatTheMachineLacksThrowsWithTheReason) {
  EXPECT_EXIT(report("neon"), ::testing::ExitedWithCode(0),
              "\\[heed: HEED_ISA: expected an ISA that runs here, got neon \\(not compiled in\\)\\]");
}
#endif

}  // namespace
}  // namespace heed::test
