// SPDX-License-Identifier: Apache-2.0
// The options that every attention call shares.
#pragma once

#include "arrays.hpp"

#include <heed/attention.hpp>

namespace heed::python {

/// AttentionOptions with the arrays behind its views. Made of the tuple that heed._functional builds:
/// (mask, align, scale, softcap, bias, alibi_slopes, sink_logits, query_offset, kv_lengths, dropout_p, seed).
class Options {
 public:
  explicit Options(const nb::tuple& parts);
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  [[nodiscard]] const AttentionOptions& get() const noexcept { return options_; }

 private:
  Array bias_, alibi_slopes_, sink_logits_, query_offset_, kv_lengths_;
  AttentionOptions options_;
};

}  // namespace heed::python
