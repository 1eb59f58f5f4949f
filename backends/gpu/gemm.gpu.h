// The matrix product "gemm fp32 v1" (spec 10 section 3) in tiles.
//
// A block computes a tile of c; each of its threads a few neighbouring cells, in registers. The terms come in slices of
// kDepth through shared memory, a slice never crosses a leaf. A leaf is one chain of fused steps a cell; its partial
// joins the tree, a binary counter of partials.
//
// Flushes: operands are flushed when they are loaded. While a slice is loaded, the smallest exponents of its nonzero
// elements are taken (exponents.gpu.h). From the first slice of a leaf on that is not safe, the leaf goes on flushing.
#pragma once

#include "samba/backends/gpu/exponents.gpu.h"
#include "samba/backends/gpu/families.h"
#include "samba/kernels/linear.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kDepth = 16;

struct Product {
  Index m, n, k;
  const float *a, *b;
  float* c;
};

// Where the elements lie: a(i, p) and b(p, j). `along`: neighbours in memory differ in the term p.
template <Layout kLayout>
struct Operands {
  static constexpr bool kTermsOfA = kLayout != Layout::tn;  // rows of a hold terms
  static constexpr bool kTermsOfB = kLayout == Layout::nt;
  SAMBA_DEVICE static float a(const Product& g, Index i, Index p) { return g.a[kTermsOfA ? i * g.k + p : p * g.m + i]; }
  SAMBA_DEVICE static float b(const Product& g, Index p, Index j) { return g.b[kTermsOfB ? j * g.k + p : p * g.n + j]; }
};

// Cells of one thread: kRows x kColumns.
template <int kRows, int kColumns>
struct Cells {
  float acc[kRows * kColumns];
  float levels[kMaxTreeDepth][kRows * kColumns];

  SAMBA_DEVICE void clear() {
    SAMBA_UNROLL
    for (int q = 0; q < kRows * kColumns; ++q) acc[q] = 0.0F;
  }

  // `length` terms of a slice: a at rows[d * row_pitch + i], b at columns[d * column_pitch + j].
  template <bool kFlush>
  SAMBA_DEVICE void steps(int length, const float* rows, int row_pitch, const float* columns, int column_pitch) {
    for (int d = 0; d < length; ++d) {
      float a[kRows], b[kColumns];
      SAMBA_UNROLL
      for (int i = 0; i < kRows; ++i) a[i] = rows[d * row_pitch + i];
      SAMBA_UNROLL
      for (int j = 0; j < kColumns; ++j) b[j] = columns[d * column_pitch + j];
      SAMBA_UNROLL
      for (int i = 0; i < kRows; ++i) {
        SAMBA_UNROLL
        for (int j = 0; j < kColumns; ++j) {
          const float sum = fma(a[i], b[j], acc[i * kColumns + j]);
          acc[i * kColumns + j] = kFlush ? flush(sum) : sum;
        }
      }
    }
  }

  // acc becomes leaf `leaf` of the tree.
  SAMBA_DEVICE void push(Index leaf) {
    int level = 0;
    for (Index rest = leaf; (rest & 1) != 0; rest >>= 1, ++level) {
      SAMBA_UNROLL
      for (int q = 0; q < kRows * kColumns; ++q) acc[q] = flush(levels[level][q] + acc[q]);
    }
    SAMBA_UNROLL
    for (int q = 0; q < kRows * kColumns; ++q) levels[level][q] = acc[q];
  }

  // acc = the tree of `leaves` leaves
  SAMBA_DEVICE void fold(Index leaves) {
    int level = 0;
    while (((leaves >> level) & 1) == 0) ++level;
    SAMBA_UNROLL
    for (int q = 0; q < kRows * kColumns; ++q) acc[q] = levels[level][q];
    for (++level; (leaves >> level) != 0; ++level) {
      if (((leaves >> level) & 1) == 0) continue;
      SAMBA_UNROLL
      for (int q = 0; q < kRows * kColumns; ++q) acc[q] = flush(levels[level][q] + acc[q]);
    }
  }
};

