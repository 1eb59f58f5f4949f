// Norms of the cpu executor. Serial folds over a row run with one row in each lane; the Mamba norm's and the free layer
// norm's 32 lanes are lanes of vectors. Threads split the rows.
#pragma once

#include <algorithm>

#include "samba/backends/cpu/context.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/linear.h"
#include "samba/kernels/norm.h"
#include "samba/numerics/float32.h"

namespace samba::cpu {

// eps and, for a subnormal one, its value times 2^64 (else 0): DAZ would read a subnormal eps as zero.
struct Epsilon {
  float value;
  float scaled;
};

inline Epsilon epsilon(float eps) { return {eps, eps > 0.0F && eps < kMinNormal ? eps * 0x1p64F : 0.0F}; }

// The rows a thread should have to be worth its start: 8192 floats, in units of 16 rows that fill the lanes of every
// target.
inline Index row_grain(Index width) {
  constexpr Index kGrain = 8192, kRowUnit = 16;
  return std::max(kRowUnit, kGrain / width / kRowUnit * kRowUnit);
}

// What the row kernels take; a pointer that a norm does not use is null.
struct NormRows {
  Index width;
  Epsilon eps;
  const float *x, *weight, *bias;
  float* y;
  float *sumsq, *rstd;  // each may be null
  bool offset;
};

struct NormGradientRows {
  Index width;
  Epsilon eps;
  const float *x, *weight, *dy, *sumsq, *residual_gradient;
  float *dx, *weight_rows, *dot;
};

struct HeadSums {
  Index heads, width;
  const float* of_heads;  // [rows, heads, width]
  float* sums;            // [rows, width]
};

struct LayerNormWeights {
  Index rows, width, block;  // rows of a block
  const float *normed, *dy;
  float *d_weight, *d_bias;  // each may be null
};

class NormCpu final : public NormKernels, public NormGradients {
 public:
  // `linear` folds the rows of weight gradients.
  NormCpu(Context& context, LinearKernels& linear) : context_(context), linear_(linear) {}

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

 private:
  float* row_scratch(Index count);  // kept between calls

  Context& context_;
  LinearKernels& linear_;
  HostMemory memory_;
  DeviceArray<float> scratch_;
};

}  // namespace samba::cpu
