// SPDX-License-Identifier: Apache-2.0
// Nibbles and bytes of quantized blocks as float lanes.

/// Low and high four bits of kLanes bytes, as 0 .. 15.
HEED_INLINE Vec low_nibbles(const std::uint8_t* p) { return to_float(iand(iload_bytes(p), iset1(15))); }
HEED_INLINE Vec high_nibbles(const std::uint8_t* p) { return to_float(shift_right<4>(iload_bytes(p))); }

/// The same through a table of 16 values, for types whose levels are not evenly spaced or carry an offset.
HEED_INLINE Vec low_nibbles(Table16 table, const std::uint8_t* p) { return lookup(table, iload_bytes(p)); }
HEED_INLINE Vec high_nibbles(Table16 table, const std::uint8_t* p) { return lookup(table, shift_right<4>(iload_bytes(p))); }
