// Optimizer kernels of the cpu executor: the step is elementwise; the sums of squares put leaves into lanes.
#pragma once

#include <vector>

#include "samba/backends/cpu/context.h"
#include "samba/backends/reference/optimizer.h"
#include "samba/kernels/optimizer.h"

namespace samba::cpu {

struct AdamArrays {
  const float* gradient;
  float *parameters, *exp_avg, *exp_avg_sq;
};

class OptimizerCpu final : public OptimizerKernels {
 public:
  explicit OptimizerCpu(Context& context) : context_(context) {}

  void adam(const AdamScalars& scalars, Index n, const float* gradient, float* parameters, float* exp_avg,
            float* exp_avg_sq) override;
  void sgd(const SgdScalars& scalars, Index n, const float* gradient, float* parameters, float* buffer) override;
  void sums_of_squares(Index tensors, const Index* sizes, const float* gradient, float* sums) override;
  void leaf_sums_of_squares(Index leaf, Index n, const float* gradient, float* sums) override;
  void scale(Index n, float coefficient, float* gradient) override;

 private:
  Context& context_;
  reference::OptimizerReference reference_;  // for subnormal hyperparameters
  // The list of all leaves of sums_of_squares; kept between calls.
  std::vector<Index> first_leaves_;  // of each tensor in partials_
  std::vector<const float*> tensors_;
  std::vector<float> partials_;
};

}  // namespace samba::cpu
