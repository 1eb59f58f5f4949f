// Gradient-norm clipping: a norm a tensor, then the norm of the norms (spec 61 section 3).
#pragma once

#include <span>
#include <vector>

#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

struct ClipReport {
  std::vector<float> sums_of_squares;  // ss_j, one a tensor
  std::vector<float> norms;            // sqrt(ss_j)
  float total_sum = 0.0F;              // S
  float total_norm = 0.0F;             // sqrt(S), before clipping
  float coefficient = 1.0F;
};

// gradient (device): the tensors laid end to end, sizes[j] elements each; rescaled in place. max_norm must be > 0. A
// non-finite total is refused (Error(value), class "non_finite", "clip.total_norm") and the gradient is left as it was.
ClipReport clip_grad_norm(Executor& executor, std::span<const Index> sizes, double max_norm, float* gradient);

// From the sums of squares to the coefficient, without touching a gradient.
ClipReport clip_report(std::vector<float> sums_of_squares, double max_norm);

}  // namespace samba
