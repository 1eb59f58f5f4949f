// The kernels of the matrix product: panels of B by blocks of rows of A (spec 10 section 3; gemm.h, gemm_tile-inl.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/gemm.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "samba/backends/cpu/gemm_kernels.h"
#include "samba/backends/cpu/gemm_tile-inl.h"
#include "samba/backends/cpu/panels-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

TileShape gemm_tile_shape() {
  const Index lanes = static_cast<Index>(hn::Lanes(hn::ScalableTag<float>()));
  return {kTileRows, kTileVectors * lanes, lanes};
}

// A leaf of one panel: `length` lines of `vectors` vectors.
template <class Cells>
struct PanelLeaf {
  const typename Cells::Cell* cells;
  const float* scales;
  Index length;
  int vectors;
};

template <class Cells>
void expand_leaf(const PanelLeaf<Cells>& leaf, float* HWY_RESTRICT values) {
  const hn::ScalableTag<float> d;
  const Index lanes = lanes_of(d);
  for (int j = 0; j < leaf.vectors; ++j) {
    const auto scale = Cells::kScaled ? hn::Load(d, leaf.scales + j * lanes) : hn::Zero(d);
    for (Index p = 0; p < leaf.length; ++p) {
      const Index at = (p * leaf.vectors + j) * lanes;
      hn::Store(Cells::load(d, leaf.cells + at, scale), d, values + at);
    }
  }
}

// One panel of a product: its place, its leaves, and the part of a thread's scratch memory it uses.
struct PanelRun {
  PanelRun(const Product& product_, const PanelLayout& layout, Index panel)
      : product(product_),
        first_vector(layout.first(panel)),
        first_column(first_vector * layout.lanes),
        columns(std::min(layout.panel_vectors(panel) * layout.lanes, product_.n - first_column)),
        vectors(static_cast<int>(layout.panel_vectors(panel))),
        width(vectors * layout.lanes) {}

  const Product& product;
  Index first_vector, first_column, columns;
  int vectors;
  Index width;  // of a line of the panel
};

// The epilogue of the cells of a tile, which lie in c.
void finish_tile(const Product& product, Index first_row, Index rows, Index first_column, Index columns) {
  const SimdLanes<hn::ScalableTag<float>> l{};
  const Epilogue& e = product.epilogue;
  for (Index row = first_row; row < first_row + rows; ++row) {
    const Index at = row * product.n + first_column;
    over_vectors(l.d, 0, columns, [&](auto io, Index j) HWY_ATTR {
      auto cells = io.load(product.c + at + j);
      if (e.bias != nullptr) cells = flush_store(l.d, l.add(cells, l.flush(io.load(e.bias + first_column + j))));
      if (e.residual != nullptr) cells = flush_store(l.d, l.add(l.flush(io.load(e.residual + at + j)), cells));
      if (e.gated != product.c) io.store(cells, product.c + at + j);
      if (e.gate == nullptr) return;
      const auto act = l.flush(elementary::silu(l, l.flush(io.load(e.gate + at + j))));
      io.store(act, e.act + at + j);
      io.store(l.mul(act, cells), e.gated + at + j);
    });
  }
}

// Scratch memory of a thread: partial tiles, a leaf of expanded cells, and what it packed last of a matrix.
struct GemmScratch {
  float* waiting;
  float* leaf;
  float* panel;                       // of B
  float* rows;                        // tiles of a block of A, [K][rows of the tile] each
  const Product* panel_of = nullptr;  // what `panel` holds
  Index panel_vector = -1;
  Index rows_block = -1;  // what `rows` holds
};

// The first row of a tile. Rows that do not fill a last tile share the last two evenly.
HWY_INLINE Index tile_row(Index m, Index tile) {
  const Index tiles = (m + kTileRows - 1) / kTileRows;
  const Index rest = m % kTileRows;
  if (tile == tiles) return m;
  return tile == tiles - 1 && tile > 0 && rest != 0 ? m - (kTileRows + rest) / 2 : tile * kTileRows;
}