// Loads elements (d, x), d < length, x < kSpan, of a slice to slice[d * kPitch + x], zeros where x >= limit. Returns
// the smallest exponent of this thread's. load(d, x) gives an element.
template <int kSpan, int kPitch, bool kTerms, class Load>
SAMBA_DEVICE int load_slice(int length, Index limit, float* slice, Load&& load) {
  int smallest = kNoExponent;
  const int threads = static_cast<int>(block_threads());
  for (int e = static_cast<int>(thread_index()); e < kDepth * kSpan; e += threads) {
    const int d = kTerms ? e % kDepth : e / kSpan;
    const int x = kTerms ? e / kDepth : e % kSpan;
    if (d >= length) continue;
    const float value = x < limit ? flush(load(d, x)) : 0.0F;
    slice[d * kPitch + x] = value;
    smallest = smaller_exponent(smallest, value);
  }
  return smallest;
}

template <Layout kLayout, int kTileM, int kTileN, int kRows, int kColumns>
SAMBA_KERNEL(kTileM* kTileN / (kRows * kColumns))
gemm_tiles(Product g) {
  using At = Operands<kLayout>;
  constexpr int kPitchA = kTileM + 4, kPitchB = kTileN + 4;
  constexpr int kThreadColumns = kTileN / kColumns;
  SAMBA_SHARED(float, slice_a, kDepth* kPitchA);
  SAMBA_SHARED(float, slice_b, kDepth* kPitchB);
  SAMBA_SHARED(int, smallest, 4);  // of a and of b, for this slice and the next

  const Index first_row = static_cast<Index>(block_y()) * kTileM, first_column = static_cast<Index>(block_x()) * kTileN;
  const int thread = static_cast<int>(thread_index());
  const int row = thread / kThreadColumns * kRows, column = thread % kThreadColumns * kColumns;
  const Index leaf = leaf_length(g.k);
  if (thread < 4) smallest[thread] = kNoExponent;
  barrier();

  Cells<kRows, kColumns> cells;
  int turn = 0;
  Index leaves = 0;
  for (Index first = 0; first < g.k; first += leaf, ++leaves) {
    const Index end = first + leaf < g.k ? first + leaf : g.k;
    cells.clear();
    bool flushing = false;
    for (Index p = first; p < end; p += kDepth, turn ^= 2) {
      const int length = end - p < kDepth ? static_cast<int>(end - p) : kDepth;
      const int of_a = load_slice<kTileM, kPitchA, At::kTermsOfA>(
          length, g.m - first_row, slice_a, [&](int d, int x) { return At::a(g, first_row + x, p + d); });
      const int of_b = load_slice<kTileN, kPitchB, At::kTermsOfB>(
          length, g.n - first_column, slice_b, [&](int d, int x) { return At::b(g, p + d, first_column + x); });
      if (of_a < kNoExponent) atomic_min(smallest + turn, of_a);
      if (of_b < kNoExponent) atomic_min(smallest + turn + 1, of_b);
      barrier();
      flushing = flushing || smallest[turn] + smallest[turn + 1] < kSafeExponents;
      if (thread < 2) smallest[(turn ^ 2) + thread] = kNoExponent;
      if (flushing) {
        cells.template steps<true>(length, slice_a + row, kPitchA, slice_b + column, kPitchB);
      } else {
        cells.template steps<false>(length, slice_a + row, kPitchA, slice_b + column, kPitchB);
      }
      barrier();
    }
    cells.push(leaves);
  }
  cells.fold(leaves);
  SAMBA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    SAMBA_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const Index at_row = first_row + row + i, at_column = first_column + column + j;
      if (at_row < g.m && at_column < g.n) g.c[at_row * g.n + at_column] = cells.acc[i * kColumns + j];
    }
  }
}

