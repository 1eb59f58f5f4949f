// Mamba-2, the gradients around the core: gate and D, convolution (spec 32 sections 4.3, 4.8).
#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba2.h"
#include "samba/backends/reference/mamba2_arithmetic.h"
#include "samba/kernels/conv.h"

namespace samba::reference {

namespace {

using namespace mamba2_arithmetic;

// silu' of the gate: s (v (1 - s) + 1), the sum fused                              spec 32 section 2
inline float gate_slope(float v) {
  const float s = sigmoid_flushed(v);
  return mul(s, mad(v, sub(1.0F, s), 1.0F));
}

// silu' of the convolution: s + v (s (1 - s))
inline float conv_slope(float v) {
  const float s = sigmoid_flushed(v);
  return add(s, mul(v, mul(s, sub(1.0F, s))));
}

SAMBA_FMA_CLONES void gate_row(const Mamba2Call& call, const Mamba2Gradients& g, Index t) {
  for (Index h = 0; h < call.heads(); ++h) {
    const float* x = call.x_bc + t * call.channels() + h * kHeadDim;
    float chain = 0.0F;
    for (Index p = 0; p < kHeadDim; ++p) {
      const Index column = h * kHeadDim + p;
      const Index at = t * call.inner() + column;
      const float z = flush(call.in_proj[t * call.width() + column]);
      const float d_skip = mul(g.d_gate[at], flush(elementary::silu(z)));
      g.d_skip[at] = d_skip;
      g.d_in_proj[t * call.width() + column] = mul(mul(g.d_gate[at], call.skip[at]), gate_slope(z));
      chain = mad(d_skip, x[p], chain);
    }
    g.d_rows[t * call.heads() + h] = chain;
  }
}

SAMBA_FMA_CLONES void slope_row(const Mamba2Call& call, const Mamba2Gradients& g, Index t) {
  for (Index at = t * call.channels(); at < (t + 1) * call.channels(); ++at) {
    g.d_conv[at] = mul(g.d_xbc[at], conv_slope(g.conv[at]));
  }
}

SAMBA_FMA_CLONES void input_row(const Mamba2Call& call, const Mamba2Gradients& g, Index b, Index l) {
  const Index channels = call.channels();
  float* out = g.d_in_proj + (b * call.tokens + l) * call.width() + call.inner();
  for (Index ch = 0; ch < channels; ++ch) {
    float sum = 0.0F;
    for (Index lag = 0; lag < kConvTaps; ++lag) {
      if (l + lag >= call.tokens) break;
      sum = mad(g.d_conv[(b * call.tokens + l + lag) * channels + ch], g.conv_weight[ch * kConvTaps + 3 - lag], sum);
    }
    out[ch] = sum;
  }
}

SAMBA_FMA_CLONES void weight_channel(const Mamba2Call& call, const Mamba2Gradients& g, Index ch) {
  const auto d_conv = [&](Index t) { return g.d_conv[t * call.channels() + ch]; };
  g.d_conv_bias[ch] = block_sum(call.rows(), [&](float sum, Index t) { return add(sum, d_conv(t)); });
  for (Index k = 0; k < kConvTaps; ++k) {
    g.d_conv_weight[ch * kConvTaps + k] = block_sum(call.rows(), [&](float sum, Index t) {
      if (t % call.tokens - 3 + k < 0) return sum;
      return mad(d_conv(t), call.in_proj[(t - 3 + k) * call.width() + call.inner() + ch], sum);
    });
  }
}

}  // namespace

void Mamba2Reference::gate_backward(const Mamba2Call& call, const Mamba2Gradients& g) {
  for (Index t = 0; t < call.rows(); ++t) gate_row(call, g, t);
}

void Mamba2Reference::conv_backward(const Mamba2Call& call, const Mamba2Gradients& g) {
  for (Index t = 0; t < call.rows(); ++t) slope_row(call, g, t);
  for (Index b = 0; b < call.batch; ++b) {
    for (Index l = 0; l < call.tokens; ++l) input_row(call, g, b, l);
  }
  for (Index ch = 0; ch < call.channels(); ++ch) weight_channel(call, g, ch);
}

}  // namespace samba::reference
