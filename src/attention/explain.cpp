// SPDX-License-Identifier: Apache-2.0
// Says in words what choose() decides.
#include <heed/attention.hpp>

#include <optional>
#include <string>

#include <heed/kernels.hpp>

#include "attention/backward.hpp"
#include "base/message.hpp"

namespace heed {
namespace {

std::string geometry(const front::Sizes& s) {
  std::string text = "B " + std::to_string(s.batch) + ", Lq " + std::to_string(s.q_tokens) + ", Lk " + std::to_string(s.kv_tokens) +
                     ", Hq " + std::to_string(s.q_heads) + ", Hkv " + std::to_string(s.kv_heads);
  if (s.group == 1) return text + " (multi-head)";
  if (s.kv_heads == 1) return text + " (multi-query)";
  return text + " (grouped, " + std::to_string(s.group) + " query heads per KV head)";
}

std::string why_reference(DType dtype) {
  if (dtype == DType::kFloat64) return "float64 has no fast kernel";
  return "no kernel of this ISA takes this type";
}

/// Why a kernel of the same family on a later ISA is not what runs.
std::string faster_ones(const front::Choice& choice) {
  const std::string family = choice.path == front::Path::kWide ? "attention.wide" : "attention.narrow";
  std::string text;
  for (const KernelInfo& kernel : list_kernels()) {
    const std::optional<base::Isa> isa = base::parse_isa(kernel.isa);
    if (kernel.family == family && isa && *isa > choice.isa) text += "\n  not " + kernel.isa + ": " + kernel.reason;
  }
  return text;
}

std::string gradient_text(base::Isa isa, DType dtype) {
  const kernels::BackwardKernel* kernel = front::choose_backward(isa, dtype, dtype);
  if (kernel == nullptr) return "\n  gradients: float64 reference";
  return "\n  gradients: attention.backward on " + std::string(base::to_string(isa)) + ", " + std::to_string(kernel->block_rows) +
         " rows by " + std::to_string(kernels::kBlockKeys) + " keys";
}

std::string path_text(const front::Choice& choice, const front::Sizes& s, DType dtype) {
  const std::string rows = std::to_string(s.packed_rows()) + " packed rows per KV head";
  switch (choice.path) {
    case front::Path::kReference: return "float64 reference: " + why_reference(dtype);
    case front::Path::kNarrow:
      return "attention.narrow on " + std::string(base::to_string(choice.isa)) + ": " + rows +
             ", so few that keys are split into pieces of " + std::to_string(kernels::kPieceKeys);
    case front::Path::kWide:
      return "attention.wide on " + std::string(base::to_string(choice.isa)) + ": " + rows + " in blocks of " +
             std::to_string(front::rows_per_block(*choice.wide, s.packed_rows()));
  }
  return {};
}

}  // namespace

std::string explain(const Shape& q, const Shape& k, DType dtype, const AttentionOptions& options) {
  // Views without memory: the checks read shapes and types only, and the options' own small tensors.
  const char never_read = 0;
  const TensorView query(static_cast<const void*>(&never_read), dtype, q);
  const TensorView key(static_cast<const void*>(&never_read), dtype, k);
  const front::Sizes sizes = front::check_inputs({"explain", query, key, key, options});
  const front::Choice choice = front::choose(sizes, dtype, dtype);
  std::string text = path_text(choice, sizes, dtype) + "\n  " + geometry(sizes) + ", D " + std::to_string(sizes.head_dim) + ", " +
                     to_string(dtype) + "\n  mask: " + options.mask.to_string() + gradient_text(choice.isa, dtype);
  if (choice.path != front::Path::kReference) text += faster_ones(choice);
  return text;
}

}  // namespace heed
