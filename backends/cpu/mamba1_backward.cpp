// Gradients of the gate and the convolution of Mamba-1 (spec 32 sections 3.2, 3.9, 3.10).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba1_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/channel_units.h"
#include "samba/backends/cpu/channels-inl.h"
#include "samba/backends/cpu/mamba1.h"
#include "samba/kernels/conv.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

using Tag = hn::ScalableTag<float>;
using Lanes = SimdLanes<Tag>;

// silu' in the rounding of Mamba-1: s (1 + v (1 - s))
HWY_INLINE Lanes::F silu_slope(const Lanes& l, Lanes::F v) {
  const auto one = l.set(1.0F);
  const auto s = l.flush(elementary::sigmoid(l, v));
  return l.flush(l.mul(s, l.flush(l.add(one, l.flush(l.mul(v, l.flush(l.sub(one, s))))))));
}

void gate_rows(const Mamba1Call& c, const Mamba1Gradients& g, Index first, Index end) {
  const Lanes l{};
  const Index di = c.channels();
  for (Index t = first; t < end; ++t) {
    over_vectors(l.d, 0, di, [&](auto io, Index d) HWY_ATTR {
      const Index at = t * di + d;
      const auto z = l.flush(io.load(c.in_proj + t * 2 * di + di + d));
      const auto d_gate = io.load(g.d_gate + at);
      const auto d_skip = l.flush(l.mul(d_gate, l.flush(elementary::silu(l, z))));
      io.store(d_skip, g.d_skip + at);
      io.store(l.mul(l.flush(l.mul(d_gate, io.load(c.skip + at))), silu_slope(l, z)),
               g.d_in_proj + t * 2 * di + di + d);
      io.store(l.mul(d_skip, l.flush(io.load(c.d + d))), g.d_u_skip + at);
      io.store(l.mul(d_skip, io.load(c.u + at)), g.d_rows + at);
    });
  }
}

void join_cells(const Mamba1Gradients& g, Index first, Index end) {
  const Lanes l{};
  over_vectors(l.d, first, end, [&](auto io, Index i) HWY_ATTR {
    const auto own = l.flush(l.add(io.load(g.d_u_skip + i), io.load(g.d_u_scan + i)));
    const auto d_u = l.flush(l.add(own, io.load(g.d_u_x + i)));
    io.store(d_u, g.d_u + i);
    io.store(l.mul(d_u, silu_slope(l, io.load(g.conv + i))), g.d_conv + i);
  });
}

// dhin: the latest position is added first; positions after the sequence would only add +0 to +0.
void conv_input_channels(const Mamba1Call& c, const Mamba1Gradients& g, Index b, Index first, Index end) {
  const Lanes l{};
  const Index di = c.channels();
  over_vectors(l.d, first, end, [&](auto io, Index d) HWY_ATTR {
    ChannelRows<4, Tag> taps;
    taps.load(l.d, g.conv_weight + d * kConvTaps, std::min(lanes_of(l.d), end - d));
    const auto w0 = taps.get(l.d, 0), w1 = taps.get(l.d, 1), w2 = taps.get(l.d, 2), w3 = taps.get(l.d, 3);
    const float* d_conv = g.d_conv + b * c.tokens * di + d;
    const auto at = [&](Index p) HWY_ATTR { return p < c.tokens ? io.load(d_conv + p * di) : l.set(0.0F); };
    auto v0 = at(0), v1 = at(1), v2 = at(2);
    for (Index p = 0; p < c.tokens; ++p) {
      const auto v3 = at(p + 3);
      auto sum = p + 3 < c.tokens ? l.flush(l.fma(w0, v3, l.set(0.0F))) : l.set(0.0F);
      if (p + 2 < c.tokens) sum = l.flush(l.fma(w1, v2, sum));
      if (p + 1 < c.tokens) sum = l.flush(l.fma(w2, v1, sum));
      sum = l.flush(l.fma(w3, v0, sum));
      io.store(sum, g.d_in_proj + (b * c.tokens + p) * 2 * di + d);
      v0 = v1;
      v1 = v2;
      v2 = v3;
    }
  });
}

void conv_weight_channels(const Mamba1Call& c, const Mamba1Gradients& g, Index first, Index end) {
  const Lanes l{};
  const Index di = c.channels();
  const Index leaf = leaf_length(c.rows());
  over_vectors(l.d, first, end, [&](auto io, Index d) HWY_ATTR {
    VectorTree<Tag> trees[kConvTaps + 1];  // the taps, the bias
    const auto zero = l.set(0.0F);
    auto v0 = zero, v1 = zero, v2 = zero;
    for (Index begin = 0; begin < c.rows(); begin += leaf) {
      auto s0 = zero, s1 = zero, s2 = zero, s3 = zero, bias = zero;
      for (Index t = begin; t < std::min(c.rows(), begin + leaf); ++t) {
        if (t % c.tokens == 0) v0 = v1 = v2 = zero;
        const auto v3 = io.load(c.in_proj + t * 2 * di + d);
        const auto d_conv = io.load(g.d_conv + t * di + d);
        s0 = l.flush(l.add(s0, l.flush(l.mul(d_conv, v0))));
        s1 = l.flush(l.add(s1, l.flush(l.mul(d_conv, v1))));
        s2 = l.flush(l.add(s2, l.flush(l.mul(d_conv, v2))));
        s3 = l.flush(l.add(s3, l.flush(l.mul(d_conv, v3))));
        bias = l.flush(l.add(bias, d_conv));
        v0 = v1;
        v1 = v2;
        v2 = v3;
      }
      trees[0].push(l.d, s0);
      trees[1].push(l.d, s1);
      trees[2].push(l.d, s2);
      trees[3].push(l.d, s3);
      trees[4].push(l.d, bias);
    }
    ChannelRows<4, Tag> taps;
    for (Index k = 0; k < kConvTaps; ++k) taps.set(l.d, k, trees[k].finish(l.d));
    taps.store(l.d, g.d_conv_weight + d * kConvTaps, std::min(lanes_of(l.d), end - d));
    io.store(trees[kConvTaps].finish(l.d), g.d_conv_bias + d);
  });
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {

HWY_EXPORT(gate_rows);
HWY_EXPORT(join_cells);
HWY_EXPORT(conv_input_channels);
HWY_EXPORT(conv_weight_channels);

constexpr Index kCellGrain = 2048;      // cells with an exponential
constexpr Index kChannelGrain = 16384;  // channel-tokens of plain arithmetic

}  // namespace

void Mamba1Cpu::gate_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) {
  const auto run = SAMBA_CPU_KERNEL(context_, gate_rows);
  const Index rows = std::max<Index>(1, kCellGrain / call.channels());
  context_.parallel(call.rows(), rows, [&](Index first, Index end, int) { run(call, gradients, first, end); });
}

void Mamba1Cpu::conv_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) {
  const Index di = call.channels();
  const auto join = SAMBA_CPU_KERNEL(context_, join_cells);
  context_.parallel(call.rows() * di, kCellGrain, [&](Index first, Index end, int) { join(gradients, first, end); });
  const auto inputs = SAMBA_CPU_KERNEL(context_, conv_input_channels);
  over_channel_units(context_, call.batch, di, call.tokens, kChannelGrain,
                     [&](Index b, Index first, Index end) { inputs(call, gradients, b, first, end); });
  const auto weights = SAMBA_CPU_KERNEL(context_, conv_weight_channels);
  over_channel_units(context_, 1, di, call.rows(), kChannelGrain,
                     [&](Index, Index first, Index end) { weights(call, gradients, first, end); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
