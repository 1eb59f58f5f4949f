// Mamba-2, the gradients around the core: gate and D, step sizes, convolution (spec 32 sections 4.3 and 4.6 to 4.8).
#pragma once

#include "samba/backends/gpu/mamba2_chunk.gpu.h"
#include "samba/kernels/conv.h"

namespace samba::SAMBA_GPU {

namespace {

// silu' of the gate: s (v (1 - s) + 1), the sum fused                              spec 32 section 2
SAMBA_DEVICE float gate_slope(float v) {
  const float s = sigmoid_flushed(v);
  return mul(s, mad(v, sub(1.0F, s), 1.0F));
}

// silu' of the convolution: s + v (s (1 - s))
SAMBA_DEVICE float conv_slope(float v) {
  const float s = sigmoid_flushed(v);
  return add(s, mul(v, mul(s, sub(1.0F, s))));
}

inline constexpr int kHeadPitch = kTile + 1;
static_assert(kTile * kHeadPitch <= kPanelFloats);

// The chain over p of a[r, p] * b[r, p] in shared memory.
SAMBA_DEVICE float head_chain(const float* a, const float* b, int r) {
  float sum = 0.0F;
  for (int p = 0; p < kTile; ++p) sum = flush(fma(a[r * kHeadPitch + p], b[r * kHeadPitch + p], sum));
  return sum;
}

// A block takes kTile of the (token, head).
SAMBA_KERNEL(kTileThreads)
gate_gradients(Mamba2Call call, Mamba2Gradients g) {
  SAMBA_SHARED(float, d_skips, kTile* kHeadPitch);
  SAMBA_SHARED(float, xs, kTile* kHeadPitch);
  const Index first = static_cast<Index>(block_x()) * kTile, heads = call.heads();
  const Index left = call.rows() * heads - first;
  const int count = static_cast<int>(left < kTile ? left : kTile);
  const int thread = static_cast<int>(thread_index());
  for (int e = thread; e < count * kTile; e += kTileThreads) {
    const int r = e / kTile, p = e % kTile;
    const Index t = (first + r) / heads, column = (first + r) % heads * kHeadDim + p;
    const Index at = t * call.inner() + column, gate_at = t * call.width() + column;
    const float z = flush(call.in_proj[gate_at]);
    const float d_skip = mul(g.d_gate[at], flush(elementary::silu(z)));
    g.d_skip[at] = d_skip;
    g.d_in_proj[gate_at] = mul(mul(g.d_gate[at], call.skip[at]), gate_slope(z));
    d_skips[r * kHeadPitch + p] = d_skip;
    xs[r * kHeadPitch + p] = flush(call.x_bc[t * call.channels() + column]);
  }
  barrier();
  if (thread < count) g.d_rows[first + thread] = head_chain(d_skips, xs, thread);
}

void launch_gate_backward(Context& context, const Mamba2Call& call, const Mamba2Gradients& g) {
  const Index blocks = (call.rows() * call.heads() + kTile - 1) / kTile;
  launch(context, Grid{static_cast<unsigned>(blocks)}, kTileThreads, gate_gradients, call, g);
}

// The gradient of the raw dt; element (t, h).                                      section 4.7
struct StepSizeGradient {
  Mamba2Call call;
  Mamba2Gradients g;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index t = i / call.heads(), h = i % call.heads();
    const Index at = t * call.width() + mamba2::dt_column(call.d_model) + h;
    const float biased = add(call.in_proj[at], call.dt_bias[h]);
    const float s = flush(elementary::softplus(biased));
    const bool passes = call.dt_low <= s && s <= call.dt_high;
    g.d_in_proj[at] = passes ? mul(g.d_dt[i], sigmoid_flushed(biased)) : 0.0F;
  }
};

struct RateTerms {
  Index heads;
  const float *dt, *d_da;
  SAMBA_DEVICE float operator()(Index t, Index h, float sum) const {
    return mad(dt[t * heads + h], d_da[t * heads + h], sum);
  }
};

struct StoreRate {
  const float* a;
  float* d_a_log;
  SAMBA_DEVICE void operator()(Index h, float sum) const { d_a_log[h] = mul(sum, a[h]); }
};

// The sum of the columns of a matrix whose rows are `stride` apart.
struct AddTerms {
  Index stride;
  const float* v;
  SAMBA_DEVICE float operator()(Index t, Index j, float sum) const { return add(sum, v[t * stride + j]); }
};

struct StoreSum {
  float* out;
  SAMBA_DEVICE void operator()(Index j, float sum) const { out[j] = sum; }
};

void launch_step_size_gradients(Context& context, const Mamba2Call& call, const Mamba2Gradients& g) {
  const Index rows = call.rows(), heads = call.heads();
  for_each(context, rows * heads, StepSizeGradient{call, g});
  block_sums(context, rows, heads, RateTerms{heads, call.dt, g.d_da}, StoreRate{call.a, g.d_a_log});
  block_sums(context, rows, heads, AddTerms{call.width(), g.d_in_proj + mamba2::dt_column(call.d_model)},
             StoreSum{g.d_dt_bias});
}

struct ConvSlope {
  Mamba2Gradients g;
  SAMBA_DEVICE void operator()(Index at) const { g.d_conv[at] = mul(g.d_xbc[at], conv_slope(g.conv[at])); }
};

// The nearest position first.
struct ConvInputGradient {
  Mamba2Call call;
  Mamba2Gradients g;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index channels = call.channels(), t = i / channels, ch = i % channels;
    const Index l = t % call.tokens;
    float sum = 0.0F;
    for (Index lag = 0; lag < kConvTaps && l + lag < call.tokens; ++lag) {
      sum = mad(g.d_conv[i + lag * channels], g.conv_weight[ch * kConvTaps + kConvTaps - 1 - lag], sum);
    }
    g.d_in_proj[t * call.width() + call.inner() + ch] = sum;
  }
};

// Column tap * CD + channel; positions before the sequence are skipped.
struct TapChains {
  Mamba2Call call;
  Mamba2Gradients g;
  SAMBA_DEVICE float operator()(Index t, Index j, float sum) const {
    const Index channels = call.channels(), ch = j % channels;
    const Index back = kConvTaps - 1 - j / channels;
    if (t % call.tokens < back) return sum;
    return mad(g.d_conv[t * channels + ch], call.in_proj[(t - back) * call.width() + call.inner() + ch], sum);
  }
};

struct StoreTap {
  Index channels;
  float* out;  // [channels, tap]
  SAMBA_DEVICE void operator()(Index j, float sum) const { out[j % channels * kConvTaps + j / channels] = sum; }
};

void launch_conv_backward(Context& context, const Mamba2Call& call, const Mamba2Gradients& g) {
  const Index rows = call.rows(), channels = call.channels();
  for_each(context, rows * channels, ConvSlope{g});
  for_each(context, rows * channels, ConvInputGradient{call, g});
  block_sums(context, rows, kConvTaps * channels, TapChains{call, g}, StoreTap{channels, g.d_conv_weight});
  block_sums(context, rows, channels, AddTerms{channels, g.d_conv}, StoreSum{g.d_conv_bias});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
