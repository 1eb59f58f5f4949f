// Pieces of the integer products of numeric_profile fixed15_v1, once per target (spec 20 section 10).
//
// A sum of more products than 32 bits hold is kept as two numbers a lane: `low`, the sum modulo 2^32, and `high`, the
// sum of the upper halves (floor(part / 2^16)) of its parts. With at most 65536 parts they determine the sum.
#if defined(SAMBA_CPU_FIXED15_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_FIXED15_INL_H_
#undef SAMBA_CPU_FIXED15_INL_H_
#else
#define SAMBA_CPU_FIXED15_INL_H_
#endif

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fixed15.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::fixed15 {

using Floats = hn::ScalableTag<float>;
using Ints = hn::RebindToSigned<Floats>;
using FloatVector = hn::Vec<Floats>;
using IntVector = hn::Vec<Ints>;

constexpr Index kSurePairs = 4;  // 8 products of two codes are below 2^31

// sum + a0 * b0 + a1 * b1 in each lane, a and b pairs of 16-bit integers.
template <bool kVnni>
HWY_INLINE IntVector add_pair_products(IntVector sum, IntVector a, IntVector b) {
#if HWY_TARGET <= HWY_AVX3 && HWY_ARCH_X86
  if constexpr (kVnni) {
    // By hand: the instruction is not among the target's own, whoever asks for kVnni has looked for it.
    asm("vpdpwssd %2, %1, %0" : "+v"(sum.raw) : "v"(a.raw), "vm"(b.raw));
    return sum;
  }
#endif
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const hn::RepartitionToNarrow<Ints> d16;
  IntVector unused = hn::Zero(Ints());
  return hn::ReorderWidenMulAccumulate(Ints(), hn::BitCast(d16, a), hn::BitCast(d16, b), sum, unused);
#else
  const auto first = hn::Mul(hn::ShiftRight<16>(hn::ShiftLeft<16>(a)), hn::ShiftRight<16>(hn::ShiftLeft<16>(b)));
  const auto second = hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b));
  return hn::Add(sum, hn::Add(first, second));
#endif
}

// float32 of the sum, one rounding: exact in binary64 before it.
HWY_INLINE FloatVector rounded_sum(IntVector low, IntVector high) {
  const auto rest = hn::Sub(low, hn::ShiftLeft<16>(high));  // in [0, 2^29): the lower halves of the parts
#if HWY_TARGET <= HWY_AVX2 && HWY_ARCH_X86
  const hn::RepartitionToWide<Floats> wide;
  const hn::Half<Ints> half;
  const hn::Half<Floats> half_floats;
  const auto unit = hn::Set(wide, 65536.0);
  const auto total = [&](auto upper, auto lower)
                         HWY_ATTR { return hn::MulAdd(hn::PromoteTo(wide, upper), unit, hn::PromoteTo(wide, lower)); };
  const auto first = total(hn::LowerHalf(half, high), hn::LowerHalf(half, rest));
  const auto second = total(hn::UpperHalf(half, high), hn::UpperHalf(half, rest));
  return hn::Combine(Floats(), hn::DemoteTo(half_floats, second), hn::DemoteTo(half_floats, first));
#else
  HWY_ALIGN std::int32_t upper[hn::MaxLanes(Ints())], lower[hn::MaxLanes(Ints())];
  HWY_ALIGN float sums[hn::MaxLanes(Ints())];
  hn::Store(high, Ints(), upper);
  hn::Store(rest, Ints(), lower);
  for (std::size_t i = 0; i < hn::Lanes(Ints()); ++i) {
    sums[i] = static_cast<float>(static_cast<std::int64_t>(upper[i]) * 65536 + lower[i]);
  }
  return hn::Load(Floats(), sums);
#endif
}

// P(n) of spec 20 section 10.
HWY_INLINE FloatVector power(IntVector n) {
  const auto field = hn::Min(hn::Max(hn::Add(n, hn::Set(Ints(), 127)), hn::Zero(Ints())), hn::Set(Ints(), 255));
  return hn::BitCast(Floats(), hn::ShiftLeft<23>(field));
}

// codes[0, k) of a row and its exponent.
HWY_INLINE std::int32_t quantize_row(const float* HWY_RESTRICT x, Index k, std::int16_t* HWY_RESTRICT codes) {
  const Floats d;
  const Ints di;
  const hn::Rebind<std::int16_t, Floats> d16;
  const Index lanes = lanes_of(d);
  const Index whole = k / lanes * lanes;
  auto most = hn::Zero(di);
  for (Index i = 0; i < whole; i += lanes) {
    const auto magnitude = hn::BitCast(di, hn::Abs(hn::LoadU(d, x + i)));
    const auto counts = hn::And(hn::Gt(magnitude, hn::Set(di, 0x007FFFFF)), hn::Lt(magnitude, hn::Set(di, 0x7F800001)));
    most = hn::Max(most, hn::IfThenElseZero(counts, magnitude));
  }
  HWY_ALIGN std::int32_t of_lanes[hn::MaxLanes(di)];
  hn::Store(most, di, of_lanes);
  std::uint32_t largest = 0;
  for (Index i = 0; i < lanes; ++i) largest = std::max(largest, static_cast<std::uint32_t>(of_lanes[i]));
  for (Index i = whole; i < k; ++i) largest = std::max(largest, fixed15_magnitude(x[i]));
  const std::int32_t exponent = fixed15_exponent(largest);

  const float inverse = power_of_two(-exponent);
  const auto scale = hn::Set(d, inverse);
  const auto limit = hn::Set(d, static_cast<float>(kLargestFixed15Code));
  const auto magic = hn::Set(d, 0x1.8p23F);  // a sum with it is rounded to an integer, half to even
  for (Index i = 0; i < whole; i += lanes) {
    const auto scaled = hn::Mul(flush_operand(d, hn::LoadU(d, x + i)), scale);
    const auto number = hn::IfThenZeroElse(hn::IsNaN(scaled), scaled);
    const auto shifted = hn::Add(hn::Min(hn::Max(number, hn::Neg(limit)), limit), magic);
    const auto code = hn::Sub(hn::BitCast(di, shifted), hn::BitCast(di, magic));
    hn::StoreU(hn::DemoteTo(d16, code), d16, codes + i);
  }
  for (Index i = whole; i < k; ++i) codes[i] = fixed15_code(x[i], inverse);
  return exponent;
}

// packed[p * width] = the pair p of a row of codes.
HWY_INLINE void place_pairs(const std::int16_t* HWY_RESTRICT codes, Index pairs, std::int32_t* HWY_RESTRICT packed,
                            Index width) {
  for (Index p = 0; p < pairs; ++p) {
    const auto low = static_cast<std::uint32_t>(static_cast<std::uint16_t>(codes[2 * p]));
    const auto high = static_cast<std::uint32_t>(static_cast<std::uint16_t>(codes[2 * p + 1]));
    packed[p * width] = static_cast<std::int32_t>(low | high << 16);
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE::fixed15
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
