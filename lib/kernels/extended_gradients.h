// Gradients that stacks beside the reference's need (docs/spec-extensions.md section 1): an offer that the kernels of
// some executors make beside their own interface (a dynamic_cast finds it).
#pragma once

#include "samba/kernels/attention.h"
#include "samba/kernels/elementwise.h"
#include "samba/kernels/mamba3.h"
#include "samba/kernels/norm.h"

namespace samba {

// Of ElementwiseKernels.
class ActivationGradients {
 public:
  virtual ~ActivationGradients() = default;
  // dx = F(F(dy) * slope(x)) of gelu or gelu_tanh; dx may be dy                                        section 1.2
  virtual void unary_backward(UnaryFunction function, Index n, const float* x, const float* dy, float* dx) = 0;
};

// Of NormKernels.
class NormGradients {
 public:
  virtual ~NormGradients() = default;

  // The norm of every head of a row with one weight[width], `offset` as in the forward; x, dy, dx: [rows, heads,
  // width]. d_weight: per row a serial sum over the heads, then leaves of 128 rows and the tree; with one head that of
  // rms_norm_backward. dx may be dy.                                                                  section 1.4
  virtual void rms_norm_heads_backward(Index rows, Index heads, Index width, float eps, bool offset, const float* x,
                                       const float* weight, const float* dy, float* dx, float* d_weight) = 0;

  // Of layer_norm_block. d_weight and d_bias[width]: leaves of 128 rows, tree; d_bias may be null, dx may be dy.
  //                                                                                                   section 1.3
  virtual void layer_norm_block_backward(Index rows, Index width, float eps, const float* x, const float* weight,
                                         const float* dy, float* dx, float* d_weight, float* d_bias) = 0;
};

// Of AttentionKernels: attention_backward takes a softcap, whose slope comes between d_masked and d_scores.
//                                                                                                     section 1.5
class SoftcapGradients {
 public:
  virtual ~SoftcapGradients() = default;
};

// Of Mamba3Kernels: scan_backward of samba.fp32.v2, with the same inputs and outputs                       section 2
class Mamba3Products {
 public:
  virtual ~Mamba3Products() = default;
  virtual void scan_backward_products(const Mamba3Call& call, const Mamba3Gradients& gradients) = 0;
};

}  // namespace samba
