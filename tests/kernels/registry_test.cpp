// SPDX-License-Identifier: Apache-2.0
// The list of kernels, its lookup, and the peak probes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <set>

#include <heed/kernels.hpp>

#include "base/cpu.hpp"
#include "kernels/registry.hpp"

namespace heed {
namespace {

TEST(Registry, EveryFamilyIsOnEveryIsaAndOneIsSelected) {
  std::map<std::string, std::set<std::string>> isas;
  std::map<std::string, int> selected;
  for (const KernelInfo& info : list_kernels()) {
    EXPECT_TRUE(isas[info.family].insert(info.isa).second) << info.family << " " << info.isa;
    EXPECT_EQ(info.reason.empty(), info.selected) << info.family << " " << info.isa;
    EXPECT_EQ(info.available, base::runs_here(*base::parse_isa(info.isa)));
    if (info.selected) {
      EXPECT_EQ(info.isa, active_isa());
      EXPECT_TRUE(info.available);
      ++selected[info.family];
    }
  }
  for (const char* family : {"attention.wide", "attention.narrow", "linear", "peak"}) {
    EXPECT_EQ(isas[family].size(), base::kAllIsas.size()) << family;
    EXPECT_EQ(selected[family], 1) << family;
  }
}

TEST(Registry, LookupIsNullOnlyWhereNothingIsCompiledIn) {
  for (const base::Isa isa : base::kAllIsas) {
    const bool compiled = base::missing_for(isa) != "not compiled in";
    EXPECT_EQ(kernels::wide_kernels_of(isa) != nullptr, compiled) << base::to_string(isa);
    EXPECT_EQ(kernels::wide_kernel(isa, DType::kFloat32, DType::kBFloat16) != nullptr, compiled);
    EXPECT_EQ(kernels::wide_kernel(isa, DType::kBFloat16, DType::kFloat32), nullptr);  // kv wider than q
    EXPECT_EQ(kernels::wide_kernel(isa, DType::kFloat64, DType::kFloat64), nullptr);
  }
}

TEST(Registry, ForcedIsaIsSelected) {
  const base::ForceIsa force(base::Isa::kGeneric);
  EXPECT_EQ(active_isa(), "generic");
  for (const KernelInfo& info : list_kernels()) EXPECT_EQ(info.selected, info.isa == "generic") << info.isa;
}

/// Flop and bytes grow with the work, and the probes touch what they say.
TEST(Registry, PeakProbesCountTheirWork) {
  constexpr std::int64_t kCount = 4096;
  auto* const data = static_cast<float*>(std::aligned_alloc(64, kCount * sizeof(float)));
  for (std::int64_t i = 0; i < kCount; ++i) data[i] = 0.0F;
  data[kCount - 1] = 3.0F;
  for (const base::Isa isa : base::kAllIsas) {
    if (!base::runs_here(isa)) continue;
    const kernels::PeakKernels& peak = *kernels::peak_kernels_of(isa);
    float sink = -1.0F;
    EXPECT_EQ(peak.fma(200, &sink), 2.0 * peak.fma(100, &sink));
    EXPECT_GT(sink, 0.0F);
    EXPECT_EQ(peak.read(data, kCount, &sink), 4.0 * kCount);
    EXPECT_EQ(sink, 3.0F);  // the last float was read
    EXPECT_EQ(peak.bf16_dot != nullptr, isa == base::Isa::kAvx512Bf16);
    if (peak.bf16_dot != nullptr) {
      EXPECT_EQ(peak.bf16_dot(100, &sink), 2.0 * peak.fma(100, &sink));
    }
  }
  std::free(data);
}

}  // namespace
}  // namespace heed
