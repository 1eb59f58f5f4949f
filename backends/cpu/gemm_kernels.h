// What the driver of the matrix product calls (gemm.cpp).
#pragma once

#include <span>

#include "samba/backends/cpu/context.h"
#include "samba/backends/cpu/gemm.h"

namespace samba::cpu {

// The rows of a product in blocks of tiles, and the parts of a thread's scratch memory.
struct RowBlocks {
  Index all_tiles = 0;  // of the product
  Index tiles = 0;      // of a block, the last may have fewer
  Index count = 0;
  bool packs_blocks = false;
  Index waiting_floats = 0;
  Index leaf_floats = 0;
  Index panel_waiting = 0;  // of waiting_floats, for one panel
  // Of a matrix that is packed on the way: panels that take a leaf together, and the leaves that are kept.
  Index panels = 1;
  Index slots = 0, slot_floats = 0;
};

// A panel of a matrix: `count` rows of b[n, k], or columns of b[k, n].
struct PanelPlace {
  PanelSource source;
  const float* matrix;
  Index stride;
  Index k;
  Index count;
  Index width;  // floats of a line
};

TileShape tile_shape(const Context& context);

// All panels of a matrix.
void pack_panels(Context& context, const PanelLayout& layout, Index k, PanelSource source, const float* matrix,
                 float* packed);

// All tiles of columns a[k, m]: what Product::packed_a is.
void pack_tiles(Context& context, const Product& product, float* packed);

// Products of one m side by side in one region: all have the same A, or the outcome of none is read by another. A
// product with a matrix that is not prepared stands alone and has no epilogue.
void multiply(Context& context, std::span<const Product> products);

}  // namespace samba::cpu
