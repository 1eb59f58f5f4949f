// The causal depthwise convolution of 4 taps with SiLU that Mamba-1 and Mamba-2 share (spec 30 S7, S8; spec 31 S6, S7).
#pragma once

#include "samba/core/array.h"

namespace samba {

inline constexpr Index kConvTaps = 4;

struct ConvCall {
  Index batch = 0;
  Index tokens = 0;  // L >= 1
  Index channels = 0;

  const float* x = nullptr;       // [batch * tokens, channels], rows x_stride floats apart
  Index x_stride = 0;             // the columns may be cut out of a wider matrix
  const float* weight = nullptr;  // [channels, 4], oldest tap first
  const float* bias = nullptr;    // [channels]
  const float* window = nullptr;  // (batch, channels, 4), the last four inputs, oldest first; null: zeros
};

class ConvKernels {
 public:
  virtual ~ConvKernels() = default;

  // conv = the chain bias, tap 0, ..., tap 3; activated = F(silu(conv)). Both dense [batch * tokens, channels]; conv
  // may be null.
  virtual void conv_forward(const ConvCall& call, float* conv, float* activated) = 0;

  // window (batch, channels, 4) of the call's next one, from call.x and the window itself: copies of bits, also for
  // tokens < 4. call.window is not read, nor are weight and bias.
  virtual void update_window(const ConvCall& call, float* window) = 0;
};

}  // namespace samba
