#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/elementwise.h"

#include <algorithm>
#include <atomic>

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/elementary.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

namespace elementary {
#include "samba/numerics/gelu_slopes-inl.h"
}  // namespace elementary

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;

template <class Function>
HWY_INLINE void map(Index first, Index end, const float* x, float* out, Function&& function) {
  const Tag d;
  over_vectors(d, first, end, [&](auto io, Index i) HWY_ATTR { io.store(function(io.load(x + i)), out + i); });
}

template <class Function>
HWY_INLINE void map(Index first, Index end, const float* a, const float* b, float* out, Function&& function) {
  const Tag d;
  over_vectors(d, first, end,
               [&](auto io, Index i) HWY_ATTR { io.store(function(io.load(a + i), io.load(b + i)), out + i); });
}

#define SAMBA_MAP_UNARY(name) \
  case UnaryFunction::name:   \
    return map(first, end, x, out, [&](Lanes::F v) HWY_ATTR { return elementary::name(l, v); })

void map_unary(UnaryFunction function, Index first, Index end, const float* x, float* out) {
  const Lanes l{};
  switch (function) {
    SAMBA_MAP_UNARY(exp);
    SAMBA_MAP_UNARY(log);
    SAMBA_MAP_UNARY(log1p);
    SAMBA_MAP_UNARY(sqrt);
    SAMBA_MAP_UNARY(rsqrt);
    SAMBA_MAP_UNARY(sigmoid);
    SAMBA_MAP_UNARY(silu);
    SAMBA_MAP_UNARY(softplus);
    SAMBA_MAP_UNARY(sin);
    SAMBA_MAP_UNARY(cos);
    SAMBA_MAP_UNARY(tanh);
    SAMBA_MAP_UNARY(erf);
    SAMBA_MAP_UNARY(gelu);
    SAMBA_MAP_UNARY(gelu_tanh);
  }
}
#undef SAMBA_MAP_UNARY

HWY_INLINE Lanes::I flushed_key(const Lanes& l, Lanes::F x) { return order_key(l, l.as_int(flush_store(l.d, x))); }

HWY_INLINE Lanes::F ordered_max(const Lanes& l, Lanes::F a, Lanes::F b) {
  const auto largest = l.as_float(order_key(l, hn::Max(flushed_key(l, a), flushed_key(l, b))));
  return l.select(l.either(l.nan(a), l.nan(b)), l.set(kQuietNan), largest);
}

void map_binary(BinaryFunction function, Index first, Index end, const float* a, const float* b, float* out) {
  const Lanes l{};
  using F = Lanes::F;
  switch (function) {
    case BinaryFunction::add:
      return map(first, end, a, b, out, [&](F x, F y) HWY_ATTR { return l.add(l.flush(x), l.flush(y)); });
    case BinaryFunction::mul:
      return map(first, end, a, b, out, [&](F x, F y) HWY_ATTR { return l.mul(l.flush(x), l.flush(y)); });
    case BinaryFunction::div:
      return map(first, end, a, b, out, [&](F x, F y) HWY_ATTR { return elementary::divide(l, x, y); });
    case BinaryFunction::max:
      return map(first, end, a, b, out, [&](F x, F y) HWY_ATTR { return ordered_max(l, x, y); });
    case BinaryFunction::pow:
      break;  // by values, see ElementwiseCpu::binary
  }
}

void map_clamp(Index first, Index end, const float* x, float low, float high, float* out) {
  const Lanes l{};
  const auto lowest = flushed_key(l, l.set(low)), highest = flushed_key(l, l.set(high));
  const bool no_range = is_nan(low) || is_nan(high);
  map(first, end, x, out, [&](Lanes::F v) HWY_ATTR {
    if (no_range) return l.set(kQuietNan);
    // The two comparisons look at the value itself or at the bound that has replaced it, in this order.
    const auto raised = hn::Max(flushed_key(l, v), lowest);
    return l.select(l.nan(v), l.set(kQuietNan), l.as_float(order_key(l, hn::Min(raised, highest))));
  });
}

void map_add(Index first, Index end, const float* a, const float* b, float* out) {
  map_binary(BinaryFunction::add, first, end, a, b, out);
}

void map_flush(Index first, Index end, const float* x, float* out) {
  map(first, end, x, out, [](Lanes::F v) HWY_ATTR { return v; });
}

