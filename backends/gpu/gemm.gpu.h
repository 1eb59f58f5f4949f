// The matrix product "gemm fp32 v1" (spec 10 section 3) in tiles.
//
// A block computes a tile of c; each of its threads a few cells, in registers. The terms come in slices of kDepth
// through shared memory, a slice never crosses a leaf; while one is multiplied the next is on its way to the other half
// of shared memory. A leaf is one chain of fused steps a cell; its partial joins the tree, a binary counter of
// partials.
//
// Flushes: every thread flushes the operands that it loaded, and takes the smallest exponents of the nonzero ones
// (exponents.gpu.h). From the first slice of a leaf on that is not safe, the leaf goes on flushing.
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
  SAMBA_DEVICE static const float* a(const Product& g, Index i, Index p) {
    return g.a + (kTermsOfA ? i * g.k + p : p * g.m + i);
  }
  SAMBA_DEVICE static const float* b(const Product& g, Index p, Index j) {
    return g.b + (kTermsOfB ? j * g.k + p : p * g.n + j);
  }
};

// Cells of one thread: kRows neighbouring rows x kColumns columns, which come in runs of kRun, kRunPitch apart.
inline constexpr int kRun = 4;

template <int kRows, int kColumns, int kRunPitch>
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
      for (int j = 0; j < kColumns; ++j) b[j] = columns[d * column_pitch + j / kRun * kRunPitch + j % kRun];
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

// The elements (d, x), d < length, x < kSpan, of a slice at slice[d * kPitch + x] that this thread loads.
template <int kSpan, int kPitch, bool kTerms, class Visit>
SAMBA_DEVICE void for_slice(int length, Visit&& visit) {
  const int threads = static_cast<int>(block_threads());
  for (int e = static_cast<int>(thread_index()); e < kDepth * kSpan; e += threads) {
    const int d = kTerms ? e % kDepth : e / kSpan;
    const int x = kTerms ? e / kDepth : e % kSpan;
    if (d < length) visit(d, x, d * kPitch + x);
  }
}

// Begins to load a slice, with zeros where x >= limit; at(d, x) is where an element lies.
template <int kSpan, int kPitch, bool kTerms, class At>
SAMBA_DEVICE void load_slice(int length, Index limit, float* slice, At&& at) {
  for_slice<kSpan, kPitch, kTerms>(length, [&](int d, int x, int cell) {
    if (x < limit) {
      copy_async(slice + cell, at(d, x));
    } else {
      slice[cell] = 0.0F;
    }
  });
}

// Flushes what this thread has loaded and returns its smallest exponent.
template <int kSpan, int kPitch, bool kTerms>
SAMBA_DEVICE int flush_slice(int length, float* slice) {
  int smallest = kNoExponent;
  for_slice<kSpan, kPitch, kTerms>(length, [&](int, int, int cell) {
    const float loaded = slice[cell], value = flush(loaded);
    if (to_bits(value) != to_bits(loaded)) slice[cell] = value;
    smallest = smaller_exponent(smallest, value);
  });
  return smallest;
}

// The terms [first, end_of_leaf) that are left of a leaf.
struct LeafRest {
  Index first, end;
  SAMBA_DEVICE int length() const { return end - first < kDepth ? static_cast<int>(end - first) : kDepth; }
  SAMBA_DEVICE bool is_last() const { return first + kDepth >= end; }  // slice of the leaf
  SAMBA_DEVICE LeafRest next(Index leaf, Index k) const {
    if (!is_last()) return {first + kDepth, end};
    return {end, end + leaf < k ? end + leaf : k};
  }
};

template <Layout kLayout, int kTileM, int kTileN, int kRows, int kColumns>
SAMBA_KERNEL(kTileM* kTileN / (kRows * kColumns))
gemm_tiles(Product g) {
  using At = Operands<kLayout>;
  constexpr int kPitchA = kTileM + 4, kPitchB = kTileN + 4;
  constexpr int kThreadColumns = kTileN / kColumns;
  SAMBA_SHARED(float, slices_a, 2 * kDepth * kPitchA);
  SAMBA_SHARED(float, slices_b, 2 * kDepth * kPitchB);
  SAMBA_SHARED(int, smallest, 6);  // of a and of b, for three slices in turn

  const Index first_row = static_cast<Index>(block_y()) * kTileM, first_column = static_cast<Index>(block_x()) * kTileN;
  const int thread = static_cast<int>(thread_index());
  const int row = thread / kThreadColumns * kRows, column = thread % kThreadColumns * kRun;
  const Index leaf = leaf_length(g.k);
  const auto load = [&](const LeafRest& rest, int half) {
    load_slice<kTileM, kPitchA, At::kTermsOfA>(rest.length(), g.m - first_row, slices_a + half * kDepth * kPitchA,
                                               [&](int d, int x) { return At::a(g, first_row + x, rest.first + d); });
    load_slice<kTileN, kPitchB, At::kTermsOfB>(
        rest.length(), g.n - first_column, slices_b + half * kDepth * kPitchB,
        [&](int d, int x) { return At::b(g, rest.first + d, first_column + x); });
  };
  LeafRest rest{0, leaf < g.k ? leaf : g.k};
  load(rest, 0);
  if (thread < 6) smallest[thread] = kNoExponent;
  barrier();

  Cells<kRows, kColumns, kThreadColumns * kRun> cells;
  cells.clear();
  bool flushing = false;
  int half = 0, turn = 0;
  Index leaves = 0;
  while (rest.first < g.k) {
    float* slice_a = slices_a + half * kDepth * kPitchA;
    float* slice_b = slices_b + half * kDepth * kPitchB;
    const int length = rest.length();
    wait_copies();
    const int of_a = flush_slice<kTileM, kPitchA, At::kTermsOfA>(length, slice_a);
    const int of_b = flush_slice<kTileN, kPitchB, At::kTermsOfB>(length, slice_b);
    if (of_a < kNoExponent) atomic_min(smallest + turn, of_a);
    if (of_b < kNoExponent) atomic_min(smallest + turn + 1, of_b);
    barrier();  // behind it nobody reads the other half, nor the exponents of the slice before
    const LeafRest next = rest.next(leaf, g.k);
    half ^= 1;
    if (next.first < g.k) load(next, half);
    flushing = flushing || smallest[turn] + smallest[turn + 1] < kSafeExponents;
    if (thread < 2) smallest[(turn + 4) % 6 + thread] = kNoExponent;
    turn = (turn + 2) % 6;
    if (flushing) {
      cells.template steps<true>(length, slice_a + row, kPitchA, slice_b + column, kPitchB);
    } else {
      cells.template steps<false>(length, slice_a + row, kPitchA, slice_b + column, kPitchB);
    }
    if (rest.is_last()) {
      cells.push(leaves++);
      cells.clear();
      flushing = false;
    }
    rest = next;
  }
  cells.fold(leaves);
  SAMBA_UNROLL
  for (int i = 0; i < kRows; ++i) {
    SAMBA_UNROLL
    for (int j = 0; j < kColumns; ++j) {
      const Index at_row = first_row + row + i;
      const Index at_column = first_column + column + j / kRun * kThreadColumns * kRun + j % kRun;
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
  // Large tiles where there are enough of them for all multiprocessors.
  if (g.m >= 128 && g.n >= 128 && (g.m / 128) * (g.n / 128) >= context.multiprocessors()) {
    return launch_tiles<kLayout, 128, 128, 8, 8>(context, g);
  }
  launch_tiles<kLayout, 64, 64, 4, 4>(context, g);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
