// Sums over rows in the fold of the matrix product: one thread a leaf and column, then one thread a column for the tree
// (spec 10 section 3).
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

// partials[t, j] = the chain of leaf t over the products of row p: terms(p, j, a, b) gives them.
template <class Terms>
struct LeafChains {
  Index rows, width, leaf;
  Terms terms;
  float* partials;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index t = i / width, j = i % width;
    const Index end = (t + 1) * leaf < rows ? (t + 1) * leaf : rows;
    float acc = 0.0F;
    for (Index p = t * leaf; p < end; ++p) {
      float a, b;
      terms(p, j, a, b);
      acc = mad(a, b, acc);
    }
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

// out[j] = sum over the rows of the products that `terms` gives
template <class Terms>
void fold_terms(Context& context, Index rows, Index width, const Terms& terms, float* out) {
  const Index leaves = leaf_count(rows);
  if (leaves == 1) return for_each(context, width, LeafChains<Terms>{rows, width, rows, terms, out});
  const Workspace::Scope scope(context.workspace());
  float* partials = context.workspace().floats(leaves * width);
  for_each(context, leaves * width, LeafChains<Terms>{rows, width, leaf_length(rows), terms, partials});
  for_each(context, width, FoldLeaves{leaves, width, partials, out});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
