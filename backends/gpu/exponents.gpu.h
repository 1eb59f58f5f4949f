// Where no flush can fire (spec 10 section 11). When the smallest exponents of the nonzero elements of two operands add
// up to kSafeExponents or more, every product of theirs is a multiple of 2^-126, and so is every sum that began as one:
// plain fused steps have the bits of flushed ones. (All operands flushed.)
#pragma once

#include "samba/backends/gpu/platform.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kNoExponent = 255;               // of zeros alone
inline constexpr int kSafeExponents = -80 + 2 * 127;  // biased exponents

SAMBA_DEVICE int smaller_exponent(int smallest, float value) {
  const int exponent = static_cast<int>((to_bits(value) & kExponentMask) >> 23);
  return exponent != 0 && exponent < smallest ? exponent : smallest;
}

}  // namespace

}  // namespace samba::SAMBA_GPU
