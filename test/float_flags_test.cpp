// Canaries of the build: they break when a compiler flag or a flush mode slips.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "bits.h"
#include "samba/backends/cpu/daz.h"
#include "samba/backends/registry.h"

#ifdef __FAST_MATH__
#error "samba must not be compiled with -ffast-math"
#endif

namespace samba {
namespace {

#if defined(__x86_64__)
__attribute__((target("fma")))
#endif
float multiply_then_add(float a, float b, float c) {
  return a * b + c;  // contracted to one rounding when -ffp-contract=off is missing
}

// Numbers whose product does not fit: fused and unfused results differ.
volatile float kA = 1.0F + 0x1p-12F;
volatile float kC = -(1.0F + 0x1p-11F);

float reciprocal(float a) { return 1.0F / a; }

}  // namespace

TEST_CASE("a product followed by an add is two roundings, a fused step is one") {
  CHECK(multiply_then_add(kA, kA, kC) == 0.0F);
  CHECK(std::fma(kA, kA, kC) == 0x1p-24F);
}

TEST_CASE("division and square root are correctly rounded and subnormals are kept") {
  volatile float three = 3.0F, tiny = 0x1p-126F, two = 2.0F;
  CHECK(to_bits(reciprocal(three)) == 0x3EAAAAABU);
  CHECK(to_bits(std::sqrt(two)) == 0x3FB504F3U);
  CHECK(tiny / two == 0x1p-127F);
}

TEST_CASE("kernels leave the floating-point control word of their caller as it was") {
  const auto subnormal_survives = [] {
    volatile float tiny = 0x1p-126F, two = 2.0F;
    return tiny / two == 0x1p-127F && tiny / two + tiny / two == 0x1p-126F;
  };
  const auto executor = make_executor("cpu", {2, ""});
  std::vector<float> a(256 * 256, 1.0F), c(a.size());
  executor->linear().gemm(Layout::nt, 256, 256, 256, a.data(), a.data(), c.data());
  CHECK(subnormal_survives());
}

TEST_CASE("a kernel computes the same bits when its caller has flush modes on") {
#if SAMBA_HAS_DAZ
  const auto executor = make_executor("cpu", {1, ""});
  const std::vector<float> a = {from_bits(0x3F7FFFFFU), 0x1p-126F}, b = {from_bits(0x00800000U), 0.5F};
  std::vector<float> want(1), got(1);
  executor->linear().gemm(Layout::nt, 1, 1, 1, a.data(), b.data(), want.data());
  CHECK(to_bits(want[0]) == 0x00800000U);  // rounds up to the smallest normal: flush-to-zero would give 0
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(saved | 0x8040U);
  executor->linear().gemm(Layout::nt, 1, 1, 1, a.data(), b.data(), got.data());
  const unsigned after = _mm_getcsr();
  _mm_setcsr(saved);
  CHECK(bits_equal(got, want));
  CHECK((after & 0x8040U) == 0x8040U);
#endif
}

}  // namespace samba
