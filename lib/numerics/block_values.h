// One value of a block of quantised codes (block_weight.h), for host and device code. Every product is exact in
// float32.
#pragma once

#include "samba/numerics/block_weight.h"
#include "samba/numerics/low_bit.h"
#include "samba/numerics/packed_weight.h"

namespace samba::block_values {

using Bytes = const std::uint8_t*;

SAMBA_HOST_DEVICE constexpr std::uint16_t word16(Bytes at) { return static_cast<std::uint16_t>(at[0] | at[1] << 8); }
SAMBA_HOST_DEVICE constexpr float half_at(Bytes at) { return half_value(word16(at)); }

// d (half), 32 codes of 8 bits: d * code.
SAMBA_HOST_DEVICE constexpr float q8_0(Bytes block, int i) {
  return static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * half_at(block);
}

// The code of 4 bits at `i`: the low halves of 16 bytes, then their high halves.
SAMBA_HOST_DEVICE constexpr int nibble(Bytes codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
// With a fifth bit from a word of 32 that stands before the codes.
SAMBA_HOST_DEVICE constexpr int five_bits(Bytes high, int i) {
  return nibble(high + 4, i) | ((high[i / 8] >> (i % 8)) & 1) << 4;
}

SAMBA_HOST_DEVICE constexpr float q4_0(Bytes block, int i) {
  return static_cast<float>(nibble(block + 2, i) - 8) * half_at(block);
}
SAMBA_HOST_DEVICE constexpr float q4_1(Bytes block, int i) {
  return static_cast<float>(nibble(block + 4, i)) * half_at(block) + half_at(block + 2);
}
SAMBA_HOST_DEVICE constexpr float q5_0(Bytes block, int i) {
  return static_cast<float>(five_bits(block + 2, i) - 16) * half_at(block);
}
SAMBA_HOST_DEVICE constexpr float q5_1(Bytes block, int i) {
  return static_cast<float>(five_bits(block + 4, i)) * half_at(block) + half_at(block + 2);
}

// Scale and minimum of group g of 8, six bits each in 12 bytes: those of the groups 4 to 7 have their low four bits in
// the last four bytes and their high two above those of the groups 0 to 3.
struct GroupScale {
  int scale, minimum;
};
SAMBA_HOST_DEVICE constexpr GroupScale group_scale(Bytes scales, int g) {
  if (g < 4) return {scales[g] & 63, scales[g + 4] & 63};
  return {(scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4, (scales[g + 4] >> 4) | (scales[g] >> 6) << 4};
}

// Value i of group g. d, dmin (halves), 12 bytes of scales, [32 bytes of fifth bits,] 128 bytes of codes: two groups
// share 32 bytes.
SAMBA_HOST_DEVICE constexpr float q_k(Bytes block, bool five, int g, int i) {
  const GroupScale group = group_scale(block + 4, g);
  const float scale = half_at(block) * static_cast<float>(group.scale);
  const float minimum = half_at(block + 2) * static_cast<float>(group.minimum);
  int code = (block[(five ? 48 : 16) + g / 2 * 32 + i] >> (g % 2 * 4)) & 15;
  if (five) code |= ((block[16 + i] >> g) & 1) << 4;
  return scale * static_cast<float>(code) - minimum;
}

// 128 bytes of low four bits, 64 of high two bits, 16 scales of 8 bits (one for 16 values), d (half).
SAMBA_HOST_DEVICE constexpr float q6_k(Bytes block, int g, int i) {
  const Bytes low = block + g / 4 * 64 + g % 2 * 32, high = block + 128 + g / 4 * 32;
  const int bits = ((low[i] >> (g % 4 / 2 * 4)) & 15) | ((high[i] >> (g % 4 * 2)) & 3) << 4;
  const float scale = half_at(block + 208) * static_cast<float>(static_cast<std::int8_t>(block[192 + g * 2 + i / 16]));
  return scale * static_cast<float>(bits - 32);
}

// Value i of a block.
SAMBA_HOST_DEVICE constexpr float value(WeightFormat format, Bytes block, int i) {
  switch (format) {
    case WeightFormat::bfloat16:
      return expand_bfloat16(word16(block));
    case WeightFormat::float16:
      return half_at(block);
    case WeightFormat::q8_0:
      return q8_0(block, i);
    case WeightFormat::q4_0:
      return q4_0(block, i);
    case WeightFormat::q4_1:
      return q4_1(block, i);
    case WeightFormat::q5_0:
      return q5_0(block, i);
    case WeightFormat::q5_1:
      return q5_1(block, i);
    case WeightFormat::q4_k:
      return q_k(block, false, i / 32, i % 32);
    case WeightFormat::q5_k:
      return q_k(block, true, i / 32, i % 32);
    case WeightFormat::q6_k:
      return q6_k(block, i / 32, i % 32);
    case WeightFormat::float32:
    case WeightFormat::int8:
      break;
  }
  return kQuietNan;  // these have no blocks
}

}  // namespace samba::block_values
