// Loss functions on host arrays (spec 61 sections 1 and 6).
#pragma once

#include <optional>

#include "samba/core/array.h"
#include "samba/kernels/executor.h"

namespace samba {

enum class Reduction { none, sum, mean };

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0.0;
  std::optional<Index> num_items;  // divisor of `sum`
};

// Intermediates of the rows, for whoever compares stages.
struct CrossEntropyIntermediates {
  Array max, denominator, log_denominator;  // (rows,)
  Array shift, exponentials;                // (rows, classes)
};

struct CrossEntropyResult {
  Array row_loss;                 // (rows,), before the reduction
  std::optional<float> loss;      // absent for none
  std::optional<Array> gradient;  // of the logits, (rows, classes); absent for none
};

// logits: float32 (rows, classes). targets: int32 or int64 (rows,), each a class or ignore_index. Refusals in the order
// of spec 61 section 1.
CrossEntropyResult cross_entropy(Executor& executor, ConstArray logits, ConstArray targets,
                                 const CrossEntropyOptions& options = {},
                                 CrossEntropyIntermediates* intermediates = nullptr);

struct ChunkedHeadResult {
  float loss = 0.0F;
  Array d_hidden;  // (rows, width)
  Array d_weight;  // (classes, width)
};

// The fused output head and mean loss, with an order of its own. hidden: (rows, width); weight: (classes, width);
// targets: int32 or int64 (rows,).
ChunkedHeadResult chunked_lm_head_loss(Executor& executor, ConstArray hidden, ConstArray weight, ConstArray targets);

}  // namespace samba
