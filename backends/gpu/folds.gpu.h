// The fold of the matrix product for sums over rows: one thread a leaf and column, then one thread a column for the
// tree (spec 10 section 3).
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

// partials[t, j] = the chain of leaf t over a[p, j] * b[p, j]; b null: ones.
struct LeafChains {
  Index terms, width, leaf;
  const float *a, *b;
  float* partials;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index t = i / width, j = i % width;
    const Index end = (t + 1) * leaf < terms ? (t + 1) * leaf : terms;
    float acc = 0.0F;
    for (Index p = t * leaf; p < end; ++p) acc = mad(a[p * width + j], b != nullptr ? b[p * width + j] : 1.0F, acc);
    partials[i] = acc;
  }
};

// out[j] = the tree of partials[0 .. leaves, j]
struct FoldLeaves {
  Index leaves, width;
  const float* partials;
  float* out;
  SAMBA_DEVICE void operator()(Index j) const {
    TreeFold tree;
    for (Index t = 0; t < leaves; ++t) tree.push(partials[t * width + j]);
    out[j] = tree.finish();
  }
};

void fold_columns(Context& context, Index terms, Index width, const float* a, const float* b, float* out) {
  const Index leaves = leaf_count(terms);
  if (leaves == 1) return for_each(context, width, LeafChains{terms, width, terms, a, b, out});
  const Workspace::Scope scope(context.workspace());
  float* partials = context.workspace().floats(leaves * width);
  for_each(context, leaves * width, LeafChains{terms, width, leaf_length(terms), a, b, partials});
  for_each(context, width, FoldLeaves{leaves, width, partials, out});
}

}  // namespace

void launch_column_sum(Context& context, Index rows, Index width, const float* v, float* out) {
  fold_columns(context, rows, width, v, nullptr, out);
}

void launch_dot(Context& context, Index n, const float* a, const float* b, float* out) {
  fold_columns(context, n, 1, a, b, out);
}

}  // namespace samba::SAMBA_GPU
