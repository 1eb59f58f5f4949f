// Optimizer steps, one element each, and the sums of squares of a clipped step.
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

SAMBA_DEVICE float gradient_value(float g, bool maximize) {
  return flush(maximize ? from_bits(to_bits(g) ^ kSignBit) : g);
}

// Hyperparameters are used as they are: only sums and products pass F (spec 61 section 2 step 5).
struct AdamStep {
  AdamScalars s;
  const float* gradient;
  float *parameters, *exp_avg, *exp_avg_sq;
  SAMBA_DEVICE void operator()(Index i) const {
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
};

struct SgdStep {
  SgdScalars s;
  const float* gradient;
  float *parameters, *buffer;
  SAMBA_DEVICE void operator()(Index i) const {
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
};

struct ScaleGradient {
  float coefficient;
  float* gradient;
  SAMBA_DEVICE void operator()(Index i) const { gradient[i] = flush(coefficient * flush(gradient[i])); }
};

// A chain of squares for each leaf; a thread has one, there are many.
struct LeafSquares {
  Index leaf, n;
  const float* x;
  float* sums;
  SAMBA_DEVICE void operator()(Index t) const {
    const Index end = (t + 1) * leaf < n ? (t + 1) * leaf : n;
    float sum = 0.0F;
    for (Index i = t * leaf; i < end; ++i) sum = mad(x[i], x[i], sum);
    sums[t] = sum;
  }
};

class OptimizerGpu final : public OptimizerKernels {
 public:
  explicit OptimizerGpu(Context& context) : context_(context) {}

  void adam(const AdamScalars& scalars, Index n, const float* gradient, float* parameters, float* exp_avg,
            float* exp_avg_sq) override {
    for_each(context_, n, AdamStep{scalars, gradient, parameters, exp_avg, exp_avg_sq});
  }
  void sgd(const SgdScalars& scalars, Index n, const float* gradient, float* parameters, float* buffer) override {
    for_each(context_, n, SgdStep{scalars, gradient, parameters, buffer});
  }
  void sums_of_squares(Index tensors, const Index* sizes, const float* gradient, float* sums) override {
    const Workspace::Scope scope(context_.workspace());
    float* device = context_.workspace().floats(tensors);
    for (Index j = 0; j < tensors; ++j) {
      launch_dot(context_, sizes[j], gradient, gradient, device + j);
      gradient += sizes[j];
    }
    context_.memory().copy_to_host(sums, device, static_cast<std::size_t>(tensors) * sizeof(float));
  }
  void leaf_sums_of_squares(Index leaf, Index n, const float* gradient, float* sums) override {
    const Index leaves = (n + leaf - 1) / leaf;
    const Workspace::Scope scope(context_.workspace());
    float* device = context_.workspace().floats(leaves);
    for_each(context_, leaves, LeafSquares{leaf, n, gradient, device});
    context_.memory().copy_to_host(sums, device, static_cast<std::size_t>(leaves) * sizeof(float));
  }
  void scale(Index n, float coefficient, float* gradient) override {
    for_each(context_, n, ScaleGradient{coefficient, gradient});
  }

 private:
  Context& context_;
};

}  // namespace

std::unique_ptr<OptimizerKernels> make_optimizer(Context& context) { return std::make_unique<OptimizerGpu>(context); }

}  // namespace samba::SAMBA_GPU