void map_relu(Index first, Index end, const float* x, float* out) {
  const Lanes l{};
  const auto zero = l.set(0.0F);
  map(first, end, x, out, [&](Lanes::F v) HWY_ATTR { return l.select(l.lt(zero, l.flush(v)), v, zero); });
}

void map_relu_backward(Index first, Index end, const float* act, const float* dy, float* dx) {
  const Lanes l{};
  const auto zero = l.set(0.0F);
  map(first, end, act, dy, dx,
      [&](Lanes::F a, Lanes::F d) HWY_ATTR { return l.select(l.lt(zero, l.flush(a)), d, zero); });
}

void map_scale(Index first, Index end, float factor, const float* x, float* out) {
  const Lanes l{};
  const auto f = l.flush(l.set(factor));
  map(first, end, x, out, [&](Lanes::F v) HWY_ATTR { return l.mul(l.flush(v), f); });
}

void map_softcap(Index first, Index end, float softcap, const float* x, float* squashed, float* out) {
  const Lanes l{};
  const auto cap = l.flush(l.set(softcap));
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    const auto t = l.flush(elementary::tanh(l, l.flush(elementary::divide(l, io.load(x + i), cap))));
    if (squashed != nullptr) io.store(t, squashed + i);
    io.store(l.mul(t, cap), out + i);
  });
}

void map_softcap_backward(Index first, Index end, const float* squashed, const float* dy, float* dx) {
  const Lanes l{};
  const auto one = l.set(1.0F);
  map(first, end, squashed, dy, dx, [&](Lanes::F t, Lanes::F d) HWY_ATTR {
    const auto s = l.flush(t);
    return l.mul(l.flush(d), l.flush(l.sub(one, l.flush(l.mul(s, s)))));
  });
}

void map_unary_backward(UnaryFunction function, Index first, Index end, const float* x, const float* dy, float* dx) {
  const Lanes l{};
  using F = Lanes::F;
  if (function == UnaryFunction::gelu) {
    return map(first, end, x, dy, dx,
               [&](F v, F d) HWY_ATTR { return l.mul(l.flush(d), l.flush(elementary::gelu_slope(l, v))); });
  }
  map(first, end, x, dy, dx,
      [&](F v, F d) HWY_ATTR { return l.mul(l.flush(d), l.flush(elementary::gelu_tanh_slope(l, v))); });
}

void map_swiglu(Index first, Index end, const float* gate, const float* up, float* act, float* gated) {
  const Lanes l{};
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    const auto u = l.flush(io.load(up + i));
    const auto a = l.flush(elementary::silu(l, l.flush(io.load(gate + i))));
    io.store(a, act + i);
    io.store(l.mul(a, u), gated + i);
  });
}

void map_swiglu_backward(Index first, Index end, const SwigluGradient& g) {
  const Lanes l{};
  const auto one = l.set(1.0F);
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    const auto gate = l.flush(io.load(g.gate + i));
    const auto d_gated = l.flush(io.load(g.d_gated + i));
    const auto d_act = l.flush(l.mul(d_gated, l.flush(io.load(g.up + i))));
    const auto d_up = l.mul(d_gated, l.flush(io.load(g.act + i)));
    const auto s = l.flush(elementary::sigmoid(l, gate));
    const auto rise = l.flush(l.mul(gate, l.flush(l.sub(one, s))));
    const auto slope = l.flush(l.mul(s, l.flush(l.add(one, rise))));
    io.store(d_act, g.d_act + i);
    io.store(d_up, g.d_up + i);
    io.store(l.mul(d_act, slope), g.d_gate + i);
  });
}

Index find_non_finite(Index first, Index end, const float* x) {
  const Lanes l{};
  Index found = -1;
  for (Index i = first; i < end && found < 0; i += lanes_of(l.d)) {
    const Index left = std::min(lanes_of(l.d), end - i);
    const auto mask = hn::FirstN(l.d, static_cast<std::size_t>(left));
    const auto v = left == lanes_of(l.d) ? hn::LoadU(l.d, x + i) : hn::MaskedLoad(mask, l.d, x + i);
    const auto at = hn::FindFirstTrue(l.d, elementary::not_finite(l, v));
    if (at >= 0) found = i + at;
  }
  return found;
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(map_unary);
HWY_EXPORT(map_binary);
HWY_EXPORT(map_clamp);
HWY_EXPORT(map_add);
HWY_EXPORT(map_flush);
HWY_EXPORT(map_relu);
HWY_EXPORT(map_relu_backward);
HWY_EXPORT(map_scale);
HWY_EXPORT(map_softcap);
HWY_EXPORT(map_softcap_backward);
HWY_EXPORT(map_unary_backward);
HWY_EXPORT(map_swiglu);
HWY_EXPORT(map_swiglu_backward);
HWY_EXPORT(find_non_finite);

constexpr Index kGrain = 16384;         // elements a thread should have to be worth its start: plain arithmetic
constexpr Index kFunctionGrain = 2048;  // the same where every element is an exponential or dearer

}  // namespace

