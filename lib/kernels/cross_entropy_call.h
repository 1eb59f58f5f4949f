// The arguments of LossKernels::cross_entropy as one value, for executors that hand them to kernels.
#pragma once

#include "samba/kernels/loss.h"

namespace samba {

struct CrossEntropyCall {
  CrossEntropyShape shape;
  const float* logits;
  const std::int32_t* targets;
  float divisor;
  float *row_loss, *d_logits;
  CrossEntropyStages stages;
};

}  // namespace samba
