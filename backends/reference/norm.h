// NormKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/norm.h"

namespace samba::reference {

class NormReference final : public NormKernels, public NormGradients {
 public:
  void rms_norm_forward(Index rows, Index width, float eps, bool offset, const float* x, const float* weight, float* y,
                        float* sumsq, float* rstd) override;
  void rms_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight, const float* dy,
                         float* dx, float* d_weight, float* dot) override;
  void rms_norm_heads_backward(Index rows, Index heads, Index width, float eps, bool offset, const float* x,
                               const float* weight, const float* dy, float* dx, float* d_weight) override;
  void layer_norm_block(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias,
                        float* y, float* sumsq) override;
  void layer_norm_block_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                 const float* dy, float* dx, float* d_weight, float* d_bias) override;
  void layer_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight, const float* bias,
                          float* y) override;
  void layer_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight, const float* dy,
                           float* dx, float* d_weight, float* d_bias) override;
  void mamba_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight, float* y,
                          float* sumsq) override;
  void mamba_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight, const float* sumsq,
                           const float* dy, const float* residual_gradient, float* dx, float* d_weight) override;
  void mamba12_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                             const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                             float* d_weight, float* dot) override;
};

}  // namespace samba::reference
