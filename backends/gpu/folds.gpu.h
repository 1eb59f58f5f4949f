// The fold of the matrix product for sums over the rows of a matrix, for the other families.
#pragma once

#include "samba/backends/gpu/leaves.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

// a[p, j] * b[p, j]; b null: ones.
struct ColumnTerms {
  Index width;
  const float *a, *b;
  SAMBA_DEVICE void operator()(Index p, Index j, float& x, float& y) const {
    x = a[p * width + j];
    y = b != nullptr ? b[p * width + j] : 1.0F;
  }
};

}  // namespace

void launch_column_sum(Context& context, Index rows, Index width, const float* v, float* out) {
  fold_terms(context, rows, width, ColumnTerms{width, v, nullptr}, out);
}

void launch_dot(Context& context, Index n, const float* a, const float* b, float* out) {
  fold_terms(context, n, 1, ColumnTerms{1, a, b}, out);
}

}  // namespace samba::SAMBA_GPU
