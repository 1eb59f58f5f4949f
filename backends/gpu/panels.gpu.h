// Products of 64 x 64 cells whose terms come in panels of at most 64 through shared memory, one serial chain a cell:
// the products inside the chunks of the Mamba mixers.
//
// A kernel fills the panels with what the spec's product says (a value that is scaled, a row of the state, a zero),
// then calls take(); the cells of a thread, 4 x 4, lie in registers. While a panel is filled the smallest exponents of
// its elements are taken: as long as they are safe (exponents.gpu.h) plain fused steps do.
#pragma once

#include "samba/backends/gpu/exponents.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kTile = 64;
inline constexpr int kTilePitch = kTile + 4;
inline constexpr int kPanelFloats = kTile * kTilePitch;
inline constexpr int kTileThreads = 256;
inline constexpr int kCellRows = 4;  // and columns, of one thread
inline constexpr int kThreadCells = kCellRows * kCellRows;

// Which terms d of a panel a row x of the tile takes.
enum class Terms {
  all,
  from_row,    // d >= x
  to_row,      // d <= x
  before_row,  // d < x
  behind_row,  // d > x
};

// Fills panel[d * kTilePitch + x] for d < length <= kDepth, x < kTile: load(d, x), flushed, and 0 for x >= count.
// Returns the smallest exponent of this thread's elements. kTermsRun: neighbours in memory differ in the term d.
template <bool kTermsRun, int kDepth = kTile, class Load>
SAMBA_DEVICE int fill_panel(float* panel, int length, int count, Load&& load) {
  int smallest = kNoExponent;
  for (int e = static_cast<int>(thread_index()); e < kDepth * kTile; e += kTileThreads) {
    const int d = kTermsRun ? e % kDepth : e / kTile;
    const int x = kTermsRun ? e / kDepth : e % kTile;
    if (d >= length) continue;
    const float value = x < count ? flush(load(d, x)) : 0.0F;
    panel[d * kTilePitch + x] = value;
    smallest = smaller_exponent(smallest, value);
  }
  return smallest;
}

// The cells of one thread. Every thread of the block makes one and takes the same panels.
class TileProduct {
 public:
  // rows, columns: the panels in shared memory, kPanelFloats each where they take kTile terms; smallest: 4 of it;
  // row_count, column_count: cells that count. What the block's threads wrote to shared memory before is there for all
  // of them after.
  SAMBA_DEVICE TileProduct(float* rows, float* columns, int* smallest, int row_count, int column_count)
      : rows_(rows), columns_(columns), smallest_(smallest) {
    constexpr int kAcross = kTile / kCellRows;
    const int thread = static_cast<int>(thread_index());
    row = thread / kAcross * kCellRows;
    column = thread % kAcross * kCellRows;
    idle_ = row >= row_count || column >= column_count;
    if (thread < 4) smallest[thread] = kNoExponent;
    barrier();
    begin();
  }

  // New chains from +0.
  SAMBA_DEVICE void begin() {
    SAMBA_UNROLL
    for (int q = 0; q < kThreadCells; ++q) acc[q] = 0.0F;
    flushing_ = false;
  }

  // The `length` terms of the panels that the block has filled: the chains take them in ascending order. of_rows,
  // of_columns: the smallest exponents of this thread's elements; first: the number d of their first term. Afterwards
  // the panels may be filled again.
  template <Terms kTerms>
  SAMBA_DEVICE void take(int length, int of_rows, int of_columns, int first = 0) {
    // The cells fall alone: most threads see that theirs is not smaller, and spare the atomic operation.
    if (of_rows < smallest_[turn_]) atomic_min(smallest_ + turn_, of_rows);
    if (of_columns < smallest_[turn_ + 1]) atomic_min(smallest_ + turn_ + 1, of_columns);
    barrier();
    flushing_ = flushing_ || smallest_[turn_] + smallest_[turn_ + 1] < kSafeExponents;
    turn_ ^= 2;
    if (thread_index() < 2) smallest_[turn_ + static_cast<int>(thread_index())] = kNoExponent;
    if (!idle_) {
      if (flushing_) {
        steps<kTerms, true>(first, length);
      } else {
        steps<kTerms, false>(first, length);
      }
    }
    barrier();
  }

  // body(cell, row, column) for this thread's cells.
  template <class Body>
  SAMBA_DEVICE void for_cells(Body&& body) const {
    SAMBA_UNROLL
    for (int i = 0; i < kCellRows; ++i) {
      SAMBA_UNROLL
      for (int j = 0; j < kCellRows; ++j) body(i * kCellRows + j, row + i, column + j);
    }
  }

  float acc[kThreadCells];
  int row, column;  // of the first cell

 protected:
  float *rows_, *columns_;

 private:
  template <Terms kTerms>
  static SAMBA_DEVICE bool takes(int d, int x) {
    switch (kTerms) {
      case Terms::from_row:
        return d >= x;
      case Terms::to_row:
        return d <= x;
      case Terms::before_row:
        return d < x;
      case Terms::behind_row:
        return d > x;
      default:
        return true;
    }
  }

  template <Terms kTerms, bool kFlush>
  SAMBA_DEVICE void steps(int first, int length) {
    using Run = FloatRun<kCellRows>;
    for (int d = 0; d < length; ++d) {
      const Run a = *reinterpret_cast<const Run*>(rows_ + d * kTilePitch + row);
      const Run b = *reinterpret_cast<const Run*>(columns_ + d * kTilePitch + column);
      SAMBA_UNROLL
      for (int i = 0; i < kCellRows; ++i) {
        if (!takes<kTerms>(first + d, row + i)) continue;
        SAMBA_UNROLL
        for (int j = 0; j < kCellRows; ++j) {
          const float sum = fma(a.values[i], b.values[j], acc[i * kCellRows + j]);
          acc[i * kCellRows + j] = kFlush ? flush(sum) : sum;
        }
      }
    }
  }

  int* smallest_;
  int turn_ = 0;
  bool idle_, flushing_;
};

}  // namespace

}  // namespace samba::SAMBA_GPU
