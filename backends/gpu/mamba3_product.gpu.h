// The products inside a chunk: a tile of 64 x 64 cells, one serial chain of at most 128 fused steps each.
//
// A block of 256 threads computes a tile, a thread 4 x 4 cells in registers. The terms come in slices through shared
// memory. Operands are flushed when they are loaded; while the smallest exponents of a slice are safe (exponents.gpu.h)
// plain fused steps do.
#pragma once

#include "samba/backends/gpu/exponents.gpu.h"
#include "samba/backends/gpu/mamba3_rows.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kTile = 64;
inline constexpr int kTileThreads = 256;
inline constexpr int kSide = 4;  // cells of a thread: kSide x kSide
inline constexpr int kCells = kSide * kSide;
inline constexpr int kSliceDepth = 16;
inline constexpr int kSlicePitch = kTile + 4;
inline constexpr int kSliceFours = kSliceDepth * kSlicePitch / 4;

// Four neighbours, read from shared memory at once.
struct alignas(16) Four {
  float at[4];
};

// Which terms a cell takes: all, those before its row, those behind its row.
enum class Terms { all, before_row, behind_row };

// How the elements of an operand lie in memory: neighbours differ in the term, or in the cell.
enum class Along { terms, cells };

class TileProduct {
 public:
  // Shared memory: two runs of kSliceFours and 4 integers. What the block's threads wrote to shared memory before is
  // there for all of them after.
  SAMBA_DEVICE TileProduct(Four* slice_a, Four* slice_b, int* smallest)
      : slice_a_(slice_a), slice_b_(slice_b), smallest_(smallest), thread_(static_cast<int>(thread_index())) {
    if (thread_ < 4) smallest_[thread_] = kNoExponent;
    barrier();
  }

  // The first row and column of this thread's cells.
  SAMBA_DEVICE int row() const { return thread_ / (kTile / kSide) * kSide; }
  SAMBA_DEVICE int column() const { return thread_ % (kTile / kSide) * kSide; }

  // cells[i, j] = the flushed chain over `terms` ascending of mad(a(term, row i), b(term, column j), .)
  template <Terms kTerms, Along kA, Along kB, class A, class B>
  SAMBA_DEVICE void run(int terms, A&& a, B&& b, float (&cells)[kCells]) {
    SAMBA_UNROLL
    for (int q = 0; q < kCells; ++q) cells[q] = 0.0F;
    bool flushing = false;
    for (int first = 0; first < terms; first += kSliceDepth) {
      const int length = terms - first < kSliceDepth ? terms - first : kSliceDepth;
      const int of_a = load<kA>(first, length, slice_a_, a);
      const int of_b = load<kB>(first, length, slice_b_, b);
      if (of_a < kNoExponent) atomic_min(smallest_ + turn_, of_a);
      if (of_b < kNoExponent) atomic_min(smallest_ + turn_ + 1, of_b);
      barrier();
      flushing = flushing || smallest_[turn_] + smallest_[turn_ + 1] < kSafeExponents;
      turn_ ^= 2;
      if (thread_ < 2) smallest_[turn_ + thread_] = kNoExponent;
      if (flushing) {
        steps<true, kTerms>(first, length, cells);
      } else {
        steps<false, kTerms>(first, length, cells);
      }
      barrier();
    }
  }

  // body(row, column, cell) for this thread's cells.
  template <class Body>
  SAMBA_DEVICE void for_cells(const float (&cells)[kCells], Body&& body) const {
    SAMBA_UNROLL
    for (int i = 0; i < kSide; ++i) {
      SAMBA_UNROLL
      for (int j = 0; j < kSide; ++j) body(row() + i, column() + j, cells[i * kSide + j]);
    }
  }

 private:
  // element(term, x), flushed, to the slice at [d, x]. Returns the smallest exponent of this thread's.
  template <Along kAlong, class Element>
  SAMBA_DEVICE int load(int first, int length, Four* fours, Element&& element) const {
    auto* slice = reinterpret_cast<float*>(fours);
    int smallest = kNoExponent;
    SAMBA_UNROLL
    for (int round = 0; round < kSliceDepth * kTile / kTileThreads; ++round) {
      const int e = round * kTileThreads + thread_;
      const int d = kAlong == Along::terms ? e % kSliceDepth : e / kTile;
      const int x = kAlong == Along::terms ? e / kSliceDepth : e % kTile;
      if (d >= length) continue;
      const float value = flush(element(first + d, x));
      slice[d * kSlicePitch + x] = value;
      smallest = smaller_exponent(smallest, value);
    }
    return smallest;
  }

  template <bool kFlush, Terms kTerms>
  SAMBA_DEVICE void steps(int first, int length, float (&cells)[kCells]) const {
    const Four* rows = slice_a_ + row() / 4;
    const Four* columns = slice_b_ + column() / 4;
    for (int d = 0; d < length; ++d) {
      const Four a = rows[d * kSlicePitch / 4], b = columns[d * kSlicePitch / 4];
      SAMBA_UNROLL
      for (int i = 0; i < kSide; ++i) {
        if (kTerms == Terms::before_row && first + d >= row() + i) continue;
        if (kTerms == Terms::behind_row && first + d <= row() + i) continue;
        SAMBA_UNROLL
        for (int j = 0; j < kSide; ++j) {
          const float sum = fma(a.at[i], b.at[j], cells[i * kSide + j]);
          cells[i * kSide + j] = kFlush ? flush(sum) : sum;
        }
      }
    }
  }

  Four *slice_a_, *slice_b_;
  int* smallest_;  // exponents of a and of b, for this slice and the next
  int thread_;
  int turn_ = 0;
};

// The shared memory of a TileProduct, in the kernel that has one.
#define SAMBA_TILE_PRODUCT(name)            \
  SAMBA_SHARED(Four, slice_a, kSliceFours); \
  SAMBA_SHARED(Four, slice_b, kSliceFours); \
  SAMBA_SHARED(int, smallest_exponents, 4); \
  TileProduct name(slice_a, slice_b, smallest_exponents)

}  // namespace

}  // namespace samba::SAMBA_GPU
