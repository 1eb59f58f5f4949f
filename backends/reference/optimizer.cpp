#include "samba/backends/reference/optimizer.h"

#include "samba/backends/reference/clones.h"
#include "samba/kernels/optimizer_elements.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

SAMBA_FMA_CLONES void adam_elements(const AdamScalars& s, Index n, const float* gradient, float* parameters,
                                    float* exp_avg, float* exp_avg_sq) {
  for (Index i = 0; i < n; ++i) adam_element(s, gradient[i], parameters[i], exp_avg[i], exp_avg_sq[i]);
}

SAMBA_FMA_CLONES void sgd_elements(const SgdScalars& s, Index n, const float* gradient, float* parameters,
                                   float* buffer) {
  for (Index i = 0; i < n; ++i) sgd_element(s, gradient[i], parameters[i], buffer == nullptr ? nullptr : buffer + i);
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
  for (Index i = 0; i < n; ++i) gradient[i] = scaled_gradient(coefficient, gradient[i]);
}

}  // namespace samba::reference
