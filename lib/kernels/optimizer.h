// One elementwise optimizer step (spec 61 section 2 step 5) and the rescaling of a clipped gradient (section 3).
// parameters, gradient, exp_avg, exp_avg_sq: [n]. The scalars are computed once a step by lib/train.
#pragma once

#include "samba/core/array.h"
#include "samba/core/error.h"

namespace samba {

struct AdamScalars {
  float beta1 = 0.0F, beta2 = 0.0F;
  float c1 = 0.0F, c2 = 0.0F;  // 1 - beta
  float step = 0.0F;           // lr / (1 - beta1^t)
  float root_bias2 = 0.0F;     // sqrt(1 - beta2^t)
  float eps = 0.0F;
  float weight_decay = 0.0F;  // 0: no decay step
  float decay = 1.0F;         // 1 - lr * weight_decay
  bool decoupled = true;      // AdamW; false: Adam
  bool maximize = false;
};

struct SgdScalars {
  float negative_lr = 0.0F;
  float momentum = 0.0F;
  float c_dampening = 1.0F;  // 1 - dampening
  float weight_decay = 0.0F;
  bool nesterov = false;
  bool maximize = false;
  bool first = false;  // the momentum buffer is not initialised yet
};

class OptimizerKernels {
 public:
  virtual ~OptimizerKernels() = default;

  virtual void adam(const AdamScalars& scalars, Index n, const float* gradient, float* parameters, float* exp_avg,
                    float* exp_avg_sq) = 0;
  virtual void sgd(const SgdScalars& scalars, Index n, const float* gradient, float* parameters, float* buffer) = 0;

  // sums[j] = dot(g_j, g_j) of the tensors laid end to end, sizes[j] elements each (host arrays). Waits.
  virtual void sums_of_squares(Index tensors, const Index* sizes, const float* gradient, float* sums) = 0;
  // g = F(coefficient * F(g)), in place
  virtual void scale(Index n, float coefficient, float* gradient) = 0;

  // sums[t] = the chain over elements [t * leaf, (t + 1) * leaf) of dot(g, g), of n elements, the last leaf maybe
  // short: the leaves of sums_of_squares for whoever has a part of a tensor. sums: a host array. Waits.
  virtual void leaf_sums_of_squares(Index leaf, Index n, const float* gradient, float* sums) {
    static_cast<void>(leaf), static_cast<void>(n), static_cast<void>(gradient), static_cast<void>(sums);
    refuse_unsupported("this device has no clip norm over several ranks");
  }
};

}  // namespace samba
