// The products inside a chunk of Mamba-3: a tile of 64 x 64 cells (panels.gpu.h), whose terms come in slices of 16, so
// that many blocks have room beside each other.
#pragma once

#include "samba/backends/gpu/mamba3_rows.gpu.h"
#include "samba/backends/gpu/panels.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kSliceDepth = 16;

// How the elements of an operand lie in memory: neighbours differ in the term, or in the cell.
enum class Along { terms, cells };

class SliceProduct : public TileProduct {
 public:
  // Shared memory: two slices of kSliceDepth * kTilePitch floats, and 4 integers.
  SAMBA_DEVICE SliceProduct(float* slice_a, float* slice_b, int* smallest)
      : TileProduct(slice_a, slice_b, smallest, kTile, kTile) {}

  // The cells [i, j] become the flushed chain over `terms` ascending of mad(a(term, row i), b(term, column j), .).
  template <Terms kTerms, Along kA, Along kB, class A, class B>
  SAMBA_DEVICE void run(int terms, A&& a, B&& b) {
    begin();
    for (int first = 0; first < terms; first += kSliceDepth) {
      const int length = terms - first < kSliceDepth ? terms - first : kSliceDepth;
      const int of_a = fill_panel<kA == Along::terms, kSliceDepth>(rows_, length, kTile,
                                                                   [&](int d, int x) { return a(first + d, x); });
      const int of_b = fill_panel<kB == Along::terms, kSliceDepth>(columns_, length, kTile,
                                                                   [&](int d, int x) { return b(first + d, x); });
      take<kTerms>(length, of_a, of_b, first);
    }
  }
};

// A product in a kernel, with its shared memory.
#define SAMBA_TILE_PRODUCT(name)                         \
  SAMBA_SHARED(float, slice_a, kSliceDepth* kTilePitch); \
  SAMBA_SHARED(float, slice_b, kSliceDepth* kTilePitch); \
  SAMBA_SHARED(int, smallest_exponents, 4);              \
  SliceProduct name(slice_a, slice_b, smallest_exponents)

}  // namespace

}  // namespace samba::SAMBA_GPU
