// SIMD lanes for the templates of samba/numerics/elementary.h, and the flush rules of the cpu kernels.
//
// Included once per target (Highway's per-target include guard). On x86 every kernel runs inside a DazScope: subnormal
// operands read as zeros, flush-to-zero stays off, so that `flush` inside a computation is the identity and only what
// is stored passes `flush_store` (spec 10 section 11). Elsewhere both flush by bits.
#if defined(SAMBA_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_LANES_INL_H_
#undef SAMBA_CPU_LANES_INL_H_
#else
#define SAMBA_CPU_LANES_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>

#include "samba/backends/cpu/daz.h"
#include "samba/numerics/float32.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// a * b + c with one rounding on every target; where the instruction set has no fused step, lane by lane in software.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if HWY_NATIVE_FMA
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  HWY_ALIGN float x[hn::MaxLanes(d)], y[hn::MaxLanes(d)], z[hn::MaxLanes(d)];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

// F(x) by bits, for what is stored or handled by integer code.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V flush_store(D d, V x) {
  const auto magnitude = hn::Abs(x);
  const hn::RebindToUnsigned<D> du;
  const auto tiny = hn::Lt(hn::BitCast(hn::RebindToSigned<D>(), hn::BitCast(du, magnitude)),
                           hn::Set(hn::RebindToSigned<D>(), 0x00800000));
  return hn::IfThenElse(hn::RebindMask(d, tiny), hn::CopySign(hn::Zero(d), x), x);
}

// F inside a computation: nothing to do under DAZ.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V flush_operand(D d, V x) {
#if SAMBA_HAS_DAZ
  (void)d;
  return x;
#else
  return flush_store(d, x);
#endif
}

// AVX-512 multiplies by a power of two, given by its exponent, in one rounding.
#undef SAMBA_CPU_SCALES_BY_POWERS
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
#define SAMBA_CPU_SCALES_BY_POWERS 1
HWY_INLINE __m512 scale_by_power(__m512 y, __m512 power) { return _mm512_scalef_ps(y, power); }
HWY_INLINE __m256 scale_by_power(__m256 y, __m256 power) { return _mm256_scalef_ps(y, power); }
HWY_INLINE __m128 scale_by_power(__m128 y, __m128 power) { return _mm_scalef_ps(y, power); }
#else
#define SAMBA_CPU_SCALES_BY_POWERS 0
#endif

template <class D>
struct SimdLanes {
  using F = hn::Vec<D>;
  using DI = hn::RebindToSigned<D>;
  using I = hn::Vec<DI>;
  using M = hn::Mask<D>;
  D d;
  DI di;

  HWY_INLINE F set(float v) const { return hn::Set(d, v); }
  HWY_INLINE F bits(std::uint32_t v) const { return hn::Set(d, from_bits(v)); }
  HWY_INLINE I set_int(std::int32_t v) const { return hn::Set(di, v); }

  HWY_INLINE F add(F a, F b) const { return hn::Add(a, b); }
  HWY_INLINE F sub(F a, F b) const { return hn::Sub(a, b); }
  HWY_INLINE F mul(F a, F b) const { return hn::Mul(a, b); }
  HWY_INLINE F div(F a, F b) const { return hn::Div(a, b); }
  HWY_INLINE F fma(F a, F b, F c) const { return fused(d, a, b, c); }
  HWY_INLINE F root(F a) const { return hn::Sqrt(a); }
  HWY_INLINE F floor(F a) const { return hn::Floor(a); }
  HWY_INLINE F neg(F a) const { return hn::Xor(a, hn::Set(d, from_bits(kSignBit))); }
  HWY_INLINE F abs(F a) const { return hn::Abs(a); }
  HWY_INLINE F copysign(F magnitude, F sign) const { return hn::CopySign(magnitude, sign); }
  HWY_INLINE F flush(F a) const { return flush_operand(d, a); }

  HWY_INLINE M lt(F a, F b) const { return hn::Lt(a, b); }
  HWY_INLINE M le(F a, F b) const { return hn::Le(a, b); }
  HWY_INLINE M eq(F a, F b) const { return hn::Eq(a, b); }
  HWY_INLINE M nan(F a) const { return hn::IsNaN(a); }
  HWY_INLINE M both(M a, M b) const { return hn::And(a, b); }
  HWY_INLINE M either(M a, M b) const { return hn::Or(a, b); }
  HWY_INLINE F select(M m, F yes, F no) const { return hn::IfThenElse(m, yes, no); }

