// The kernels of the matrix product: panels of B by blocks of rows of A (spec 10 section 3; gemm.h, gemm_tile-inl.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <algorithm>
#include <cstring>

#include "samba/backends/cpu/gemm_kernels.h"
#include "samba/backends/cpu/gemm_matrix-inl.h"
#include "samba/backends/cpu/gemm_panels-inl.h"
#include "samba/backends/cpu/panels-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

TileShape gemm_tile_shape() {
  const Index lanes = static_cast<Index>(hn::Lanes(hn::ScalableTag<float>()));
  return {kTileRows, kTileVectors * lanes, lanes};
}

// Rows of blocks: one row of A multiplies columns as they are expanded in registers, more rows take expanded leaves.
template <RowOrder kOrder>
void run_blocks(const PanelRun& run, const TileRange& tiles, GemmScratch& scratch) {
  const Product& product = run.product;
  const auto* weight = static_cast<const ConstPackedWeight*>(product.b);
  if (product.m == 1 && product.block_kernels.multiply_row != nullptr) {
    const Index end = run.first_column + run.columns;
    product.block_kernels.multiply_row({weight, product.a, product.c, run.first_column, end});
    if (product.epilogue.any()) finish_tile(product, 0, 1, run.first_column, run.columns);
    return;
  }
  const Index leaf_size = leaf_length(product.k);
  run_leaves<FloatCells, kOrder>(
      run, tiles, scratch.waiting,
      [&](Index leaf, Index length) {
        product.block_kernels.expand({weight, run.first_column, run.columns, run.width, leaf * leaf_size, length},
                                     scratch.leaf);
        return static_cast<const float*>(scratch.leaf);
      },
      [](Index, TileLeaf<FloatCells>&) {});
}

template <RowOrder kOrder>
void run_panel(const PanelRun& run, const TileRange& tiles, GemmScratch& scratch) {
  if (run.product.source == PanelSource::blocks) return run_blocks<kOrder>(run, tiles, scratch);
  switch (run.product.format) {
    case WeightFormat::float32:
      return run_prepared<FloatCells, kOrder>(run, tiles, scratch);
    case WeightFormat::bfloat16:
      return run_prepared<Bfloat16Cells, RowOrder::rows>(run, tiles, scratch);
    case WeightFormat::int8:
      return run_prepared<Int8Cells, RowOrder::rows>(run, tiles, scratch);
    default:
      return;
  }
}

// The tiles [first, end) of columns a[k, m]. A few lines of all tiles are taken at a time: as many streams are read,
// and each tile is written in runs.
void pack_rows(const Product& product, Index first, Index end, Index first_leaf, Index end_leaf,
               const PackedRows& packed) {
  constexpr Index kLines = 16;
  const Index leaf_size = leaf_length(product.k);
  for (Index leaf = first_leaf; leaf < end_leaf; ++leaf) {
    const Index term = leaf * leaf_size, length = std::min(leaf_size, product.k - term);
    for (Index first_line = 0; first_line < length; first_line += kLines) {
      const Index end_line = std::min(length, first_line + kLines);
      for (Index tile = first; tile < end; ++tile) {
        const Index row = tile_row(product.m, tile);
        const Index rows = tile_row(product.m, tile + 1) - row;
        const float* from = product.a + (term + first_line) * product.a_stride + row;
        float* to = packed.tile(row, term, length) + first_line * rows;
        for (Index p = first_line; p < end_line; ++p, from += product.a_stride, to += rows) {
          if (rows == kTileRows) {
            std::memcpy(to, from, kTileRows * sizeof(float));
          } else {
            std::copy_n(from, rows, to);
          }
        }
      }
    }
  }
}

// Leaves [first, end) of all tiles.
void gemm_pack_rows(const Product& product, Index first, Index end, float* packed) {
  constexpr Index kTogether = 64;  // tiles
  const Index tiles = (product.m + kTileRows - 1) / kTileRows;
  for (Index leaf = first; leaf < end; ++leaf) {
    for (Index tile = 0; tile < tiles; tile += kTogether) {
      pack_rows(product, tile, std::min(tiles, tile + kTogether), leaf, leaf + 1, {packed, 0, product.m});
    }
  }
}

