// ElementwiseKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/elementwise.h"
#include "samba/kernels/extended_gradients.h"

namespace samba::reference {

class ElementwiseReference final : public ElementwiseKernels, public ActivationGradients {
 public:
  void unary(UnaryFunction function, Index n, const float* x, float* out) override;
  void binary(BinaryFunction function, Index n, const float* a, const float* b, float* out) override;
  void clamp(Index n, const float* x, float low, float high, float* out) override;
  void add(Index n, const float* a, const float* b, float* out) override;
  void scale(Index n, float factor, const float* x, float* out) override;
  void flush(Index n, const float* x, float* out) override;
  void softcap_forward(Index n, float cap, const float* x, float* squashed, float* out) override;
  void softcap_backward(Index n, const float* squashed, const float* dy, float* dx) override;
  void relu_forward(Index n, const float* x, float* out) override;
  void relu_backward(Index n, const float* act, const float* dy, float* dx) override;
  void swiglu_forward(Index n, const float* gate, const float* up, float* act, float* gated) override;
  void swiglu_backward(Index n, const float* gate, const float* up, const float* act, const float* d_gated,
                       float* d_act, float* d_up, float* d_gate) override;
  void unary_backward(UnaryFunction function, Index n, const float* x, const float* dy, float* dx) override;
  void zero_padding(Index batch, Index length, Index width, const std::int32_t* lengths, float* x) override;
  void copy_columns(Index rows, Index width, const float* from, Index from_stride, float* to, Index to_stride) override;
  Index first_non_finite(Index n, const float* x) override;
};

}  // namespace samba::reference
