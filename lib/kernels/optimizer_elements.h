// One element of an optimizer step (spec 61 section 2 step 5), for the executors that go over elements one by one.
// Hyperparameters are used as they are: only sums and products pass F.
#pragma once

#include "samba/kernels/optimizer.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba {

SAMBA_HOST_DEVICE inline float gradient_value(float g, bool maximize) {
  return flush(maximize ? from_bits(to_bits(g) ^ kSignBit) : g);
}

SAMBA_HOST_DEVICE inline void adam_element(const AdamScalars& s, float gradient, float& parameter, float& exp_avg,
                                           float& exp_avg_sq) {
  float g = gradient_value(gradient, s.maximize);
  float p = flush(parameter);
  float m = flush(exp_avg);
  float v = flush(exp_avg_sq);
  if (s.weight_decay != 0.0F) {
    if (s.decoupled) {
      p = flush(s.decay * p);
    } else {
      g = flush(fma(s.weight_decay, p, g));
    }
  }
  m = flush(fma(s.c1, g, flush(s.beta1 * m)));
  v = flush(fma(s.c2, flush(g * g), flush(s.beta2 * v)));
  const float denominator = flush(div(flush(elementary::sqrt(v)), s.root_bias2) + s.eps);
  parameter = flush(fma(-s.step, div(m, denominator), p));
  exp_avg = m;
  exp_avg_sq = v;
}

// `buffer`: the element's momentum, null where momentum is 0.
SAMBA_HOST_DEVICE inline void sgd_element(const SgdScalars& s, float gradient, float& parameter, float* buffer) {
  float g = gradient_value(gradient, s.maximize);
  const float p = flush(parameter);
  if (s.weight_decay != 0.0F) g = flush(fma(s.weight_decay, p, g));
  if (s.momentum != 0.0F) {
    const float b = s.first ? g : flush(fma(s.c_dampening, g, flush(s.momentum * flush(*buffer))));
    g = s.nesterov ? flush(fma(s.momentum, b, g)) : b;
    *buffer = b;
  }
  parameter = flush(fma(s.negative_lr, g, p));
}

SAMBA_HOST_DEVICE inline float scaled_gradient(float coefficient, float g) { return flush(coefficient * flush(g)); }

}  // namespace samba