  HWY_INLINE I to_int(F a) const { return hn::ConvertTo(di, a); }
  HWY_INLINE F to_float(I a) const { return hn::ConvertTo(d, a); }
  HWY_INLINE I as_int(F a) const { return hn::BitCast(di, a); }
  HWY_INLINE F as_float(I a) const { return hn::BitCast(d, a); }
  HWY_INLINE I iadd(I a, I b) const { return hn::Add(a, b); }
  HWY_INLINE I isub(I a, I b) const { return hn::Sub(a, b); }
  HWY_INLINE I iand(I a, I b) const { return hn::And(a, b); }
  HWY_INLINE I ior(I a, I b) const { return hn::Or(a, b); }
  template <int kBits>
  HWY_INLINE I shift_left(I a) const {
    return hn::ShiftLeft<kBits>(a);
  }
  template <int kBits>
  HWY_INLINE I shift_right(I a) const {
    return hn::ShiftRight<kBits>(a);
  }
  HWY_INLINE M ieq(I a, I b) const { return hn::RebindMask(d, hn::Eq(a, b)); }
  HWY_INLINE M igt(I a, I b) const { return hn::RebindMask(d, hn::Gt(a, b)); }
};

namespace elementary {

#if SAMBA_CPU_SCALES_BY_POWERS
// x[i] = exp(x[i]): the exp of elementary-inl.h in fewer steps. y * 2^k is rounded once here and there (there the first
// of two products is exact), NaN passes through, and for x at or above the lower bound the result is never subnormal.
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_each(const SimdLanes<D>& l, V (&x)[kCount]) {
  V power[kCount], r[kCount], q[kCount];
  const auto each = [](auto&& step) HWY_ATTR {
    HWY_UNROLL(8)
    for (int i = 0; i < kCount; ++i) step(i);
  };
  each([&](int i) HWY_ATTR { power[i] = hn::Floor(l.fma(x[i], l.bits(0x3FB8AA3BU), l.set(0.5F))); });
  each([&](int i) HWY_ATTR { r[i] = l.fma(power[i], l.bits(0xBF318000U), x[i]); });
  each([&](int i) HWY_ATTR { r[i] = l.fma(power[i], l.bits(0x395E8083U), r[i]); });
  each([&](int i) HWY_ATTR { q[i] = l.fma(l.bits(0x39506967U), r[i], l.bits(0x3AB743CEU)); });
  each([&](int i) HWY_ATTR { q[i] = l.fma(q[i], r[i], l.bits(0x3C088908U)); });
  each([&](int i) HWY_ATTR { q[i] = l.fma(q[i], r[i], l.bits(0x3D2AA9C1U)); });
  each([&](int i) HWY_ATTR { q[i] = l.fma(q[i], r[i], l.bits(0x3E2AAAAAU)); });
  each([&](int i) HWY_ATTR { q[i] = l.fma(q[i], r[i], l.bits(0x3F000000U)); });
  each([&](int i) HWY_ATTR { q[i] = l.add(l.fma(q[i], l.mul(r[i], r[i]), r[i]), l.set(1.0F)); });
  each([&](int i) HWY_ATTR {
    const auto too_low = l.lt(x[i], l.bits(0xC2AEAC50U));
    const auto too_high = l.lt(l.bits(0x42B17217U), x[i]);
    const auto scaled = hn::IfThenZeroElse(too_low, V{scale_by_power(q[i].raw, power[i].raw)});
    x[i] = l.select(too_high, l.set(kInfinity), scaled);
  });
}

// Declared before the functions that use exp, so that they take this one.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(const SimdLanes<D>& l, V x) {
  V group[1] = {x};
  exp_each(l, group);
  return group[0];
}
#endif

#include "samba/numerics/elementary-inl.h"

#if !SAMBA_CPU_SCALES_BY_POWERS
template <int kCount, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_each(const SimdLanes<D>& l, V (&x)[kCount]) {
  for (V& value : x) value = exp(l, value);
}
#endif

}  // namespace elementary

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
