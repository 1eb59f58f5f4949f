// The float rules of the identical profile (spec 10 section 1): binary32, round to nearest even, one rounding an
// operation, subnormals flushed to the zero of their sign after each step. Usable from scalar and device code.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__) || defined(__HIPCC__)
#define SAMBA_HOST_DEVICE __host__ __device__
#else
#define SAMBA_HOST_DEVICE
#endif

namespace samba {

SAMBA_HOST_DEVICE constexpr float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
SAMBA_HOST_DEVICE constexpr std::uint32_t to_bits(float value) { return std::bit_cast<std::uint32_t>(value); }

inline constexpr std::uint32_t kSignBit = 0x80000000U;
inline constexpr std::uint32_t kExponentMask = 0x7F800000U;
inline constexpr std::uint32_t kMantissaMask = 0x007FFFFFU;
inline constexpr float kMinNormal = from_bits(0x00800000U);
inline constexpr float kInfinity = from_bits(0x7F800000U);
inline constexpr float kQuietNan = from_bits(0x7FC00000U);

// F(x): a value whose exponent field is zero becomes the zero of its sign.
SAMBA_HOST_DEVICE constexpr float flush(float x) {
  const std::uint32_t bits = to_bits(x);
  return (bits & kExponentMask) == 0 ? from_bits(bits & kSignBit) : x;
}

SAMBA_HOST_DEVICE constexpr bool is_nan(float x) { return (to_bits(x) & ~kSignBit) > kExponentMask; }
SAMBA_HOST_DEVICE constexpr bool is_finite(float x) { return (to_bits(x) & kExponentMask) != kExponentMask; }

// One rounding, fused. Never let a compiler build or break one: the build says -ffp-contract=off.
SAMBA_HOST_DEVICE inline float fma(float a, float b, float c) { return std::fma(a, b, c); }

// Flushed operations on flushed operands: `mul(a, b)` is F(F(a) * F(b)), one rounding each.
SAMBA_HOST_DEVICE constexpr float mul(float a, float b) { return flush(flush(a) * flush(b)); }
SAMBA_HOST_DEVICE constexpr float add(float a, float b) { return flush(flush(a) + flush(b)); }
SAMBA_HOST_DEVICE constexpr float sub(float a, float b) { return flush(flush(a) - flush(b)); }
SAMBA_HOST_DEVICE constexpr float div(float a, float b) { return flush(flush(a) / flush(b)); }  // spec 10 section 2.1
SAMBA_HOST_DEVICE inline float mad(float a, float b, float c) { return flush(fma(flush(a), flush(b), flush(c))); }

// The order of spec 10 section 2.10: -0 below +0, NaN set apart by the callers.
SAMBA_HOST_DEVICE constexpr std::uint32_t order_key(float x) {
  const std::uint32_t bits = to_bits(x);
  return (bits & kSignBit) != 0 ? ~bits : bits | kSignBit;
}

SAMBA_HOST_DEVICE constexpr float max(float a, float b) {
  if (is_nan(a) || is_nan(b)) return kQuietNan;
  a = flush(a);
  b = flush(b);
  return order_key(b) > order_key(a) ? b : a;
}

SAMBA_HOST_DEVICE constexpr float clamp(float x, float low, float high) {
  if (is_nan(x) || is_nan(low) || is_nan(high)) return kQuietNan;
  float v = flush(x);
  low = flush(low);
  high = flush(high);
  if (order_key(low) > order_key(v)) v = low;
  if (order_key(high) < order_key(v)) v = high;
  return v;
}

}  // namespace samba