// The tiles [first, end) of a block of rows.
struct TileRange {
  Index first, end;
  const float* packed;  // tile by tile; null: read where it lies
  Index count() const { return end - first; }
};

// The vectors of each line that tile `tile` of a block fetches of the leaf behind the one it works on. Together the
// first tiles fetch all of it: a leaf that comes from memory would hold up the first tile of each leaf.
template <class Cells>
HWY_INLINE void share_fetching(Index tile, Index tiles, int vectors, TileLeaf<Cells>& work) {
  work.ahead = work.length * work.b_stride;
  const int number = static_cast<int>(std::min<Index>(tile, vectors));
  work.first_ahead = tiles == 2 ? 2 * number : number;
  work.end_ahead = std::min(vectors, tiles == 2 ? 2 * number + 2 : number + 1);
}

constexpr Index kLinesAhead = 16;  // of a matrix that is read where it lies

// The tiles pass the leaves of a panel. `waiting` holds tiles * levels partial tiles. lines(leaf, length) gives the
// first line of a leaf, lines lie b_stride cells apart; with `behind` the next leaf lies behind it.
template <class Cells, RowOrder kOrder, class Lines>
void run_tiles(const PanelRun& run, const TileRange& tiles, float* waiting, Index b_stride, bool behind,
               Lines&& lines) {
  const Product& product = run.product;
  const Index leaf_size = leaf_length(product.k);
  const Index leaves = leaf_count(product.k);
  constexpr Index kTileCells = kTileRows * kTileVectors * static_cast<Index>(hn::MaxLanes(hn::ScalableTag<float>()));
  for (Index leaf = 0; leaf < leaves; ++leaf) {
    const Index first = leaf * leaf_size;
    TileLeaf<Cells> work;
    work.length = std::min(leaf_size, product.k - first);
    work.b = lines(leaf, work.length);
    work.b_stride = b_stride;
    work.scales = Cells::kScaled ? product.scales + run.first_column : nullptr;
    work.ahead = 0;
    work.first_ahead = work.end_ahead = 0;
    if (b_stride != run.width) {  // lines that lie apart
      work.ahead = kLinesAhead * b_stride;
      work.end_ahead = run.vectors;
    }
    work.leaf = leaf;
    work.last = leaf + 1 == leaves;
    work.level_stride = tiles.count() * kTileCells;
    work.c_stride = product.n;
    work.columns = run.columns;
    for (Index tile = tiles.first; tile < tiles.end; ++tile) {
      const Index row = tile_row(product.m, tile);
      const Index rows = tile_row(product.m, tile + 1) - row;
      if (tiles.packed == nullptr) {
        work.a_stride = product.a_stride;
        work.a = a_cell<kOrder>(product.a, product.a_stride, row, first);
      } else {
        work.a_stride = rows;
        work.a = tiles.packed + (row - tile_row(product.m, tiles.first)) * product.k + first * rows;
      }
      work.waiting = waiting + (tile - tiles.first) * kTileCells;
      work.c = product.c + row * product.n + run.first_column;
      if (behind && tiles.count() > 1) share_fetching(tile - tiles.first, tiles.count(), run.vectors, work);
      run_tile<Cells, kOrder>(static_cast<int>(rows), run.vectors, work);
      if (work.last && product.epilogue.any()) finish_tile(product, row, rows, run.first_column, run.columns);
    }
  }
}

template <class Cells, RowOrder kOrder>
void run_prepared(const PanelRun& run, const TileRange& tiles, GemmScratch& scratch) {
  const Product& product = run.product;
  const auto* cells = static_cast<const typename Cells::Cell*>(product.b) + run.first_column * product.k;
  const Index leaf_cells = leaf_length(product.k) * run.width;
  if (std::is_same_v<Cells, FloatCells> || tiles.count() == 1) {
    run_tiles<Cells, kOrder>(run, tiles, scratch.waiting, run.width, true,
                             [&](Index leaf, Index) { return cells + leaf * leaf_cells; });
    return;
  }
  run_tiles<FloatCells, kOrder>(run, tiles, scratch.waiting, run.width, false, [&](Index leaf, Index length) HWY_ATTR {
    const float* scales = Cells::kScaled ? product.scales + run.first_column : nullptr;
    expand_leaf(PanelLeaf<Cells>{cells + leaf * leaf_cells, scales, length, run.vectors}, scratch.leaf);
    return static_cast<const float*>(scratch.leaf);
  });
}

