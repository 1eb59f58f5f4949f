// Rows of quantised blocks: the tensor types of GGUF files that are not float32 (docs/formats/gguf.md).
//
// A block is a run of values of one row with its scales in front of it, beside it or behind it. The bytes are those of
// the file, little-endian, unaligned. Expanding is exact up to one rounding a value, and the same everywhere: every
// product below is exact in float32, so a fused step and two separate ones agree.
#pragma once

#include <cstddef>
#include <cstdint>

#include "samba/numerics/float32.h"

namespace samba {

enum class WeightFormat;

struct BlockLayout {
  std::int64_t values;  // of one row
  std::size_t bytes;
};

// float16 and bfloat16 are blocks of one value. Error(internal) for float32 and int8.
BlockLayout block_layout(WeightFormat format);
bool has_blocks(WeightFormat format);  // whether block_layout has an answer

// The bytes of a row of `columns` values; `columns` is a multiple of the layout's values.
std::size_t block_row_bytes(WeightFormat format, std::int64_t columns);

// values[columns] = the row, not flushed (only bfloat16 can hold a subnormal of float32).
void expand_block_row(WeightFormat format, const std::byte* row, std::int64_t columns, float* values);

// Whether every value of a row is finite. A finite scale makes finite values of whatever codes stand beside it, one
// that is not finite makes none, so that only the scales are looked at.
bool block_row_is_finite(WeightFormat format, const std::byte* row, std::int64_t columns);

// A half as a float: exact. Subnormal halves are normal floats; a NaN stays one with its payload.
SAMBA_HOST_DEVICE constexpr float half_value(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  if (magnitude >= 0x7C00U) return from_bits(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13));
  if (magnitude >= 0x0400U) return from_bits(sign | ((magnitude << 13) + 0x38000000U));
  const float value = static_cast<float>(magnitude) * 0x1p-24F;
  return sign != 0 ? -value : value;
}

}  // namespace samba
