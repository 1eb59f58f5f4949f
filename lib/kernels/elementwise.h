// Elementwise kernels. All arrays have n float32 elements; `out` may be one of the inputs.
#pragma once

#include "samba/core/array.h"

namespace samba {

enum class UnaryFunction {
  exp,
  log,
  log1p,
  sqrt,
  rsqrt,
  sigmoid,
  silu,
  softplus,
  sin,
  cos,
  tanh,
  erf,
  gelu,
  gelu_tanh
};
enum class BinaryFunction { add, mul, div, max, pow };

class ElementwiseKernels {
 public:
  virtual ~ElementwiseKernels() = default;

  // The functions of spec 10 section 2 as they are defined there (no flush beyond the one each has).
  virtual void unary(UnaryFunction function, Index n, const float* x, float* out) = 0;
  // add, mul: F(F(a) op F(b)).
  virtual void binary(BinaryFunction function, Index n, const float* a, const float* b, float* out) = 0;
  virtual void clamp(Index n, const float* x, float low, float high, float* out) = 0;

  // out = F(F(a) + F(b))
  virtual void add(Index n, const float* a, const float* b, float* out) = 0;
  // out = F(F(x) * F(factor))
  virtual void scale(Index n, float factor, const float* x, float* out) = 0;
  // out = F(x)
  virtual void flush(Index n, const float* x, float* out) = 0;

  // out = F(x) > 0 ? F(x) : +0                                                  spec 10 section 4.1
  virtual void relu_forward(Index n, const float* x, float* out) = 0;
  // dx = F(act) > 0 ? F(dy) : +0, act being what relu_forward gave              spec 50 section B3 step 6
  virtual void relu_backward(Index n, const float* act, const float* dy, float* dx) = 0;

  // t = F(tanh(div(x, cap))); out = F(t * F(cap)); squashed = t, or null     docs/stack_arithmetic.md
  virtual void softcap_forward(Index n, float cap, const float* x, float* squashed, float* out) = 0;
  // dx = F(F(dy) * F(1 - F(squashed * squashed))); dx may be dy
  virtual void softcap_backward(Index n, const float* squashed, const float* dy, float* dx) = 0;

  // act = F(silu(F(gate))); gated = F(act * F(up))                              spec 20 section 3 step 17
  virtual void swiglu_forward(Index n, const float* gate, const float* up, float* act, float* gated) = 0;
  // d_act = F(d_gated * up); d_up = F(d_gated * act); d_gate by spec 21 section 5 steps 2 and 3
  virtual void swiglu_backward(Index n, const float* gate, const float* up, const float* act, const float* d_gated,
                               float* d_act, float* d_up, float* d_gate) = 0;

  // x (batch, length, width): +0.0 at positions >= lengths[b] (int32, device).
  virtual void zero_padding(Index batch, Index length, Index width, const std::int32_t* lengths, float* x) = 0;

  // to[row, 0..width) = from[row, 0..width), bits untouched; rows lie from_stride and to_stride floats apart.
  virtual void copy_columns(Index rows, Index width, const float* from, Index from_stride, float* to,
                            Index to_stride) = 0;

  // The flat index of the first NaN or infinity, tested by bits; -1 when all are finite. Waits for the result.
  virtual Index first_non_finite(Index n, const float* x) = 0;
};

}  // namespace samba
