#include "samba/numerics/block_weight.h"

#include <cstring>

#include "samba/core/error.h"
#include "samba/numerics/low_bit.h"
#include "samba/numerics/packed_weight.h"

namespace samba {

namespace {

using Bytes = const std::uint8_t*;

std::uint16_t word16(Bytes at) { return static_cast<std::uint16_t>(at[0] | at[1] << 8); }
std::uint32_t word32(Bytes at) {
  std::uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return word;
}
float half_at(Bytes at) { return half_value(word16(at)); }

// d (half), 32 codes of 8 bits: d * code.
void expand_q8_0(Bytes block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(static_cast<std::int8_t>(block[2 + i])) * d;
}

// The code of 4 bits at `i`: the low halves of 16 bytes, then their high halves.
int nibble(Bytes codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }
// With a fifth bit from a word of 32.
int five_bits(Bytes codes, std::uint32_t high, int i) {
  return nibble(codes, i) | static_cast<int>((high >> i) & 1U) << 4;
}

void expand_q4_0(Bytes block, float* values) {
  const float d = half_at(block);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(nibble(block + 2, i) - 8) * d;
}

void expand_q4_1(Bytes block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(nibble(block + 4, i)) * d + m;
}

void expand_q5_0(Bytes block, float* values) {
  const float d = half_at(block);
  const std::uint32_t high = word32(block + 2);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(five_bits(block + 6, high, i) - 16) * d;
}

void expand_q5_1(Bytes block, float* values) {
  const float d = half_at(block), m = half_at(block + 2);
  const std::uint32_t high = word32(block + 4);
  for (int i = 0; i < 32; ++i) values[i] = static_cast<float>(five_bits(block + 8, high, i)) * d + m;
}

// Scale and minimum of group g of 8, six bits each in 12 bytes: those of the groups 4 to 7 have their low four bits in
// the last four bytes and their high two above those of the groups 0 to 3.
struct GroupScale {
  int scale, minimum;
};
GroupScale group_scale(Bytes scales, int g) {
  if (g < 4) return {scales[g] & 63, scales[g + 4] & 63};
  return {(scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4, (scales[g + 4] >> 4) | (scales[g] >> 6) << 4};
}

// d, dmin (halves), 12 bytes of scales, [32 bytes of fifth bits,] 128 bytes of codes: two groups share 32 bytes.
void expand_k(Bytes block, bool five, float* values) {
  const float d = half_at(block), dmin = half_at(block + 2);
  const Bytes high = block + 16, codes = block + (five ? 48 : 16);
  for (int g = 0; g < 8; ++g) {
    const GroupScale group = group_scale(block + 4, g);
    const float scale = d * static_cast<float>(group.scale), minimum = dmin * static_cast<float>(group.minimum);
    for (int i = 0; i < 32; ++i) {
      int code = (codes[g / 2 * 32 + i] >> (g % 2 * 4)) & 15;
      if (five) code |= ((high[i] >> g) & 1) << 4;
      values[g * 32 + i] = scale * static_cast<float>(code) - minimum;
    }
  }
}

// 128 bytes of low four bits, 64 of high two bits, 16 scales of 8 bits (one for 16 values), d (half).
void expand_q6_k(Bytes block, float* values) {
  const Bytes scales = block + 192;
  const float d = half_at(block + 208);
  for (int g = 0; g < 8; ++g) {
    const Bytes low = block + g / 4 * 64 + g % 2 * 32, high = block + 128 + g / 4 * 32;
    for (int i = 0; i < 32; ++i) {
      const int bits = ((low[i] >> (g % 4 / 2 * 4)) & 15) | ((high[i] >> (g % 4 * 2)) & 3) << 4;
      const float scale = d * static_cast<float>(static_cast<std::int8_t>(scales[g * 2 + i / 16]));
      values[g * 32 + i] = scale * static_cast<float>(bits - 32);
    }
  }
}

void expand_block(WeightFormat format, Bytes block, float* values) {
  switch (format) {
    case WeightFormat::bfloat16:
      *values = expand_bfloat16(word16(block));
      return;
    case WeightFormat::float16:
      *values = half_at(block);
      return;
    case WeightFormat::q8_0:
      return expand_q8_0(block, values);
    case WeightFormat::q4_0:
      return expand_q4_0(block, values);
    case WeightFormat::q4_1:
      return expand_q4_1(block, values);
    case WeightFormat::q5_0:
      return expand_q5_0(block, values);
    case WeightFormat::q5_1:
      return expand_q5_1(block, values);
    case WeightFormat::q4_k:
      return expand_k(block, false, values);
    case WeightFormat::q5_k:
      return expand_k(block, true, values);
    case WeightFormat::q6_k:
      return expand_q6_k(block, values);
    case WeightFormat::float32:
    case WeightFormat::int8:
      break;
  }
  throw Error(ErrorKind::internal, "blocks of a format without blocks");
}

}  // namespace

bool has_blocks(WeightFormat format) { return format != WeightFormat::float32 && format != WeightFormat::int8; }

BlockLayout block_layout(WeightFormat format) {
  switch (format) {
    case WeightFormat::bfloat16:
    case WeightFormat::float16:
      return {1, 2};
    case WeightFormat::q8_0:
      return {32, 34};
    case WeightFormat::q4_0:
      return {32, 18};
    case WeightFormat::q4_1:
      return {32, 20};
    case WeightFormat::q5_0:
      return {32, 22};
    case WeightFormat::q5_1:
      return {32, 24};
    case WeightFormat::q4_k:
      return {256, 144};
    case WeightFormat::q5_k:
      return {256, 176};
    case WeightFormat::q6_k:
      return {256, 210};
    case WeightFormat::float32:
    case WeightFormat::int8:
      break;
  }
  throw Error(ErrorKind::internal, "the layout of a format without blocks");
}

std::size_t block_row_bytes(WeightFormat format, std::int64_t columns) {
  const BlockLayout layout = block_layout(format);
  return static_cast<std::size_t>(columns / layout.values) * layout.bytes;
}

void expand_block_row(WeightFormat format, const std::byte* row, std::int64_t columns, float* values) {
  const BlockLayout layout = block_layout(format);
  auto block = reinterpret_cast<Bytes>(row);
  for (std::int64_t i = 0; i < columns; i += layout.values, block += layout.bytes) {
    expand_block(format, block, values + i);
  }
}

bool block_row_is_finite(WeightFormat format, const std::byte* row, std::int64_t columns) {
  const BlockLayout layout = block_layout(format);
  const bool two = format == WeightFormat::q4_1 || format == WeightFormat::q5_1 || format == WeightFormat::q4_k ||
                   format == WeightFormat::q5_k;
  const std::size_t first = format == WeightFormat::q6_k ? 208 : 0;
  const unsigned exponent = format == WeightFormat::bfloat16 ? 0x7F80U : 0x7C00U;  // of what is not finite
  const auto finite = [exponent](Bytes at) { return (word16(at) & exponent) != exponent; };
  Bytes block = reinterpret_cast<Bytes>(row) + first;
  for (std::int64_t i = 0; i < columns; i += layout.values, block += layout.bytes) {
    if (!finite(block) || (two && !finite(block + 2))) return false;
  }
  return true;
}

}  // namespace samba
