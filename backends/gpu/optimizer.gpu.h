// Optimizer steps, one element each, and the sums of squares of a clipped step.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/kernels/optimizer_elements.h"

namespace samba::SAMBA_GPU {

namespace {

struct AdamStep {
  AdamScalars s;
  const float* gradient;
  float *parameters, *exp_avg, *exp_avg_sq;
  SAMBA_DEVICE void operator()(Index i) const {
    adam_element(s, gradient[i], parameters[i], exp_avg[i], exp_avg_sq[i]);
  }
};

struct SgdStep {
  SgdScalars s;
  const float* gradient;
  float *parameters, *buffer;
  SAMBA_DEVICE void operator()(Index i) const {
    sgd_element(s, gradient[i], parameters[i], buffer == nullptr ? nullptr : buffer + i);
  }
};

struct ScaleGradient {
  float coefficient;
  float* gradient;
  SAMBA_DEVICE void operator()(Index i) const { gradient[i] = scaled_gradient(coefficient, gradient[i]); }
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
