// Mamba-1: decay rates, the gradients of gate and convolution, and the class of the family.
#pragma once

#include "samba/backends/gpu/leaves.gpu.h"
#include "samba/backends/gpu/mamba1_scan.gpu.h"
#include "samba/backends/gpu/mamba1_scan_backward.gpu.h"
#include "samba/kernels/conv.h"

namespace samba::SAMBA_GPU {

namespace {

struct DecayRates {
  const float* a_log;
  float* a;
  SAMBA_DEVICE void operator()(Index i) const { a[i] = -flush(elementary::exp(flush(a_log[i]))); }
};

// silu' in the rounding of Mamba-1: s (1 + v (1 - s))                              spec 32 section 2
SAMBA_DEVICE float silu_slope(float v) {
  const float s = flush(elementary::sigmoid(flush(v)));
  return mul(s, add(1.0F, mul(v, sub(1.0F, s))));
}

// Section 3.2.
struct GateGradient {
  Mamba1Call call;
  Mamba1Gradients g;
  SAMBA_DEVICE void operator()(Index at) const {
    const Index di = call.channels(), t = at / di, d = at % di;
    const Index gate_at = t * 2 * di + di + d;
    const float z = flush(call.in_proj[gate_at]);
    const float d_skip = mul(g.d_gate[at], flush(elementary::silu(z)));
    g.d_skip[at] = d_skip;
    g.d_in_proj[gate_at] = mul(mul(g.d_gate[at], call.skip[at]), silu_slope(z));
    g.d_u_skip[at] = mul(d_skip, call.d[d]);
    g.d_rows[at] = mul(d_skip, call.u[at]);
  }
};

// Section 3.9.
struct JoinInputs {
  Mamba1Gradients g;
  SAMBA_DEVICE void operator()(Index at) const {
    g.d_u[at] = add(add(g.d_u_skip[at], g.d_u_scan[at]), g.d_u_x[at]);
    g.d_conv[at] = mul(g.d_u[at], silu_slope(g.conv[at]));
  }
};

// Section 3.10: the latest position first, those after the sequence are left out.
struct ConvInputs {
  Mamba1Call call;
  Mamba1Gradients g;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index di = call.channels(), t = i / di, d = i % di;
    const Index l = t % call.tokens;
    float sum = 0.0F;
    for (Index k = 0; k < kConvTaps; ++k) {
      const Index ahead = kConvTaps - 1 - k;
      if (l + ahead < call.tokens) {
        sum = mad(g.conv_weight[d * kConvTaps + k], g.d_conv[(t + ahead) * di + d], sum);
      }
    }
    g.d_in_proj[t * 2 * di + d] = sum;
  }
};

// The terms of the taps, column tap * di + d; a position before the sequence gives a term of zero.
struct TapTerms {
  Mamba1Call call;
  Mamba1Gradients g;
  SAMBA_DEVICE void operator()(Index t, Index j, float& a, float& b) const {
    const Index di = call.channels(), k = j / di, d = j % di;
    const Index back = kConvTaps - 1 - k;
    const float v = t % call.tokens >= back ? call.in_proj[(t - back) * 2 * di + d] : 0.0F;
    a = mul(g.d_conv[t * di + d], v);
    b = 1.0F;
  }
};

// to[d, tap] = from[tap, d]
struct TransposeTaps {
  Index channels;
  const float* from;
  float* to;
  SAMBA_DEVICE void operator()(Index i) const { to[i % channels * kConvTaps + i / channels] = from[i]; }
};

struct BiasTerms {
  Index width;
  const float* d_conv;
  SAMBA_DEVICE void operator()(Index t, Index d, float& a, float& b) const {
    a = d_conv[t * width + d];
    b = 1.0F;
  }
};

class Mamba1Gpu final : public Mamba1Kernels {
 public:
  explicit Mamba1Gpu(Context& context) : context_(context) {}

  void decay_rates(Index n, const float* a_log, float* a) override { for_each(context_, n, DecayRates{a_log, a}); }
  void scan(const Mamba1Call& call) override { launch_scan(context_, call); }

  void gate_backward(const Mamba1Call& call, const Mamba1Gradients& g) override {
    for_each(context_, call.rows() * call.channels(), GateGradient{call, g});
  }
  void scan_backward(const Mamba1Call& call, const Mamba1Gradients& g) override {
    launch_scan_backward(context_, call, g);
  }
  void conv_backward(const Mamba1Call& call, const Mamba1Gradients& g) override {
    const Index di = call.channels(), rows = call.rows();
    for_each(context_, rows * di, JoinInputs{g});
    for_each(context_, rows * di, ConvInputs{call, g});
    const Workspace::Scope scope(context_.workspace());
    float* taps = context_.workspace().floats(kConvTaps * di);
    fold_terms(context_, rows, kConvTaps * di, TapTerms{call, g}, taps);
    for_each(context_, kConvTaps * di, TransposeTaps{di, taps, g.d_conv_weight});
    fold_terms(context_, rows, di, BiasTerms{di, g.d_conv}, g.d_conv_bias);
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<Mamba1Kernels> make_mamba1(Context& context) { return std::make_unique<Mamba1Gpu>(context); }

}  // namespace samba::SAMBA_GPU
