// Cross-entropy by rows (spec 61 section 1) and the chunked head (section 6). logits: [rows, classes]; targets: int32
// [rows], each a class or ignore_index, checked by the caller.
#pragma once

#include "samba/core/array.h"

namespace samba {

struct CrossEntropyShape {
  Index rows = 0;
  Index classes = 0;
  std::int32_t ignore_index = -100;
  float label_smoothing = 0.0F;
};

// Intermediates for the stages of recorded cases; each may be null. max, denominator, log_denominator: [rows];
// shift, exponentials: [rows, classes].
struct CrossEntropyStages {
  float* max = nullptr;
  float* shift = nullptr;
  float* exponentials = nullptr;
  float* denominator = nullptr;
  float* log_denominator = nullptr;
};

class LossKernels {
 public:
  virtual ~LossKernels() = default;

  // row_loss[rows]; and unless null d_logits[rows, classes], already divided by `divisor`. d_logits may be logits.
  virtual void cross_entropy(const CrossEntropyShape& shape, const float* logits, const std::int32_t* targets,
                             float divisor, float* row_loss, float* d_logits, const CrossEntropyStages& stages) = 0;

  // hidden[rows, width], weight[classes, width]; returns the mean loss. d_hidden and d_weight may both be null.
  virtual float chunked_lm_head_loss(Index rows, Index width, Index classes, const float* hidden, const float* weight,
                                     const std::int32_t* targets, float* d_hidden, float* d_weight) = 0;
};

}  // namespace samba