void ElementwiseCpu::unary(UnaryFunction function, Index n, const float* x, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_unary);
  context_.parallel(n, kFunctionGrain, [&](Index first, Index end, int) { run(function, first, end, x, out); });
}

void ElementwiseCpu::binary(BinaryFunction function, Index n, const float* a, const float* b, float* out) {
  if (function == BinaryFunction::pow) {
    // No block takes powers of many values. The edges of pow tell subnormals from zeros, so it runs without DAZ.
    for (Index i = 0; i < n; ++i) out[i] = elementary::pow(a[i], b[i]);
    return;
  }
  const auto run = SAMBA_CPU_KERNEL(context_, map_binary);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(function, first, end, a, b, out); });
}

void ElementwiseCpu::clamp(Index n, const float* x, float low, float high, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_clamp);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, x, low, high, out); });
}

void ElementwiseCpu::add(Index n, const float* a, const float* b, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_add);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, a, b, out); });
}

void ElementwiseCpu::scale(Index n, float factor, const float* x, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_scale);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, factor, x, out); });
}

void ElementwiseCpu::softcap_forward(Index n, float cap, const float* x, float* squashed, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_softcap);
  context_.parallel(n, kFunctionGrain, [&](Index first, Index end, int) { run(first, end, cap, x, squashed, out); });
}

void ElementwiseCpu::softcap_backward(Index n, const float* squashed, const float* dy, float* dx) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_softcap_backward);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, squashed, dy, dx); });
}

void ElementwiseCpu::flush(Index n, const float* x, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_flush);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, x, out); });
}

void ElementwiseCpu::relu_forward(Index n, const float* x, float* out) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_relu);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, x, out); });
}

void ElementwiseCpu::relu_backward(Index n, const float* act, const float* dy, float* dx) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_relu_backward);
  context_.parallel(n, kGrain, [&](Index first, Index end, int) { run(first, end, act, dy, dx); });
}

void ElementwiseCpu::swiglu_forward(Index n, const float* gate, const float* up, float* act, float* gated) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_swiglu);
  context_.parallel(n, kFunctionGrain, [&](Index first, Index end, int) { run(first, end, gate, up, act, gated); });
}

void ElementwiseCpu::swiglu_backward(Index n, const float* gate, const float* up, const float* act,
                                     const float* d_gated, float* d_act, float* d_up, float* d_gate) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_swiglu_backward);
  context_.parallel(n, kFunctionGrain, [&](Index first, Index end, int) {
    run(first, end, {gate, up, act, d_gated, d_act, d_up, d_gate});
  });
}

void ElementwiseCpu::unary_backward(UnaryFunction function, Index n, const float* x, const float* dy, float* dx) {
  const auto run = SAMBA_CPU_KERNEL(context_, map_unary_backward);
  context_.parallel(n, kFunctionGrain, [&](Index first, Index end, int) { run(function, first, end, x, dy, dx); });
}

void ElementwiseCpu::zero_padding(Index batch, Index length, Index width, const std::int32_t* lengths, float* x) {
  for (Index b = 0; b < batch; ++b) {
    float* row = x + b * length * width;
    std::fill(row + lengths[b] * width, row + length * width, 0.0F);
  }
}

void ElementwiseCpu::copy_columns(Index rows, Index width, const float* from, Index from_stride, float* to,
                                  Index to_stride) {
  for (Index row = 0; row < rows; ++row) std::copy_n(from + row * from_stride, width, to + row * to_stride);
}

Index ElementwiseCpu::first_non_finite(Index n, const float* x) {
  const auto run = SAMBA_CPU_KERNEL(context_, find_non_finite);
  std::atomic<Index> lowest{n};
  context_.parallel(n, kGrain, [&](Index first, Index end, int) {
    const Index found = run(first, end, x);
    if (found < 0) return;
    Index known = lowest.load();
    while (found < known && !lowest.compare_exchange_weak(known, found)) {
    }
  });
  return lowest.load() == n ? -1 : lowest.load();
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
