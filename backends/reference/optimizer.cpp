#include "samba/backends/reference/optimizer.h"

#include "samba/backends/reference/clones.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

inline float gradient_value(float g, bool maximize) { return flush(maximize ? from_bits(to_bits(g) ^ kSignBit) : g); }

// Hyperparameters are used as they are: only sums and products pass F (spec 61 section 2 step 5).
SAMBA_FMA_CLONES void adam_elements(const AdamScalars& s, Index n, const float* gradient, float* parameters,
                                    float* exp_avg, float* exp_avg_sq) {
  for (Index i = 0; i < n; ++i) {
    float g = gradient_value(gradient[i], s.maximize);
    float p = flush(parameters[i]);
    float m = flush(exp_avg[i]);
    float v = flush(exp_avg_sq[i]);
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
    parameters[i] = flush(fma(-s.step, div(m, denominator), p));
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
  }
}

SAMBA_FMA_CLONES void sgd_elements(const SgdScalars& s, Index n, const float* gradient, float* parameters,
                                   float* buffer) {
  for (Index i = 0; i < n; ++i) {
    float g = gradient_value(gradient[i], s.maximize);
    const float p = flush(parameters[i]);
    if (s.weight_decay != 0.0F) g = flush(fma(s.weight_decay, p, g));
    if (s.momentum != 0.0F) {
      const float b = s.first ? g : flush(fma(s.c_dampening, g, flush(s.momentum * flush(buffer[i]))));
      g = s.nesterov ? flush(fma(s.momentum, b, g)) : b;
      buffer[i] = b;
    }
    parameters[i] = flush(fma(s.negative_lr, g, p));
  }
}

SAMBA_FMA_CLONES float sum_of_squares(Index n, const float* x) {
  return dot(
      n, [x](Index i) { return x[i]; }, [x](Index i) { return x[i]; });
}

SAMBA_FMA_CLONES float chain_of_squares(Index n, const float* x) {
  float sum = 0.0F;
  for (Index i = 0; i < n; ++i) sum = mad(x[i], x[i], sum);
  return sum;
}

}  // namespace

void OptimizerReference::adam(const AdamScalars& scalars, Index n, const float* gradient, float* parameters,
                              float* exp_avg, float* exp_avg_sq) {
  adam_elements(scalars, n, gradient, parameters, exp_avg, exp_avg_sq);
}

void OptimizerReference::sgd(const SgdScalars& scalars, Index n, const float* gradient, float* parameters,
                             float* buffer) {
  sgd_elements(scalars, n, gradient, parameters, buffer);
}

void OptimizerReference::sums_of_squares(Index tensors, const Index* sizes, const float* gradient, float* sums) {
  for (Index j = 0; j < tensors; ++j) {
    sums[j] = sum_of_squares(sizes[j], gradient);
    gradient += sizes[j];
  }
}

void OptimizerReference::leaf_sums_of_squares(Index leaf, Index n, const float* gradient, float* sums) {
  for (Index first = 0; first < n; first += leaf) {
    *sums++ = chain_of_squares(first + leaf < n ? leaf : n - first, gradient + first);
  }
}

void OptimizerReference::scale(Index n, float coefficient, float* gradient) {
  for (Index i = 0; i < n; ++i) gradient[i] = flush(coefficient * flush(gradient[i]));
}

}  // namespace samba::reference
