// The two ends of the Mamba-2 backward: gate and D (spec 32 section 4.3), and the convolution (section 4.8).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba2_gate_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/channel_units.h"
#include "samba/backends/cpu/channels-inl.h"
#include "samba/backends/cpu/mamba2-inl.h"
#include "samba/backends/cpu/mamba2.h"
#include "samba/kernels/conv.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba2_lanes;

// Tokens [first, last), all their heads.
void gate_part(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index last) {
  const Index heads = call.heads();
  const V one = constant(1.0F);
  for (Index t = first; t < last; ++t) {
    const float* z = call.in_proj + t * call.width();
    float* d_z = g.d_in_proj + t * call.width();
    each_vector(call.inner(), [&](Index i) {
      const Index at = t * call.inner() + i;
      const V zi = load(z + i), d_gate = load(g.d_gate + at);
      store(mul(d_gate, silu(zi)), g.d_skip + at);
      const V s = sigmoid(zi);
      const V slope = mul(s, mad(zi, sub(one, s), one));
      store(mul(mul(d_gate, load(call.skip + at)), slope), d_z + i);
    });
    row_dots(heads, P, g.d_skip + t * call.inner(), P, call.x_bc + t * call.channels(), P,
             [&](Index h, float chain) { g.d_rows[t * heads + h] = chain; });
  }
}

// g = up * (s + v (s (1 - s))), cells [first, last) of [M, CD].
void slope_part(const Mamba2Gradients& g, Index first, Index last) {
  const V one = constant(1.0F);
  over_vectors(D(), first, last, [&](auto io, Index i) {
    const V v = io.load(g.conv + i);
    const V s = sigmoid(v);
    const V slope = add(s, mul(v, mul(s, sub(one, s))));
    io.store(mul(io.load(g.d_xbc + i), slope), g.d_conv + i);
  });
}

// d_in: the nearest position first; positions after the sequence are left out.
void input_channels(const Mamba2Call& call, const Mamba2Gradients& g, Index b, Index first, Index end) {
  const Index channels = call.channels();
  over_vectors(D(), first, end, [&](auto io, Index d) {
    ChannelRows<4, D> taps;
    taps.load(D(), g.conv_weight + d * kConvTaps, std::min(kLanes, end - d));
    const V w0 = taps.get(D(), 0), w1 = taps.get(D(), 1), w2 = taps.get(D(), 2), w3 = taps.get(D(), 3);
    const float* d_conv = g.d_conv + b * call.tokens * channels + d;
    const auto at = [&](Index l) { return l < call.tokens ? io.load(d_conv + l * channels) : zero(); };
    V v0 = at(0), v1 = at(1), v2 = at(2);
    for (Index l = 0; l < call.tokens; ++l) {
      const V v3 = at(l + 3);
      V sum = mad(v0, w3, zero());
      if (l + 1 < call.tokens) sum = mad(v1, w2, sum);
      if (l + 2 < call.tokens) sum = mad(v2, w1, sum);
      if (l + 3 < call.tokens) sum = mad(v3, w0, sum);
      io.store(sum, g.d_in_proj + (b * call.tokens + l) * call.width() + call.inner() + d);
      v0 = v1;
      v1 = v2;
      v2 = v3;
    }
  });
}

// BLOCKSUM over the tokens, one channel a lane; positions before a sequence are left out.
void weight_channels(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index end) {
  constexpr Index kBlock = 256, kSums = kConvTaps + 1;  // the taps, the bias
  const Index rows = call.rows();
  over_vectors(D(), first, end, [&](auto io, Index d) {
    const float* inputs = call.in_proj + call.inner() + d;
    V total[kSums];
    for (V& t : total) t = zero();
    for (Index begin = 0; begin < rows; begin += kBlock) {
      V sum[kSums];
      for (V& s : sum) s = zero();
      V v0 = zero(), v1 = zero(), v2 = zero();
      const auto past = [&](Index t, Index back) {
        return t % call.tokens >= back ? flush_operand(D(), io.load(inputs + (t - back) * call.width())) : zero();
      };
      v0 = past(begin, 3);
      v1 = past(begin, 2);
      v2 = past(begin, 1);
      for (Index t = begin; t < std::min(rows, begin + kBlock); ++t) {
        const Index l = t % call.tokens;
        const V v3 = flush_operand(D(), io.load(inputs + t * call.width()));
        const V d_conv = io.load(g.d_conv + t * call.channels() + d);
        if (l >= 3) sum[0] = mad(d_conv, v0, sum[0]);
        if (l >= 2) sum[1] = mad(d_conv, v1, sum[1]);
        if (l >= 1) sum[2] = mad(d_conv, v2, sum[2]);
        sum[3] = mad(d_conv, v3, sum[3]);
        sum[4] = add(sum[4], d_conv);
        v0 = v1;
        v1 = v2;
        v2 = v3;
      }
      for (Index k = 0; k < kSums; ++k) total[k] = begin == 0 ? sum[k] : add(total[k], sum[k]);
    }
    ChannelRows<4, D> taps;
    for (Index k = 0; k < kConvTaps; ++k) taps.set(D(), k, total[k]);
    taps.store(D(), g.d_conv_weight + d * kConvTaps, std::min(kLanes, end - d));
    io.store(total[kConvTaps], g.d_conv_bias + d);
  });
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(gate_part);
HWY_EXPORT(slope_part);
HWY_EXPORT(input_channels);
HWY_EXPORT(weight_channels);

constexpr Index kCellGrain = 2048;      // cells with an exponential
constexpr Index kChannelGrain = 16384;  // channel-tokens of plain arithmetic
}  // namespace

void Mamba2Cpu::gate_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) {
  context_.parallel(call.rows(), std::max<Index>(1, kCellGrain / call.inner()), [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, gate_part)(call, gradients, first, last);
  });
}

void Mamba2Cpu::conv_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) {
  const Index channels = call.channels();
  context_.parallel(call.rows() * channels, kCellGrain, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, slope_part)(gradients, first, last);
  });
  over_channel_units(context_, call.batch, channels, call.tokens, kChannelGrain, [&](Index b, Index first, Index end) {
    SAMBA_CPU_KERNEL(context_, input_channels)(call, gradients, b, first, end);
  });
  over_channel_units(context_, 1, channels, call.rows(), kChannelGrain, [&](Index, Index first, Index end) {
    SAMBA_CPU_KERNEL(context_, weight_channels)(call, gradients, first, end);
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
