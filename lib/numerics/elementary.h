// The elementary functions of the identical profile (spec 10 section 2), written once for scalar, SIMD and device code.
//
// Each function is a template (elementary-inl.h) over lanes `L`, which name the operations of one vector type:
// ScalarLanes below, or the SIMD lanes of an executor. Branches are selects, so that every lane performs the listed
// operations in the listed order. `l.flush` may be the identity where the hardware reads subnormal operands as zeros
// (x86 DAZ with FTZ off, spec 10 section 11): then only what is stored has to be flushed, and the caller does that.
#pragma once

#include <cmath>
#include <cstdint>

#include "samba/numerics/float32.h"

namespace samba::elementary {

// One value at a time. F: float, I: int32, M: a truth value.
struct ScalarLanes {
  using F = float;
  using I = std::int32_t;
  using M = bool;

  SAMBA_HOST_DEVICE F set(float v) const { return v; }
  SAMBA_HOST_DEVICE F bits(std::uint32_t v) const { return from_bits(v); }
  SAMBA_HOST_DEVICE I set_int(std::int32_t v) const { return v; }

  SAMBA_HOST_DEVICE F add(F a, F b) const { return a + b; }
  SAMBA_HOST_DEVICE F sub(F a, F b) const { return a - b; }
  SAMBA_HOST_DEVICE F mul(F a, F b) const { return a * b; }
  SAMBA_HOST_DEVICE F div(F a, F b) const { return a / b; }
  SAMBA_HOST_DEVICE F fma(F a, F b, F c) const { return samba::fma(a, b, c); }
  SAMBA_HOST_DEVICE F root(F a) const { return std::sqrt(a); }
  SAMBA_HOST_DEVICE F floor(F a) const { return std::floor(a); }
  SAMBA_HOST_DEVICE F neg(F a) const { return from_bits(to_bits(a) ^ kSignBit); }
  SAMBA_HOST_DEVICE F abs(F a) const { return from_bits(to_bits(a) & ~kSignBit); }
  SAMBA_HOST_DEVICE F copysign(F magnitude, F sign) const {
    return from_bits((to_bits(magnitude) & ~kSignBit) | (to_bits(sign) & kSignBit));
  }
  SAMBA_HOST_DEVICE F flush(F a) const { return samba::flush(a); }

  SAMBA_HOST_DEVICE M lt(F a, F b) const { return a < b; }
  SAMBA_HOST_DEVICE M le(F a, F b) const { return a <= b; }
  SAMBA_HOST_DEVICE M eq(F a, F b) const { return a == b; }
  SAMBA_HOST_DEVICE M nan(F a) const { return is_nan(a); }
  SAMBA_HOST_DEVICE M both(M a, M b) const { return a && b; }
  SAMBA_HOST_DEVICE M either(M a, M b) const { return a || b; }
  SAMBA_HOST_DEVICE F select(M m, F yes, F no) const { return m ? yes : no; }

  SAMBA_HOST_DEVICE I to_int(F a) const { return static_cast<I>(a); }
  SAMBA_HOST_DEVICE F to_float(I a) const { return static_cast<F>(a); }
  SAMBA_HOST_DEVICE I as_int(F a) const { return static_cast<I>(to_bits(a)); }
  SAMBA_HOST_DEVICE F as_float(I a) const { return from_bits(static_cast<std::uint32_t>(a)); }
  SAMBA_HOST_DEVICE I iadd(I a, I b) const { return a + b; }
  SAMBA_HOST_DEVICE I isub(I a, I b) const { return a - b; }
  SAMBA_HOST_DEVICE I iand(I a, I b) const { return a & b; }
  SAMBA_HOST_DEVICE I ior(I a, I b) const { return a | b; }
  template <int kBits>
  SAMBA_HOST_DEVICE I shift_left(I a) const {
    return static_cast<I>(static_cast<std::uint32_t>(a) << kBits);
  }
  template <int kBits>
  SAMBA_HOST_DEVICE I shift_right(I a) const {  // arithmetic
    return a >> kBits;
  }
  SAMBA_HOST_DEVICE M ieq(I a, I b) const { return a == b; }
  SAMBA_HOST_DEVICE M igt(I a, I b) const { return a > b; }
};

#include "samba/numerics/elementary-inl.h"

// Scalar spellings.
SAMBA_HOST_DEVICE inline float exp(float x) { return exp(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float log(float x) { return log(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float log1p(float x) { return log1p(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float sqrt(float x) { return sqrt(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float rsqrt(float x) { return rsqrt(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float sigmoid(float x) { return sigmoid(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float silu(float x) { return silu(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float softplus(float x) { return softplus(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float sin(float x) { return sin(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float cos(float x) { return cos(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float tanh(float x) { return tanh(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float erf(float x) { return erf(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float gelu(float x) { return gelu(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float gelu_tanh(float x) { return gelu_tanh(ScalarLanes{}, x); }
SAMBA_HOST_DEVICE inline float pow(float x, float p) { return pow(ScalarLanes{}, x, p); }

}  // namespace samba::elementary
