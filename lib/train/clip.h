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

// Tensors that follow each other in a flat buffer.
struct TensorRun {
  std::size_t first = 0;  // number of its first tensor
  std::size_t end = 0;    // behind its last one
  Index offset = 0;       // of its first element
  Index size = 0;         // elements
};

// gradient (device): the tensors laid end to end, sizes[j] elements each; rescaled in place. max_norm must be > 0. A
// non-finite total is refused (Error(value), class "non_finite", "clip.total_norm") and the gradient is left as it was.
ClipReport clip_grad_norm(Executor& executor, std::span<const Index> sizes, double max_norm, float* gradient);
// The same over the tensors of `runs` alone, as if there were no others: those count neither in the norm nor are they
// rescaled, and the report has an entry for each tensor of the runs, in order.
ClipReport clip_grad_norm(Executor& executor, std::span<const Index> sizes, std::span<const TensorRun> runs,
                          double max_norm, float* gradient);

// From the sums of squares to the coefficient, without touching a gradient.
ClipReport clip_report(std::vector<float> sums_of_squares, double max_norm);

}  // namespace samba