// Fetches what a panel will take next of a matrix: `length` floats of each of `rows` rows.
HWY_INLINE void fetch_rows(const float* from, Index stride, Index rows, Index length) {
  constexpr Index kLineFloats = 16;
  for (Index r = 0; r < rows; ++r) {
    for (Index p = 0; p < length; p += kLineFloats) hwy::Prefetch(from + r * stride + p);
  }
}

template <RowOrder kOrder>
void run_matrix(const PanelRun& run, const TileRange& tiles, GemmScratch& scratch) {
  const Product& product = run.product;
  const auto* b = static_cast<const float*>(product.b);
  const Index k = product.k, leaf_size = leaf_length(k);
  const bool columns = product.source == PanelSource::columns;
  if (columns && product.m <= kTileRows && run.columns == run.width) {
    run_tiles<FloatCells, kOrder>(run, tiles, scratch.waiting, product.n, false, [&](Index leaf, Index) {
      return b + leaf * leaf_size * product.n + run.first_column;
    });
    return;
  }
  const bool held = scratch.panel_of == &product && scratch.panel_vector == run.first_vector;
  scratch.panel_of = &product;
  scratch.panel_vector = run.first_vector;
  const auto lines = [&](Index leaf, Index length) HWY_ATTR {
    const Index first = leaf * leaf_size;
    float* to = scratch.panel + first * run.width;
    if (held) return static_cast<const float*>(to);
    if (columns) {
      const float* from = b + first * product.n + run.first_column;
      copy_lines(from, product.n, run.columns, length, run.width, to);
      fetch_rows(from + length * product.n, product.n, std::min(leaf_size, k - first - length), run.columns);
    } else {
      const float* from = b + run.first_column * k + first;
      transpose_lines(from, k, run.columns, length, run.width, to);
      fetch_rows(from + length, k, run.columns, std::min(leaf_size, k - first - length));
    }
    return static_cast<const float*>(to);
  };
  run_tiles<FloatCells, kOrder>(run, tiles, scratch.waiting, run.width, held, lines);
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
  run_tiles<FloatCells, kOrder>(run, tiles, scratch.waiting, run.width, false, [&](Index leaf, Index length) {
    product.block_kernels.expand({weight, run.first_column, run.columns, run.width, leaf * leaf_size, length},
                                 scratch.leaf);
    return static_cast<const float*>(scratch.leaf);
  });
}

