// SPDX-License-Identifier: Apache-2.0
// Which weights dropout keeps, by Philox 4x32-10 with rows in lanes: one counter serves 4 keys of a row, so kLanes rows take one round trip
// for 4 keys. A weight's draw depends on (batch, query head, token, key) alone: no tile, ISA or thread has a say in it.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011; multipliers and increments from its table 2.

/// Packed rows of one KV head's group.
struct DropoutRows {
  std::int64_t first;  ///< packed row
  int count;           ///< up to kMaxBlockRows
  std::int32_t group;  ///< G
};

/// The round keys, the same for all lanes.
struct PhiloxKeys {
  std::uint32_t low[10], high[10];
};
HEED_INLINE PhiloxKeys philox_keys(std::uint64_t seed) {
  PhiloxKeys keys;
  auto low = static_cast<std::uint32_t>(seed), high = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round, low += 0x9E3779B9U, high += 0xBB67AE85U) {
    keys.low[round] = low;
    keys.high[round] = high;
  }
  return keys;
}

HEED_INLINE IVec bits_in_lanes(std::uint32_t x) { return iset1(static_cast<std::int32_t>(x)); }

/// Counter words of half of the lanes, in the even places; the odd ones hold garbage, which the products ignore.
struct PhiloxHalf {
  IVec word[4];
};
HEED_INLINE void philox_round(PhiloxHalf& c, IVec key_low, IVec key_high) {
  const IVec product0 = multiply_even(bits_in_lanes(0xD2511F53U), c.word[0]);
  const IVec product1 = multiply_even(bits_in_lanes(0xCD9E8D57U), c.word[2]);
  c.word[0] = ixor(ixor(odd_lanes(product1), c.word[1]), key_low);
  c.word[2] = ixor(ixor(odd_lanes(product0), c.word[3]), key_high);
  c.word[1] = product1;
  c.word[3] = product0;
}

/// Draws of keys 4 * quad .. 4 * quad + 3 for the rows in lanes.
HEED_INLINE void draw_four(const PhiloxKeys& keys, IVec quad, IVec token, IVec head, IVec batch, IVec (&draws)[4]) {
  PhiloxHalf even = {{quad, token, head, batch}};
  PhiloxHalf odd = {{quad, odd_lanes(token), odd_lanes(head), batch}};
  for (int round = 0; round < 10; ++round) {
    const IVec low = bits_in_lanes(keys.low[round]), high = bits_in_lanes(keys.high[round]);
    philox_round(even, low, high);
    philox_round(odd, low, high);
  }
  for (int i = 0; i < 4; ++i) draws[i] = join_lanes(even.word[i], odd.word[i]);
}

/// kept[k], k < key_count: bit r is set when packed row rows.first + r keeps the weight of key first_key + k; bits past the rows are
/// unspecified. first_key is a multiple of 4.
[[maybe_unused, gnu::noinline]] static void kept_rows(const DropoutRule& rule, const DropoutRows& rows, std::int64_t first_key,
                                                      int key_count, std::uint64_t* kept) noexcept {
  const PhiloxKeys keys = philox_keys(rule.seed);
  const IVec batch = bits_in_lanes(rule.batch), last_dropped = bits_in_lanes(rule.last_dropped);
  for (int k = 0; k < key_count; ++k) kept[k] = 0;
  std::int64_t token = rows.first / rows.group;
  auto head = static_cast<std::int32_t>(rows.first % rows.group);
  for (int first = 0; first < rows.count; first += kLanes) {
    alignas(64) std::uint32_t tokens[kLanes], heads[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      tokens[i] = static_cast<std::uint32_t>(token);
      heads[i] = rule.first_head + static_cast<std::uint32_t>(head);
      if (++head == rows.group) {
        head = 0;
        ++token;
      }
    }
    const IVec token_lanes = iload(tokens), head_lanes = iload(heads);
    for (int k = 0; k < key_count; k += 4) {
      IVec draws[4];
      draw_four(keys, bits_in_lanes(static_cast<std::uint32_t>((first_key + k) / 4)), token_lanes, head_lanes, batch, draws);
      for (int i = 0; i < 4 && k + i < key_count; ++i) {
        kept[k + i] |= mask_bits(cmp_gt_unsigned(draws[i], last_dropped)) << first;
      }
    }
  }
}
