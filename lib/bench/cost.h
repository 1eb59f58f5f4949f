// What a computation needs at least: floating-point operations, and bytes that must come from memory.
//
// Matrix products count two operations a multiply-add, attention only the visible pairs, a selective scan its recurrent
// form (state update and read-out, 6 operations an element of the state); norms and elementwise work count nothing.
#pragma once

#include "samba/bench/machine.h"
#include "samba/model/stack_config.h"

namespace samba::bench {

struct Cost {
  double flops = 0.0;
  double bytes = 0.0;
  double working_set = 0.0;  // bytes that are read over and over; 0: more than any cache holds

  double intensity() const { return bytes > 0.0 ? flops / bytes : 0.0; }  // operations a byte
};

Cost operator+(Cost a, Cost b);         // the larger working set
Cost operator*(Cost a, double factor);  // the same working set

// Seconds that the machine needs at least, and which limit that is.
double least_seconds(const Cost& cost, const MachineLimits& limits);
const char* limiting(const Cost& cost, const MachineLimits& limits);  // "FMA peak", "read bandwidth", "cache bandwidth"

// y[m, n] = a[m, k] b: both operands are read and the result written once.
Cost gemm_cost(Index m, Index n, Index k);

// One layer over `length` tokens behind `position` others, weights read once.
Cost layer_cost(const StackConfig& config, const LayerConfig& layer, Index position, Index length);
// A whole stack: the logits of the last token alone.
Cost prefill_cost(const StackConfig& config, Index length);
Cost decode_cost(const StackConfig& config, Index position);  // one token behind `position` others
// Forward, backward (twice the forward), the gradient and the moments of AdamW.
Cost training_cost(const StackConfig& config, Index rows, Index length);

}  // namespace samba::bench
