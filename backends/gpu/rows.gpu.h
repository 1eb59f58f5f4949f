// Products of few rows with weights b[k, n], as decoding has them, several of one a side by side: one thread for some
// columns of a leaf of one product, so that the weights are read once, in long runs and several steps ahead. Behind
// them one thread a cell takes the tree of its leaves and what follows the product (linear_groups.h).
#pragma once

#include "samba/backends/gpu/leaves.gpu.h"
#include "samba/backends/gpu/swiglu.gpu.h"
#include "samba/kernels/linear_groups.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kRowThreads = 128;
inline constexpr Index kMostRows = 8;
inline constexpr int kAhead = 8;
inline constexpr int kMostTerms = static_cast<int>(LinearGroups::kMostTerms);

// c[m, n] of one product. partials[t, i, j]: its leaves; of one leaf they lie in c.
struct RowTerm {
  Index n;
  const float* b;
  float *c, *partials;
  const float *bias, *residual;  // null: none
};

struct RowProducts {
  Index m, k;
  const float* a;
  int count;
  RowTerm terms[kMostTerms];

  // The arguments of a kernel have no addresses: a term is chosen, not indexed.
  SAMBA_DEVICE RowTerm term(int which) const {
    RowTerm chosen = terms[0];
    SAMBA_UNROLL
    for (int t = 1; t < kMostTerms; ++t) {
      if (t == which) chosen = terms[t];
    }
    return chosen;
  }
};

// Blocks: columns by kRowThreads * kColumns, leaves, products.
template <int kRows, int kColumns>
SAMBA_KERNEL(kRowThreads)
row_leaves(RowProducts g, Index leaf) {
  using Run = FloatRun<kColumns>;
  SAMBA_SHARED(float, x, kRows* kRowThreads);
  const RowTerm term = g.term(static_cast<int>(block_z()));
  if (static_cast<Index>(block_x()) * kRowThreads * kColumns >= term.n) return;
  const Index j = global_thread() * kColumns;
  const Index first = static_cast<Index>(block_y()) * leaf;
  const Index end = first + leaf < g.k ? first + leaf : g.k;
  float acc[kRows * kColumns];
  SAMBA_UNROLL
  for (int q = 0; q < kRows * kColumns; ++q) acc[q] = 0.0F;
  for (Index p = first; p < end; p += kRowThreads) {
    const Index here = p + thread_index();
    for (int i = 0; i < kRows; ++i) {
      x[i * kRowThreads + static_cast<int>(thread_index())] = here < end && i < g.m ? flush(g.a[i * g.k + here]) : 0.0F;
    }
    barrier();
    const int length = end - p < kRowThreads ? static_cast<int>(end - p) : kRowThreads;
    const float* column = term.b + p * term.n + j;
    const auto step = [&](const Run& run, int d) {
      SAMBA_UNROLL
      for (int c = 0; c < kColumns; ++c) {
        const float b = flush(run.values[c]);
        SAMBA_UNROLL
        for (int i = 0; i < kRows; ++i) {
          acc[i * kColumns + c] = flush(fma(x[i * kRowThreads + d], b, acc[i * kColumns + c]));
        }
      }
    };
    if (j < term.n) {
      int d = 0;
      for (; d + kAhead <= length; d += kAhead) {
        Run runs[kAhead];
        SAMBA_UNROLL
        for (int q = 0; q < kAhead; ++q) runs[q] = *reinterpret_cast<const Run*>(column + (d + q) * term.n);
        SAMBA_UNROLL
        for (int q = 0; q < kAhead; ++q) step(runs[q], d + q);
      }
      for (; d < length; ++d) step(*reinterpret_cast<const Run*>(column + d * term.n), d);
    }
    barrier();
  }
  if (j >= term.n) return;
  for (int i = 0; i < kRows && i < g.m; ++i) {
    for (int c = 0; c < kColumns; ++c) term.partials[(block_y() * g.m + i) * term.n + j + c] = acc[i * kColumns + c];
  }
}

