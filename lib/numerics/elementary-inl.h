// The elementary functions of the identical profile (spec 10 section 2): the text of the templates.
//
// Included inside a namespace, once for scalar and device code (elementary.h) and once for every SIMD target
// (backends/cpu/lanes-inl.h), where it must be compiled with the flags of that target. No include guard on purpose.

// p = c0; p = fma(p, v, c1); ...
template <class L, int kCount>
SAMBA_HOST_DEVICE inline typename L::F horner(const L& l, typename L::F v,
                                              const std::uint32_t (&coefficients)[kCount]) {
  typename L::F p = l.bits(coefficients[0]);
  for (int i = 1; i < kCount; ++i) p = l.fma(p, v, l.bits(coefficients[i]));
  return p;
}

// div(a, b) = F(F(a) / F(b))
template <class L>
SAMBA_HOST_DEVICE inline typename L::F divide(const L& l, typename L::F a, typename L::F b) {
  return l.flush(l.div(l.flush(a), l.flush(b)));
}

// 2^n for -126 <= n <= 127, from its bits.
template <class L>
SAMBA_HOST_DEVICE inline typename L::F power_of_two(const L& l, typename L::I n) {
  return l.as_float(l.template shift_left<23>(l.iadd(n, l.set_int(127))));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F exp(const L& l, typename L::F x) {
  const auto high = l.lt(l.bits(0x42B17217U), x);
  const auto low = l.lt(x, l.bits(0xC2AEAC50U));
  const auto not_a_number = l.nan(x);
  const auto v = l.select(l.either(l.either(high, low), not_a_number), l.set(0.0F), x);
  const auto z = l.floor(l.fma(v, l.bits(0x3FB8AA3BU), l.set(0.5F)));
  const auto k = l.to_int(z);
  auto r = l.fma(z, l.bits(0xBF318000U), v);
  r = l.fma(z, l.bits(0x395E8083U), r);
  const auto q = horner(l, r, {0x39506967U, 0x3AB743CEU, 0x3C088908U, 0x3D2AA9C1U, 0x3E2AAAAAU, 0x3F000000U});
  auto y = l.add(l.fma(q, l.mul(r, r), r), l.set(1.0F));
  const auto k1 = l.template shift_right<1>(k);
  y = l.mul(l.mul(y, power_of_two(l, k1)), power_of_two(l, l.isub(k, k1)));
  y = l.select(l.either(low, l.lt(y, l.set(kMinNormal))), l.set(0.0F), y);
  y = l.select(high, l.set(kInfinity), y);
  return l.select(not_a_number, x, y);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F log_core(const L& l, typename L::F t, typename L::F e) {
  const auto z = l.mul(t, t);
  const auto p = horner(l, t,
                        {0x3D9021BBU, 0xBDEBD1B8U, 0x3DEF251AU, 0xBDFE5D4FU, 0x3E11E9BFU, 0xBE2AAE50U, 0x3E4CCEACU,
                         0xBE7FFFFCU, 0x3EAAAAAAU});
  auto y = l.mul(l.mul(t, z), p);
  y = l.fma(e, l.bits(0xB95E8083U), y);
  y = l.fma(l.set(-0.5F), z, y);
  return l.fma(e, l.bits(0x3F318000U), l.add(t, y));
}

// x = m * 2^e with m in [sqrt(1/2), sqrt(2)): t = m - 1 and e, for a normal x.
template <class L>
SAMBA_HOST_DEVICE inline void reduce_for_log(const L& l, typename L::F x, typename L::F& t, typename L::F& exponent) {
  const auto raw = l.as_int(x);
  const auto e = l.isub(l.iand(l.template shift_right<23>(raw), l.set_int(0xFF)), l.set_int(126));
  const auto m = l.as_float(l.ior(l.iand(raw, l.set_int(0x007FFFFF)), l.set_int(0x3F000000)));
  const auto small = l.lt(m, l.bits(0x3F3504F3U));
  exponent = l.select(small, l.to_float(l.isub(e, l.set_int(1))), l.to_float(e));
  t = l.sub(l.select(small, l.add(m, m), m), l.set(1.0F));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F log(const L& l, typename L::F x) {
  typename L::F t, e;
  reduce_for_log(l, x, t, e);
  auto y = log_core(l, t, e);
  y = l.select(l.eq(x, l.set(kInfinity)), l.set(kInfinity), y);
  y = l.select(l.lt(x, l.set(0.0F)), l.set(kQuietNan), y);
  y = l.select(l.lt(l.abs(x), l.set(kMinNormal)), l.set(-kInfinity), y);
  return l.select(l.nan(x), x, y);
}

// Near zero log_core of x itself, else log(x + 1). x + 1 is never subnormal, and 0 for x = -1 alone.
template <class L>
SAMBA_HOST_DEVICE inline typename L::F log1p(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto near_zero = l.both(l.le(l.bits(0xBE95F61AU), x), l.le(x, l.bits(0x3ED413CDU)));
  typename L::F t, e;
  reduce_for_log(l, l.add(x, l.set(1.0F)), t, e);
  auto y = log_core(l, l.select(near_zero, x, t), l.select(near_zero, l.set(0.0F), e));
  y = l.select(l.eq(x, l.set(-1.0F)), l.set(-kInfinity), y);
  y = l.select(l.lt(x, l.set(-1.0F)), l.set(kQuietNan), y);
  const auto as_it_is = l.either(l.nan(x), l.either(l.eq(x, l.set(0.0F)), l.eq(x, l.set(kInfinity))));
  return l.select(as_it_is, x, y);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F sqrt(const L& l, typename L::F x) {
  auto y = l.root(x);
  y = l.select(l.lt(x, l.set(0.0F)), l.set(kQuietNan), y);
  y = l.select(l.lt(l.abs(x), l.set(kMinNormal)), l.set(0.0F), y);
  return l.select(l.nan(x), x, y);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F rsqrt(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto s = sqrt(l, x);
  auto y = divide(l, l.set(1.0F), s);
  y = l.select(l.eq(s, l.set(kInfinity)), l.set(0.0F), y);
  y = l.select(l.eq(s, l.set(0.0F)), l.set(kInfinity), y);
  y = l.select(l.lt(x, l.set(0.0F)), l.set(kQuietNan), y);
  return l.select(l.nan(x), x, y);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F one_plus_exp_negative(const L& l, typename L::F x) {
  return l.add(exp(l, l.neg(x)), l.set(1.0F));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F sigmoid(const L& l, typename L::F x) {
  return l.select(l.nan(x), x, divide(l, l.set(1.0F), one_plus_exp_negative(l, x)));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F silu(const L& l, typename L::F x) {
  return l.select(l.nan(x), x, divide(l, x, one_plus_exp_negative(l, x)));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F softplus(const L& l, typename L::F x) {
  return l.select(l.le(x, l.set(20.0F)), log1p(l, exp(l, x)), x);
}

// The reduction of sin and cos: octant pair j in {0, 1, 2, 3}, remainder r, and whether j passed the half turn.
template <class L>
struct ReducedAngle {
  typename L::I j;
  typename L::F r;
  typename L::M half_turn;
};

template <class L>
SAMBA_HOST_DEVICE inline ReducedAngle<L> reduce_angle(const L& l, typename L::F a) {
  auto y = l.floor(l.mul(a, l.bits(0x3FA2F983U)));
  // From 2^30 on every float32 is a multiple of 64, so that its octant is 0.
  const auto countable = l.lt(y, l.set(0x1p30F));
  auto j = l.to_int(l.select(countable, y, l.set(0.0F)));
  const auto odd = l.iand(j, l.set_int(1));
  j = l.iand(l.iadd(j, odd), l.set_int(7));
  y = l.select(l.ieq(odd, l.set_int(1)), l.add(y, l.set(1.0F)), y);
  auto r = l.fma(y, l.bits(0xBF490000U), a);
  r = l.fma(y, l.bits(0xB97DA000U), r);
  r = l.fma(y, l.bits(0xB3222169U), r);
  const auto half_turn = l.igt(j, l.set_int(3));
  return {l.iand(j, l.set_int(3)), r, half_turn};
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F sine_polynomial(const L& l, typename L::F r) {
  const auto z = l.mul(r, r);
  return l.fma(l.mul(r, z), horner(l, z, {0xB94CA1F9U, 0x3C08839EU, 0xBE2AAAA3U}), r);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F cosine_polynomial(const L& l, typename L::F r) {
  const auto z = l.mul(r, r);
  const auto p = horner(l, z, {0x37CCF5CEU, 0xBAB6061AU, 0x3D2AAAA5U});
  return l.fma(l.mul(z, z), p, l.fma(l.set(-0.5F), z, l.set(1.0F)));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::M not_finite(const L& l, typename L::F x) {
  return l.ieq(l.iand(l.as_int(x), l.set_int(0x7F800000)), l.set_int(0x7F800000));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F sin(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto reduced = reduce_angle(l, l.abs(x));
  const auto ends = l.either(l.ieq(reduced.j, l.set_int(0)), l.ieq(reduced.j, l.set_int(3)));
  const auto v = l.select(ends, sine_polynomial(l, reduced.r), cosine_polynomial(l, reduced.r));
  auto sign = l.copysign(l.set(1.0F), x);
  sign = l.select(reduced.half_turn, l.neg(sign), sign);
  return l.select(not_finite(l, x), l.set(kQuietNan), l.mul(sign, v));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F cos(const L& l, typename L::F x) {
  const auto reduced = reduce_angle(l, l.abs(x));
  const auto middle = l.either(l.ieq(reduced.j, l.set_int(1)), l.ieq(reduced.j, l.set_int(2)));
  const auto v = l.select(middle, sine_polynomial(l, reduced.r), cosine_polynomial(l, reduced.r));
  auto sign = l.select(reduced.half_turn, l.set(-1.0F), l.set(1.0F));
  sign = l.select(l.igt(reduced.j, l.set_int(1)), l.neg(sign), sign);
  return l.select(not_finite(l, x), l.set(kQuietNan), l.mul(sign, v));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F tanh(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto a = l.abs(x);
  const auto d = l.add(exp(l, l.add(a, a)), l.set(1.0F));
  const auto far = l.sub(l.set(1.0F), divide(l, l.set(2.0F), d));
  const auto s = l.mul(x, x);
  const auto p = horner(l, s, {0xBBBAF0EAU, 0x3CA9134EU, 0xBD5C1E2DU, 0x3E088393U, 0xBEAAAA99U});
  const auto near = l.fma(l.mul(p, s), x, x);
  auto y = l.select(l.le(l.set(0.625F), a), l.copysign(far, x), near);
  y = l.select(l.lt(l.bits(0x42317218U), a), l.copysign(l.set(1.0F), x), y);
  return l.select(l.either(l.nan(x), l.eq(x, l.set(0.0F))), x, y);
}

// erfc(|x|) of spec 10 section 2.9 for |x| > 1, reflected for negative x.
template <class L>
SAMBA_HOST_DEVICE inline typename L::F erfc_tail(const L& l, typename L::F signed_x) {
  const auto x = l.abs(signed_x);
  const auto negative = l.lt(signed_x, l.set(0.0F));
  const auto square = l.neg(l.mul(x, x));
  const auto z = exp(l, square);
  const auto q = divide(l, l.set(1.0F), x);
  const auto y = l.mul(q, q);
  const auto near = horner(l, y,
                           {0x3CBE9CF4U, 0xBE0E0868U, 0x3EBCCBD0U, 0xBF151CF8U, 0x3F1EF9E3U, 0xBEFD28C0U, 0x3EAE5471U,
                            0xBE8C5880U, 0x3F1056E6U});
  const auto far = horner(
      l, y, {0xC127A483U, 0x414FA29CU, 0xC0EFDB4AU, 0x403AF1FAU, 0xBF81F436U, 0x3ED7FC3EU, 0xBE906C5DU, 0x3F106EB9U});
  const auto p = l.select(l.lt(x, l.set(2.0F)), near, far);
  const auto r = l.flush(l.mul(l.flush(l.mul(z, q)), p));
  const auto tail = l.select(negative, l.sub(l.set(2.0F), r), r);
  const auto limit = l.select(negative, l.set(2.0F), l.set(0.0F));
  return l.select(l.lt(square, l.bits(0xC2B17218U)), limit, tail);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F erf(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto z = l.mul(x, x);
  const auto p =
      horner(l, z, {0x38A4B519U, 0xBA51FB80U, 0x3BAA02D9U, 0xBCDBFC87U, 0x3DE7167CU, 0xBEC0939FU, 0x3F906EBAU});
  const auto y = l.select(l.lt(l.set(1.0F), l.abs(x)), l.sub(l.set(1.0F), erfc_tail(l, x)), l.mul(x, p));
  return l.select(l.nan(x), x, y);
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F gelu(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto s = l.add(l.set(1.0F), erf(l, divide(l, x, l.bits(0x3FB504F3U))));
  const auto h = l.flush(l.mul(x, l.set(0.5F)));
  return l.select(l.nan(x), x, l.flush(l.mul(h, s)));
}

template <class L>
SAMBA_HOST_DEVICE inline typename L::F gelu_tanh(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto x2 = l.flush(l.mul(x, x));
  const auto x3 = l.flush(l.mul(x2, x));
  const auto c = l.flush(l.mul(l.bits(0x3D372713U), x3));
  const auto i = l.flush(l.add(x, c));
  const auto a = l.flush(l.mul(l.bits(0x3F4C422AU), i));
  const auto s = l.add(l.set(1.0F), tanh(l, a));
  const auto h = l.flush(l.mul(x, l.set(0.5F)));
  return l.select(l.nan(x), x, l.flush(l.mul(h, s)));
}

// pow(x, p) for x >= 0 (spec 10 section 2.11).
template <class L>
SAMBA_HOST_DEVICE inline typename L::F pow(const L& l, typename L::F x, typename L::F p) {
  const auto zero = l.set(0.0F);
  auto y = exp(l, l.mul(p, log(l, x)));
  y = l.select(l.eq(x, zero), l.select(l.lt(zero, p), zero, l.set(kInfinity)), y);
  y = l.select(l.either(l.lt(x, zero), l.either(l.nan(x), l.nan(p))), l.set(kQuietNan), y);
  return l.select(l.eq(p, zero), l.set(1.0F), y);
}
