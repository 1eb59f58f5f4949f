// The causal depthwise convolution of 4 taps with SiLU, one element each.
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

struct Conv {
  ConvCall call;
  float *conv, *activated;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index d = i % call.channels;
    const Index row = i / call.channels;
    const Index b = row / call.tokens, l = row % call.tokens;
    float sum = flush(call.bias[d]);
    for (Index k = 0; k < kConvTaps; ++k) {
      const Index p = l - (kConvTaps - 1) + k;
      float v = 0.0F;
      if (p >= 0) {
        v = call.x[(b * call.tokens + p) * call.x_stride + d];
      } else if (call.window != nullptr) {
        v = call.window[(b * call.channels + d) * kConvTaps + kConvTaps + p];
      }
      sum = mad(call.weight[d * kConvTaps + k], v, sum);
    }
    if (conv != nullptr) conv[i] = sum;
    activated[i] = flush(elementary::silu(sum));
  }
};

struct UpdateWindow {
  ConvCall call;
  float* window;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index b = i / call.channels, d = i % call.channels;
    float* slots = window + i * kConvTaps;
    // Ascending: slot j reads slot j + tokens of the old window, which is not yet overwritten.
    for (Index j = 0; j < kConvTaps; ++j) {
      const Index p = call.tokens - kConvTaps + j;
      slots[j] = p >= 0 ? call.x[(b * call.tokens + p) * call.x_stride + d] : slots[kConvTaps + p];
    }
  }
};

class ConvGpu final : public ConvKernels {
 public:
  explicit ConvGpu(Context& context) : context_(context) {}

  void conv_forward(const ConvCall& call, float* conv, float* activated) override {
    for_each(context_, call.batch * call.tokens * call.channels, Conv{call, conv, activated});
  }
  void update_window(const ConvCall& call, float* window) override {
    for_each(context_, call.batch * call.channels, UpdateWindow{call, window});
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<ConvKernels> make_conv(Context& context) { return std::make_unique<ConvGpu>(context); }

}  // namespace samba::SAMBA_GPU