void run_unit(const Product& product, const PanelLayout& layout, Index panel, Index block, const RowBlocks& blocks,
              GemmScratch& scratch) {
  TileRange tiles{block * blocks.tiles, std::min(blocks.all_tiles, (block + 1) * blocks.tiles), {}};
  if (blocks.packs_blocks) {
    const Index row = tile_row(product.m, tiles.first);
    tiles.packed = {scratch.rows, row, tile_row(product.m, tiles.end) - row};
    if (scratch.rows_block != block) {
      pack_rows(product, tiles.first, tiles.end, 0, leaf_count(product.k), tiles.packed);
    }
    scratch.rows_block = block;
  }
  for (const Product* part = &product; part != nullptr; part = part->then) {
    const PanelRun run(*part, layout, panel);
    if (part->order == RowOrder::rows) {
      run_panel<RowOrder::rows>(run, tiles, scratch);
    } else {
      run_panel<RowOrder::columns>(run, tiles, scratch);
    }
  }
}

// The units (panel, block of rows) of all products whose place is in [first, end). A unit takes as many places as its
// panel has vectors, one behind the other.
void gemm_run(std::span<const Product> products, const RowBlocks& blocks, Index first, Index end, float* memory) {
  GemmScratch scratch{memory, memory + blocks.waiting_floats, memory + blocks.waiting_floats + blocks.leaf_floats,
                      memory + blocks.waiting_floats + blocks.leaf_floats};  // never panels and rows in one call
  const TileShape shape = gemm_tile_shape();
  Index place = 0;
  for (const Product& product : products) {
    const PanelLayout layout(product.n, shape);
    const Index panels = layout.count();
    const bool matrix = product.source == PanelSource::rows || product.source == PanelSource::columns;
    Index first_unit = -1, unit = 0;
    for (; unit < panels * blocks.count && place < end; ++unit) {
      const Index panel = blocks.packs_blocks ? unit % panels : unit / blocks.count;
      const Index block = blocks.packs_blocks ? unit / panels : unit % blocks.count;
      if (place >= first && first_unit < 0) first_unit = unit;
      if (place >= first && !matrix) run_unit(product, layout, panel, block, blocks, scratch);
      place += layout.panel_vectors(panel);
    }
    if (!matrix || first_unit < 0) continue;
    if (product.order == RowOrder::rows) {
      MatrixRun<RowOrder::rows>(product, layout, blocks, scratch).run(first_unit, unit);
    } else {
      MatrixRun<RowOrder::columns>(product, layout, blocks, scratch).run(first_unit, unit);
    }
  }
}

void gemm_run_row(const Product& product, Index first, Index end, float* memory) {
  run_row(product, first, end, memory);
}

