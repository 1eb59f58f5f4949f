// Norms (spec 10 sections 6 and 7; the Mamba norm of spec 40 section 3.1). x, y, dy, dx: [rows, width]; weight:
// [width].
#pragma once

#include "samba/core/array.h"

namespace samba {

class NormKernels {
 public:
  virtual ~NormKernels() = default;

  // RMSNorm: one serial chain of squares a row. `offset`: the scale is 1 + w. sumsq, rstd: [rows], each may be null.
  virtual void rms_norm_forward(Index rows, Index width, float eps, bool offset, const float* x, const float* weight,
                                float* y, float* sumsq, float* rstd) = 0;
  // dx[rows, width]; d_weight[width] (leaves of 128 rows, tree); dot[rows], the fold c, may be null.
  // dx may be dy.
  virtual void rms_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                 const float* dy, float* dx, float* d_weight, float* dot) = 0;

  // The transformer block's layer norm; bias may be null. sumsq[rows]: squared deviations, may be null.
  virtual void layer_norm_block(Index rows, Index width, float eps, const float* x, const float* weight,
                                const float* bias, float* y, float* sumsq) = 0;

  // The free functions of spec 10 section 7.2; weight and bias (and their gradients) may be null.
  virtual void layer_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight,
                                  const float* bias, float* y) = 0;
  virtual void layer_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                   const float* dy, float* dx, float* d_weight, float* d_bias) = 0;

  // The Mamba blocks' norm: 32 lanes and a pairwise tree. eps is 1e-5 there.
  virtual void mamba_norm_forward(Index rows, Index width, float eps, const float* x, const float* weight, float* y,
                                  float* sumsq) = 0;
  // Spec 41 section 3.16: dx = rs * (dy*w - x*cor) + residual_gradient; d_weight is a column sum over the rows.
  // dx may be residual_gradient.
  virtual void mamba_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                   const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                                   float* d_weight) = 0;
  // RMSB of spec 32 section 2, the Mamba-1 and Mamba-2 blocks' own rounding of the same gradient:
  //   dv = (rs * (dy*w)) - ((div(rs^3, width) * x) * c), dx = residual_gradient + dv; d_weight as above.
  // residual_gradient null: dx = dv. dot[rows], the chain c, may be null. dx may be dy or residual_gradient.
  virtual void mamba12_norm_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                     const float* sumsq, const float* dy, const float* residual_gradient, float* dx,
                                     float* d_weight, float* dot) = 0;
};

}  // namespace samba
