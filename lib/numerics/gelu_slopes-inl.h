// The slopes of the two forms of GELU (docs/spec-extensions.md section 1.2): the text of the templates, over lanes as
// elementary-inl.h is and included beside it, inside its namespace. No include guard on purpose.

// Phi(x) + x phi(x)
template <class L>
SAMBA_HOST_DEVICE inline typename L::F gelu_slope(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto s = l.add(l.set(1.0F), erf(l, divide(l, x, l.bits(0x3FB504F3U))));
  const auto share = l.flush(l.mul(l.set(0.5F), s));
  const auto exponent = l.flush(l.mul(l.set(-0.5F), l.flush(l.mul(x, x))));
  const auto density = l.flush(l.mul(l.bits(0x3ECC422AU), exp(l, exponent)));
  return l.flush(l.add(share, l.flush(l.mul(x, density))));
}

// The argument of tanh and t = tanh of it are rounded as in gelu_tanh.
template <class L>
SAMBA_HOST_DEVICE inline typename L::F gelu_tanh_slope(const L& l, typename L::F x) {
  x = l.flush(x);
  const auto one = l.set(1.0F);
  const auto x2 = l.flush(l.mul(x, x));
  const auto x3 = l.flush(l.mul(x2, x));
  const auto c = l.flush(l.mul(l.bits(0x3D372713U), x3));
  const auto i = l.flush(l.add(x, c));
  const auto a = l.flush(l.mul(l.bits(0x3F4C422AU), i));
  const auto t = l.flush(tanh(l, a));
  const auto share = l.flush(l.mul(l.set(0.5F), l.flush(l.add(one, t))));
  const auto bend = l.flush(l.sub(one, l.flush(l.mul(t, t))));
  const auto rise = l.flush(l.add(one, l.flush(l.mul(l.bits(0x3E095D4FU), x2))));
  const auto speed = l.flush(l.mul(l.bits(0x3F4C422AU), rise));
  const auto h = l.flush(l.mul(x, l.set(0.5F)));
  return l.flush(l.add(share, l.flush(l.mul(l.flush(l.mul(h, bend)), speed))));
}