void gemm_pack_panel(const PanelPlace& place, float* packed) {
  constexpr Index kLines = 128;  // of a panel that stay in the first-level cache while all rows fill them
  if (place.source == PanelSource::columns) {
    return copy_lines(place.matrix, place.stride, place.count, place.k, place.width, packed);
  }
  for (Index p = 0; p < place.k; p += kLines) {
    const Index lines = std::min(kLines, place.k - p);
    transpose_lines(place.matrix + p, place.stride, place.count, lines, place.width, packed + p * place.width);
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

HWY_EXPORT(gemm_tile_shape);
HWY_EXPORT(gemm_run);
HWY_EXPORT(gemm_run_row);
HWY_EXPORT(gemm_pack_panel);
HWY_EXPORT(gemm_pack_rows);

namespace {

constexpr Index kBlockRows = 64;             // rows that walk the leaves of a panel together
constexpr Index kSmallProduct = 128 * 1024;  // fused steps below which one thread multiplies faster than a team
constexpr Index kSmallPack = 32 * 1024;      // cells below which one thread packs faster than a team
constexpr Index kFloatsTogether = 384;       // of a row of a matrix, that panels which take a leaf together read

// A product of one row with columns b[k, n].
void multiply_row(Context& context, const Product& product) {
  constexpr Index kGrain = 64;  // columns
  const auto run = SAMBA_CPU_KERNEL(context, gemm_run_row);
  const Index levels = tree_levels(leaf_count(product.k));
  const auto part = [&](Index first, Index end, int thread) {
    run(product, first, end, context.scratch(thread, (levels + 1) * (end - first + kGrain)));
  };
  if (product.n * product.k < kSmallProduct || context.threads() == 1) {
    const DazScope daz;
    part(0, product.n, 0);
  } else {
    context.parallel(product.n, kGrain, part);
  }
}

}  // namespace

TileShape tile_shape(const Context& context) { return SAMBA_CPU_KERNEL(context, gemm_tile_shape)(); }

void pack_panels(Context& context, const PanelLayout& layout, Index k, PanelSource source, const float* matrix,
                 float* packed) {
  const auto run = SAMBA_CPU_KERNEL(context, gemm_pack_panel);
  const auto pack = [&](Index first, Index end, int) {
    for (Index panel = first; panel < end; ++panel) {
      const Index column = layout.first(panel) * layout.lanes;
      const Index width = layout.panel_vectors(panel) * layout.lanes;
      const bool columns = source == PanelSource::columns;
      run({source, columns ? matrix + column : matrix + column * k, columns ? layout.n : k, k,
           std::min(width, layout.n - column), width},
          packed + column * k);
    }
  };
  if (layout.n * k < kSmallPack) {
    pack(0, layout.count(), 0);
  } else {
    context.parallel(layout.count(), 1, pack);
  }
}

void pack_tiles(Context& context, const Product& product, float* packed) {
  const auto run = SAMBA_CPU_KERNEL(context, gemm_pack_rows);
  context.parallel(leaf_count(product.k), 1, [&](Index first, Index end, int) { run(product, first, end, packed); });
}

void multiply(Context& context, std::span<const Product> products) {
  if (products[0].m == 1 && products[0].source == PanelSource::columns) return multiply_row(context, products[0]);
  const auto run = SAMBA_CPU_KERNEL(context, gemm_run);
  const TileShape tile = tile_shape(context);
  const Index m = products[0].m;
  RowBlocks blocks;
  blocks.all_tiles = (m + tile.rows - 1) / tile.rows;
  blocks.count = (blocks.all_tiles * tile.rows + kBlockRows - 1) / kBlockRows;
  blocks.tiles = (blocks.all_tiles + blocks.count - 1) / blocks.count;
  blocks.count = (blocks.all_tiles + blocks.tiles - 1) / blocks.tiles;  // none of them empty
  Index places = 0, steps = 0, panel_floats = 0;
  for (const Product& product : products) {
    places += PanelLayout(product.n, tile).vectors * blocks.count;
    for (const Product* part = &product; part != nullptr; part = part->then) {
      steps += m * part->n * part->k;
      const Index levels = tree_levels(leaf_count(part->k));
      blocks.panel_waiting = std::max(blocks.panel_waiting, blocks.tiles * tile.rows * tile.columns * levels);
      const bool columns = part->source == PanelSource::columns;
      if (columns && blocks.count == 1 && blocks.tiles > 1)
        blocks.panels = std::max<Index>(1, kFloatsTogether / tile.columns);
      if (columns || part->source == PanelSource::rows) {
        const Index leaves = leaf_count(part->k);
        blocks.slots = (blocks.count == 1 ? 1 : leaves) + (columns ? 0 : 1);
        blocks.slot_floats = tile.columns * leaf_length(part->k);
        panel_floats = blocks.slots * blocks.slot_floats;
      }
      if (part->format != WeightFormat::float32) {
        blocks.leaf_floats = std::max(blocks.leaf_floats, tile.columns * leaf_length(part->k));
      }
    }
  }
  blocks.waiting_floats = blocks.panels * blocks.panel_waiting;
  blocks.packs_blocks = products[0].packs_blocks;
  if (blocks.packs_blocks) panel_floats = blocks.tiles * tile.rows * products[0].k;
  const Index floats = blocks.waiting_floats + blocks.leaf_floats + panel_floats;
  if (steps < kSmallProduct || context.threads() == 1) {
    const DazScope daz;
    run(products, blocks, 0, places, context.scratch(0, floats));
    return;
  }
  context.parallel(places, 1, [&](Index first, Index end, int thread) {
    run(products, blocks, first, end, context.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