template <Layout kLayout, int kTileM, int kTileN, int kRows, int kColumns>
void launch_tiles(Context& context, const Product& g) {
  // Rows of tiles beyond the largest grid go in further launches.
  constexpr Index kMostTileRows = 65535;
  for (Index first = 0; first < g.m; first += kMostTileRows * kTileM) {
    Product part = g;
    part.m = g.m - first < kMostTileRows * kTileM ? g.m - first : kMostTileRows * kTileM;
    part.a += first * (kLayout == Layout::tn ? 1 : g.k);
    part.c += first * g.n;
    const Grid grid{static_cast<unsigned>((g.n + kTileN - 1) / kTileN),
                    static_cast<unsigned>((part.m + kTileM - 1) / kTileM)};
    launch(context, grid, kTileM * kTileN / (kRows * kColumns), gemm_tiles<kLayout, kTileM, kTileN, kRows, kColumns>,
           part);
  }
}

template <Layout kLayout>
void launch_product(Context& context, const Product& g) {
  if (g.m <= 16) return launch_tiles<kLayout, 16, 64, 2, 4>(context, g);
  launch_tiles<kLayout, 64, 64, 4, 4>(context, g);
}

// A product of few rows with b[k, n]: one thread a column and leaf, so that the weight is read once, in long runs.
// partials[t, i, j]; blocks: columns by kRowThreads, leaves.
inline constexpr int kRowThreads = 128;
inline constexpr int kMostRows = 8;

template <int kRows>
SAMBA_KERNEL(kRowThreads)
row_leaves(Product g, Index leaf, float* partials) {
  SAMBA_SHARED(float, x, kRows* kRowThreads);
  const Index j = global_thread();
  const Index first = static_cast<Index>(block_y()) * leaf;
  const Index end = first + leaf < g.k ? first + leaf : g.k;
  float acc[kRows];
  SAMBA_UNROLL
  for (int i = 0; i < kRows; ++i) acc[i] = 0.0F;
  for (Index p = first; p < end; p += kRowThreads) {
    const Index here = p + thread_index();
    for (int i = 0; i < kRows; ++i) {
      x[i * kRowThreads + static_cast<int>(thread_index())] = here < end && i < g.m ? flush(g.a[i * g.k + here]) : 0.0F;
    }
    barrier();
    const int length = end - p < kRowThreads ? static_cast<int>(end - p) : kRowThreads;
    if (j < g.n) {
      for (int d = 0; d < length; ++d) {
        const float b = flush(g.b[(p + d) * g.n + j]);
        SAMBA_UNROLL
        for (int i = 0; i < kRows; ++i) acc[i] = flush(fma(x[i * kRowThreads + d], b, acc[i]));
      }
    }
    barrier();
  }
  if (j >= g.n) return;
  for (int i = 0; i < kRows && i < g.m; ++i) partials[(block_y() * g.m + i) * g.n + j] = acc[i];
}

template <int kRows>
void launch_rows(Context& context, const Product& g) {
  const Index leaves = leaf_count(g.k);
  const Grid grid{static_cast<unsigned>((g.n + kRowThreads - 1) / kRowThreads), static_cast<unsigned>(leaves)};
  if (leaves == 1) return launch(context, grid, kRowThreads, row_leaves<kRows>, g, leaf_length(g.k), g.c);
  const Workspace::Scope scope(context.workspace());
  float* partials = context.workspace().floats(leaves * g.m * g.n);
  launch(context, grid, kRowThreads, row_leaves<kRows>, g, leaf_length(g.k), partials);
  for_each(context, g.m * g.n, FoldLeaves{leaves, g.m * g.n, partials, g.c});
}

// c[m, n] = a[m, k] b[k, n]
void launch_nn(Context& context, const Product& g) {
  if (g.m == 1) return launch_rows<1>(context, g);
  if (g.m <= 2) return launch_rows<2>(context, g);
  if (g.m <= 4) return launch_rows<4>(context, g);
  if (g.m <= kMostRows) return launch_rows<kMostRows>(context, g);
  launch_product<Layout::nn>(context, g);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