template <RowOrder kOrder>
void run_panel(const PanelRun& run, const TileRange& tiles, GemmScratch& scratch) {
  if (run.product.source == PanelSource::blocks) return run_blocks<kOrder>(run, tiles, scratch);
  if (run.product.source != PanelSource::prepared) return run_matrix<kOrder>(run, tiles, scratch);
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

// The tiles [first, end) of a[k, m], one behind the other. A few lines of all tiles are taken at a time: as many
// streams are read, and each tile is written in runs.
void pack_rows(const Product& product, Index first, Index end, float* packed) {
  constexpr Index kLines = 16;
  const Index first_row = tile_row(product.m, first);
  for (Index first_line = 0; first_line < product.k; first_line += kLines) {
    const Index end_line = std::min(product.k, first_line + kLines);
    for (Index tile = first; tile < end; ++tile) {
      const Index row = tile_row(product.m, tile);
      const Index rows = tile_row(product.m, tile + 1) - row;
      for (Index p = first_line; p < end_line; ++p) {
        const float* from = product.a + p * product.a_stride + row;
        float* to = packed + (row - first_row) * product.k + p * rows;
        if (rows == kTileRows) {
          std::memcpy(to, from, kTileRows * sizeof(float));
        } else {
          std::copy_n(from, rows, to);
        }
      }
    }
  }
}

void gemm_pack_rows(const Product& product, Index first, Index end, float* packed) {
  pack_rows(product, first, end, packed + tile_row(product.m, first) * product.k);
}

void run_unit(const Product& product, const PanelLayout& layout, Index panel, Index block, const RowBlocks& blocks,
              GemmScratch& scratch) {
  TileRange tiles{block * blocks.tiles, std::min(blocks.all_tiles, (block + 1) * blocks.tiles), nullptr};
  if (product.packed_a != nullptr) tiles.packed = product.packed_a + tile_row(product.m, tiles.first) * product.k;
  if (blocks.packs_blocks) {
    if (scratch.rows_block != block) pack_rows(product, tiles.first, tiles.end, scratch.rows);
    scratch.rows_block = block;
    tiles.packed = scratch.rows;
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
                      memory + blocks.waiting_floats + blocks.leaf_floats};  // never a panel and rows in one call
  const TileShape shape = gemm_tile_shape();
  Index place = 0;
  for (const Product& product : products) {
    const PanelLayout layout(product.n, shape);
    const Index panels = layout.count();
    for (Index unit = 0; unit < panels * blocks.count; ++unit) {
      const Index panel = blocks.packs_blocks ? unit % panels : unit / blocks.count;
      const Index block = blocks.packs_blocks ? unit / panels : unit % blocks.count;
      if (place >= end) return;
      if (place >= first) run_unit(product, layout, panel, block, blocks, scratch);
      place += layout.panel_vectors(panel);
    }
  }
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
HWY_EXPORT(gemm_pack_panel);
HWY_EXPORT(gemm_pack_rows);

namespace {

constexpr Index kBlockRows = 64;             // rows that walk the leaves of a panel together
constexpr Index kSmallProduct = 128 * 1024;  // fused steps below which one thread multiplies faster than a team
constexpr Index kSmallPack = 32 * 1024;      // cells below which one thread packs faster than a team

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
  constexpr Index kTogether = 64;  // tiles
  const auto run = SAMBA_CPU_KERNEL(context, gemm_pack_rows);
  const Index rows = tile_shape(context).rows;
  context.parallel((product.m + rows - 1) / rows, kTogether, [&](Index first, Index end, int) {
    for (Index tile = first; tile < end; tile += kTogether) {
      run(product, tile, std::min(end, tile + kTogether), packed);
    }
  });
}

void multiply(Context& context, std::span<const Product> products) {
  const auto run = SAMBA_CPU_KERNEL(context, gemm_run);
  const TileShape tile = tile_shape(context);
  const Index m = products[0].m;
  RowBlocks blocks;
  blocks.all_tiles = (m + tile.rows - 1) / tile.rows;
  blocks.count = (blocks.all_tiles * tile.rows + kBlockRows - 1) / kBlockRows;
  blocks.tiles = (blocks.all_tiles + blocks.count - 1) / blocks.count;
  Index places = 0, steps = 0, panel_floats = 0;
  for (const Product& product : products) {
    places += PanelLayout(product.n, tile).vectors * blocks.count;
    for (const Product* part = &product; part != nullptr; part = part->then) {
      steps += m * part->n * part->k;
      const Index levels = tree_levels(leaf_count(part->k));
      blocks.waiting_floats = std::max(blocks.waiting_floats, blocks.tiles * tile.rows * tile.columns * levels);
      const bool packs = part->source == PanelSource::rows || part->source == PanelSource::columns;
      if (packs) panel_floats = std::max(panel_floats, tile.columns * part->k);
      if (part->format != WeightFormat::float32) {
        blocks.leaf_floats = std::max(blocks.leaf_floats, tile.columns * leaf_length(part->k));
      }
    }
  }
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
