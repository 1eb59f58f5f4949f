// OptimizerKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/optimizer.h"

namespace samba::reference {

class OptimizerReference final : public OptimizerKernels {
 public:
  void adam(const AdamScalars& scalars, Index n, const float* gradient, float* parameters, float* exp_avg,
            float* exp_avg_sq) override;
  void sgd(const SgdScalars& scalars, Index n, const float* gradient, float* parameters, float* buffer) override;
  void sums_of_squares(Index tensors, const Index* sizes, const float* gradient, float* sums) override;
  void leaf_sums_of_squares(Index leaf, Index n, const float* gradient, float* sums) override;
  void scale(Index n, float coefficient, float* gradient) override;
};

}  // namespace samba::reference
