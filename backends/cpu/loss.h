// Losses of the cpu executor: cross-entropy and the chunked head, threads over rows.
#pragma once

#include "samba/backends/cpu/context.h"
#include "samba/kernels/cross_entropy_call.h"

namespace samba::cpu {

struct CrossEntropyRows : CrossEntropyCall {
  bool smoothed;  // eps != 0, also for a subnormal eps
  // 1 - eps, eps, and the target distribution at the target and elsewhere.
  float one_minus, smoothing, at_target, other;
};

// c[i, j] = one serial chain over p of a(i, p) * b[p, j]: no leaves, no tree. b: [terms, n], row-major.
struct SerialProduct {
  Index n, terms;
  const float* a;
  Index a_row, a_term;  // floats from a(i, p) to a(i + 1, p) and to a(i, p + 1)
  const float* b;
  float* c;
};

// From logits to their gradient, in place, and the losses of the rows.
struct ChunkedRows {
  Index rows, classes;
  const std::int32_t* targets;
  float *logits, *row_loss;
};

class LossCpu final : public LossKernels {
 public:
  explicit LossCpu(Context& context) : context_(context) {}

  void cross_entropy(const CrossEntropyShape& shape, const float* logits, const std::int32_t* targets, float divisor,
                     float* row_loss, float* d_logits, const CrossEntropyStages& stages) override;
  float chunked_lm_head_loss(Index rows, Index width, Index classes, const float* hidden, const float* weight,
                             const std::int32_t* targets, float* d_hidden, float* d_weight) override;

 private:
  void multiply(Index rows, const SerialProduct& product);

  Context& context_;
};

}  // namespace samba::cpu
