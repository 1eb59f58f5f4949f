// The numbers of numeric_profile fixed15_v1 (spec 20 section 10): a row of float32 values as one exponent and integer
// codes of 15 bits, value ~ code * 2^exponent. Usable from scalar and device code.
#pragma once

#include "samba/numerics/float32.h"
#include "samba/numerics/low_bit.h"

namespace samba {

inline constexpr std::int32_t kLargestFixed15Code = 16383;
inline constexpr std::int64_t kLongestFixed15Sum = 65536;  // terms of one product

// The part of x that decides about the exponent of its row: the bits of |F(x)|, 0 for NaN. A row takes the largest.
SAMBA_HOST_DEVICE constexpr std::uint32_t fixed15_magnitude(float x) {
  return is_nan(x) ? 0U : to_bits(flush(x)) & ~kSignBit;
}

SAMBA_HOST_DEVICE constexpr std::int32_t fixed15_exponent(std::uint32_t largest_magnitude) {
  return largest_magnitude == 0 ? 0 : static_cast<std::int32_t>(largest_magnitude >> 23) - 127 - 13;
}

// `inverse`: power_of_two(-exponent of the row).
SAMBA_HOST_DEVICE inline std::int16_t fixed15_code(float x, float inverse) {
  const float scaled = mul(x, inverse);
  if (is_nan(scaled)) return 0;
  constexpr auto kLargest = static_cast<float>(kLargestFixed15Code);
  const float clamped = scaled > kLargest ? kLargest : scaled < -kLargest ? -kLargest : scaled;
  return static_cast<std::int16_t>(std::nearbyint(clamped));
}

// A cell of a product from the exact sum of products of codes and the exponents of its two rows.
SAMBA_HOST_DEVICE constexpr float fixed15_cell(std::int64_t sum, std::int32_t exponent_a, std::int32_t exponent_b) {
  return mul(static_cast<float>(sum), power_of_two(exponent_a + exponent_b));
}

}  // namespace samba
