// One matrix product, between its driver (linear.cpp) and its kernels (gemm.cpp).
//
// B is read in panels of V vectors of columns, [K][V * lanes] cells each, K-major: a leaf of a panel (128 lines) stays
// in the first-level cache while a block of rows passes it. A is read where it lies. Threads take panels and blocks of
// rows; no cell is ever split.
#pragma once

#include <bit>

#include "samba/core/array.h"
#include "samba/numerics/packed_weight.h"

namespace samba::cpu {

// The register tile of an instruction set.
struct TileShape {
  Index rows;     // R
  Index columns;  // V * lanes
  Index lanes;
};

// How n columns are cut into panels: V vectors each; what is left over makes a narrower last panel, or, where that
// would be a single vector of three, shares evenly with the panel before it. Panel j of a packed weight starts at cell
// first(j) * lanes * K. Every packed form (float32, bfloat16, int8 cells) lies in these panels, the last vector filled
// up with zeros.
struct PanelLayout {
  PanelLayout(Index n_, const TileShape& tile)
      : n(n_), lanes(tile.lanes), width(tile.columns / tile.lanes), vectors((n + lanes - 1) / lanes) {}

  Index count() const { return (vectors + width - 1) / width; }
  Index first(Index panel) const {  // in vectors
    if (panel == count()) return vectors;
    return width * panel - (width == 3 && vectors % 3 == 1 && panel > 0 && panel == count() - 1 ? 1 : 0);
  }
  Index panel_vectors(Index panel) const { return first(panel + 1) - first(panel); }
  Index padded_columns() const { return vectors * lanes; }

  Index n, lanes, width, vectors;
};

// Levels of waiting partials that `leaves` leaves can need.
inline Index tree_levels(Index leaves) { return std::bit_width(static_cast<std::uint64_t>(leaves)); }

// a(i, p) = cells[i * stride + p], or cells[p * stride + i].
enum class RowOrder { rows, columns };

// Where the panels of B come from: a prepared weight, the rows of b[n, k], or the columns of b[k, n], which are packed
// panel by panel by the thread that uses them, or rows of blocks (block_rows.h), which are expanded leaf by leaf.
enum class PanelSource { prepared, rows, columns, blocks };

// Columns [first, first + length) of the rows [first_row, first_row + rows) of rows of blocks: a leaf of a panel of
// `width` floats a line.
struct BlockLeaf {
  const ConstPackedWeight* weight;
  Index first_row, rows, width;
  Index first, length;
};
// The rows [first, end) of y = x W^T, x one row.
struct BlockRow {
  const ConstPackedWeight* weight;
  const float* x;
  float* y;
  Index first, end;
};
// The kernels of an instruction set (block_rows.cpp).
struct BlockKernels {
  void (*expand)(const BlockLeaf& leaf, float* values);  // values[length][width], 0 in columns beyond `rows`
  void (*multiply_row)(const BlockRow& row);             // null where the row is no whole groups of 32
};

// What becomes of finished cells c, each step rounded and flushed:
//   bias      c = F(F(c) + F(bias[column]))
//   residual  c = F(F(residual[row, column]) + F(c))
//   gate      act = F(silu(F(gate))), gated = F(act * F(c)); all [m, n]
// act may be gate, gated may be c.
struct Epilogue {
  const float* bias = nullptr;
  const float* residual = nullptr;
  const float* gate = nullptr;
  float* act = nullptr;
  float* gated = nullptr;
  bool any() const { return bias != nullptr || residual != nullptr || gate != nullptr; }
};

struct Product {
  Index m = 0, n = 0, k = 0;
  RowOrder order = RowOrder::rows;
  const float* a = nullptr;
  Index a_stride = 0;
  PanelSource source = PanelSource::prepared;
  WeightFormat format = WeightFormat::float32;
  const void* b = nullptr;        // panels of cells of the format, a float32 matrix, or a ConstPackedWeight of blocks
  const float* scales = nullptr;  // of int8: 2^exponent of each column
  BlockKernels block_kernels{};   // of rows of blocks
  float* c = nullptr;             // [m, n]
  Epilogue epilogue;
  // Columns of A that lie far apart are packed into tiles, leaf by leaf, [length][rows of the tile] each: ahead for all
  // (of a matrix that is not prepared), or by each thread for the block of rows it takes over all panels (prepared).
  const float* packed_a = nullptr;
  bool packs_blocks = false;
  const Product* then = nullptr;  // another product of the same m, n and k, whose cells follow those of this one
};

}  // namespace samba::cpu