// Cell i of a product from its leaves, with bias and residual; into c.
SAMBA_DEVICE float finish_cell(const RowTerm& term, Index m, Index leaves, Index i) {
  float value = term.partials[i];
  if (leaves > 1) {
    TreeFold tree;
    for (Index t = 0; t < leaves; ++t) tree.push(term.partials[t * m * term.n + i]);
    value = tree.finish();
  }
  if (term.bias != nullptr) value = add(value, term.bias[i % term.n]);
  if (term.residual != nullptr) value = add(term.residual[i], value);
  term.c[i] = value;
  return value;
}

// The cells of all products, one behind the other.
struct FinishRows {
  RowProducts g;
  Index leaves;
  SAMBA_DEVICE void operator()(Index i) const {
    int which = 0;
    Index first = 0, end = g.m * g.terms[0].n;  // the cells of this one
    SAMBA_UNROLL
    for (int t = 1; t < kMostTerms; ++t) {
      if (t < g.count && i >= end) {
        which = t;
        first = end;
        end += g.m * g.terms[t].n;
      }
    }
    finish_cell(g.term(which), g.m, leaves, i - first);
  }
};

// Cell i of the first two products, gate and up, and of what swiglu makes of them.
struct FinishSwiglu {
  RowProducts g;
  Index leaves;
  float *act, *gated;
  SAMBA_DEVICE void operator()(Index i) const {
    const float gate = finish_cell(g.terms[0], g.m, leaves, i), up = finish_cell(g.terms[1], g.m, leaves, i);
    swiglu(gate, up, act[i], gated[i]);
  }
};

template <int kRows>
void launch_row_leaves(Context& context, const RowProducts& g, Index leaves) {
  Index widest = 0, fours = 0;
  bool aligned = true;
  for (const RowTerm& term : std::span(g.terms, static_cast<std::size_t>(g.count))) {
    widest = term.n > widest ? term.n : widest;
    fours += term.n / (4 * kRowThreads);
    aligned = aligned && term.n % 4 == 0 && reinterpret_cast<std::uintptr_t>(term.b) % sizeof(FloatRun<4>) == 0;
  }
  const auto columns = [&](Index span) { return static_cast<unsigned>((widest + span - 1) / span); };
  Grid grid{columns(kRowThreads), static_cast<unsigned>(leaves), static_cast<unsigned>(g.count)};
  if (aligned && fours * leaves >= context.multiprocessors()) {
    grid.x = columns(4 * kRowThreads);
    return launch(context, grid, kRowThreads, row_leaves<kRows, 4>, g, leaf_length(g.k));
  }
  launch(context, grid, kRowThreads, row_leaves<kRows, 1>, g, leaf_length(g.k));
}

// The leaves of products of at most kMostRows rows. Fills the places of the partials from the workspace.
void launch_rows(Context& context, RowProducts& g, Index leaves) {
  for (RowTerm& term : std::span(g.terms, static_cast<std::size_t>(g.count))) {
    term.partials = leaves == 1 ? term.c : context.workspace().floats(leaves * g.m * term.n);
  }
  if (g.m == 1) return launch_row_leaves<1>(context, g, leaves);
  if (g.m <= 2) return launch_row_leaves<2>(context, g, leaves);
  if (g.m <= 4) return launch_row_leaves<4>(context, g, leaves);
  launch_row_leaves<kMostRows>(context, g, leaves);
}

void launch_finish(Context& context, const RowProducts& g, Index leaves) {
  Index cells = 0;
  bool follows = leaves > 1;
  for (const RowTerm& term : std::span(g.terms, static_cast<std::size_t>(g.count))) {
    cells += g.m * term.n;
    follows = follows || term.bias != nullptr || term.residual != nullptr;
  }
  if (follows) for_each(context, cells, FinishRows{g, leaves});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
