// float16 (binary16) values as float32, which holds every one of them exactly. Usable from scalar and device code.
#pragma once

#include "samba/numerics/float32.h"

namespace samba {

// Subnormals of float16 are normal numbers of float32; a NaN keeps its payload.
SAMBA_HOST_DEVICE constexpr float expand_float16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1FU;
  const std::uint32_t fraction = bits & 0x3FFU;
  if (exponent == 0x1FU) return from_bits(sign | 0x7F800000U | (fraction << 13));
  if (exponent != 0) return from_bits(sign | ((exponent + 112U) << 23) | (fraction << 13));
  // fraction * 2^-24: both factors and the product are exact.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return from_bits(sign | to_bits(magnitude));
}

}  // namespace samba
