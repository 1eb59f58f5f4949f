// One element of a weight stored in few bits (spec 50 A4, A5): rounding to it and expanding it again, which is exact.
// Usable from scalar and device code.
#pragma once

#include "samba/numerics/float32.h"

namespace samba {

// pow2(n): +infinity above 127, +0 below -126.
SAMBA_HOST_DEVICE constexpr float power_of_two(std::int32_t n) {
  if (n > 127) return kInfinity;
  if (n < -126) return 0.0F;
  return from_bits(static_cast<std::uint32_t>(n + 127) << 23);
}

// Round to nearest even; subnormals become zeros first, overflow becomes infinity, a NaN stays one.
SAMBA_HOST_DEVICE constexpr std::uint16_t bfloat16_bits(float x) {
  if (is_nan(x)) return static_cast<std::uint16_t>((to_bits(x) >> 16) | 0x0040U);
  const std::uint32_t bits = to_bits(flush(x));
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

SAMBA_HOST_DEVICE constexpr float expand_bfloat16(std::uint16_t bits) {
  return from_bits(static_cast<std::uint32_t>(bits) << 16);
}

// The exponent of an int8 row. `largest`: the largest bit pattern of |F(x)| over the row, NaN left out.
SAMBA_HOST_DEVICE constexpr std::int32_t int8_exponent(std::uint32_t largest) {
  return largest == 0 ? 0 : static_cast<std::int32_t>(largest >> 23) - 133;
}

// The code of x in a row of this exponent; `inverse` is power_of_two(-exponent).
SAMBA_HOST_DEVICE inline std::int8_t int8_code(float x, float inverse) {
  const float scaled = is_nan(x) ? x : flush(flush(x) * inverse);
  if (is_nan(scaled)) return 0;
  const float clamped = scaled > 127.0F ? 127.0F : scaled < -127.0F ? -127.0F : scaled;
  return static_cast<std::int8_t>(std::nearbyint(clamped));
}

// `scale`: power_of_two of the row's exponent.
SAMBA_HOST_DEVICE constexpr float expand_int8(std::int8_t code, float scale) {
  return flush(static_cast<float>(code) * scale);
}

}  // namespace samba
