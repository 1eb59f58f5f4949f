// LossKernels of the reference executor: plain scalar loops, straight from the spec.
#pragma once

#include "samba/kernels/loss.h"

namespace samba::reference {

class LossReference final : public LossKernels {
 public:
  void cross_entropy(const CrossEntropyShape& shape, const float* logits, const std::int32_t* targets, float divisor,
                     float* row_loss, float* d_logits, const CrossEntropyStages& stages) override;
  float chunked_lm_head_loss(Index rows, Index width, Index classes, const float* hidden, const float* weight,
                             const std::int32_t* targets, float* d_hidden, float* d_weight) override;
};

}  // namespace samba::reference
