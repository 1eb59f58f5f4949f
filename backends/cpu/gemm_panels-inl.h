// Panels of B by blocks of rows of A: the leaves of one panel, over the tiles of a block, once per target.
#if defined(SAMBA_CPU_GEMM_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_GEMM_PANELS_INL_H_
#undef SAMBA_CPU_GEMM_PANELS_INL_H_
#else
#define SAMBA_CPU_GEMM_PANELS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <type_traits>

#include "samba/backends/cpu/gemm_kernels.h"
#include "samba/backends/cpu/gemm_tile-inl.h"
#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

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

// One panel of a product.
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
inline void finish_tile(const Product& product, Index first_row, Index rows, Index first_column, Index columns) {
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

// The places that the lines of a leaf ask for (TileLeaf), made again when its key changes.
struct FetchPlan {
  static constexpr int kMost = 3;  // of one line

  // `count` of each line p, at p * stride + j * step bytes.
  void lines(int count, Index stride, Index step) {
    if (!changes({count, stride, step, -1})) return;
    fetches = count;
    for (Index at = 0; at < count * kLeaf; ++at)
      offsets[static_cast<std::size_t>(at)] = at / count * stride + at % count * step;
  }
  // `pieces` places of `rows` rows each, in order, so that the last is asked for by line 3 / 4 * length or so.
  void rows(Index rows, Index row_stride, Index pieces, Index piece_stride, Index length) {
    if (!changes({rows, row_stride, pieces, piece_stride})) return;
    const Index count = rows * pieces;
    fetches = static_cast<int>(std::min<Index>(kMost, (4 * count + 3 * length - 1) / (3 * length)));
    for (Index at = 0; at < fetches * kLeaf; ++at) {
      const Index place = std::min(at, count - 1);
      offsets[static_cast<std::size_t>(at)] = place / pieces * row_stride + place % pieces * piece_stride;
    }
  }
  template <class Work>
  void ask(const void* from, Work& work) const {
    work.fetch = static_cast<const char*>(from);
    work.fetch_offsets = offsets.data();
    work.fetches = fetches;
  }

  int fetches = 0;
  std::array<Index, kMost * kLeaf> offsets{};

 private:
  bool changes(const std::array<Index, 4>& key) {
    if (key == key_) return false;
    key_ = key;
    return true;
  }
  std::array<Index, 4> key_{};
};

// Scratch memory of a thread: partial tiles, a leaf of expanded cells, and what it packs of a matrix.
struct GemmScratch {
  float* waiting;
  float* leaf;
  float* panels;          // of B
  float* rows;            // tiles of a block of A
  Index rows_block = -1;  // what `rows` holds
  FetchPlan plan{};
};

// The first row of a tile. Rows that do not fill a last tile share the last two evenly.
HWY_INLINE Index tile_row(Index m, Index tile) {
  const Index tiles = (m + kTileRows - 1) / kTileRows;
  const Index rest = m % kTileRows;
  if (tile == tiles) return m;
  return tile == tiles - 1 && tile > 0 && rest != 0 ? m - (kTileRows + rest) / 2 : tile * kTileRows;
}

// Packed columns of A: of each leaf the tiles, one behind the other, [length][rows of the tile] each.
struct PackedRows {
  float* cells;
  Index first, count;  // the rows

  HWY_INLINE float* tile(Index row, Index term, Index length) const {
    return cells + term * count + (row - first) * length;
  }
};

// The tiles [first, end) of a block of rows.
struct TileRange {
  Index first, end;
  PackedRows packed;  // without cells: read where they lie
  Index count() const { return end - first; }
};

inline constexpr Index kTileCells =
    kTileRows * kTileVectors * static_cast<Index>(hn::MaxLanes(hn::ScalableTag<float>()));

// The place of a leaf of a panel: its first line, and the cells from line to line.
template <class Cells>
struct LeafLines {
  const typename Cells::Cell* first;
  Index stride;
};

inline constexpr Index kColumnsAhead = 8;  // lines of A where it lies

// The tiles pass one leaf. `waiting` holds tiles * levels partial tiles. before(tile, work) says what a tile asks for,
// after(tile) follows it; tiles are counted within the block.
template <class Cells, RowOrder kOrder, class Before, class After>
HWY_INLINE void run_leaf(const PanelRun& run, const TileRange& tiles, float* waiting, Index leaf,
                         const LeafLines<Cells>& lines, Before&& before, After&& after) {
  const Product& product = run.product;
  const Index leaf_size = leaf_length(product.k);
  const Index first = leaf * leaf_size;
  TileLeaf<Cells> work;
  work.length = std::min(leaf_size, product.k - first);
  work.scales = Cells::kScaled ? product.scales + run.first_column : nullptr;
  work.leaf = leaf;
  work.last = leaf + 1 == leaf_count(product.k);
  work.level_stride = tiles.count() * kTileCells;
  work.c_stride = product.n;
  work.columns = run.columns;
  for (Index tile = tiles.first; tile < tiles.end; ++tile) {
    const Index row = tile_row(product.m, tile);
    const Index rows = tile_row(product.m, tile + 1) - row;
    if (tiles.packed.cells == nullptr) {
      work.a_stride = product.a_stride;
      work.a = a_cell<kOrder>(product.a, product.a_stride, row, first);
      work.a_ahead = kColumnsAhead * work.a_stride;
    } else {
      work.a_stride = rows;
      work.a = tiles.packed.tile(row, first, work.length);
      work.a_ahead = rows * work.length;
    }
    work.waiting = waiting + (tile - tiles.first) * kTileCells;
    work.c = product.c + row * product.n + run.first_column;
    work.fetch = nullptr;
    work.fetch_offsets = nullptr;
    work.fetches = 0;
    work.b = lines.first;
    work.b_stride = lines.stride;
    work.packed = nullptr;
    before(tile - tiles.first, work);
    if (std::is_same_v<Cells, FloatCells> && work.packed != nullptr) {
      run_tile<Cells, kOrder, std::is_same_v<Cells, FloatCells>>(static_cast<int>(rows), run.vectors, work);
    } else {
      run_tile<Cells, kOrder, false>(static_cast<int>(rows), run.vectors, work);
    }
    if (work.last && product.epilogue.any()) finish_tile(product, row, rows, run.first_column, run.columns);
    after(tile - tiles.first);
  }
}

// All leaves of a panel whose lines lie one behind the other; lines(leaf, length) gives the first line of a leaf.
template <class Cells, RowOrder kOrder, class Lines, class Before>
void run_leaves(const PanelRun& run, const TileRange& tiles, float* waiting, Lines&& lines, Before&& before) {
  const Index leaf_size = leaf_length(run.product.k);
  const Index leaves = leaf_count(run.product.k);
  for (Index leaf = 0; leaf < leaves; ++leaf) {
    const Index length = std::min(leaf_size, run.product.k - leaf * leaf_size);
    run_leaf<Cells, kOrder>(run, tiles, waiting, leaf, LeafLines<Cells>{lines(leaf, length), run.width}, before,
                            [](Index) {});
  }
}

// How the first tiles of a leaf ask for the leaf behind it, a vector of each line each (of two tiles, two vectors): a
// leaf that comes from memory would hold up the first tile of each leaf.
template <class Cells>
class LeafAhead {
 public:
  LeafAhead(const PanelRun& run, const TileRange& tiles, FetchPlan& plan)
      : plan_(plan),
        vectors_(run.vectors),
        lanes_(run.width / run.vectors),
        together_(tiles.count() == 2 ? 2 : 1),
        fetches_(tiles.count() > 1 && leaf_length(run.product.k) <= kLeaf) {
    constexpr Index kBytes = sizeof(typename Cells::Cell);
    if (fetches_) plan.lines(static_cast<int>(together_), run.width * kBytes, lanes_ * kBytes);
  }
  HWY_INLINE void ask(Index tile, const typename Cells::Cell* behind, TileLeaf<Cells>& work) const {
    if (fetches_ && tile * together_ < vectors_) plan_.ask(behind + tile * together_ * lanes_, work);
  }

 private:
  const FetchPlan& plan_;
  Index vectors_, lanes_, together_;
  bool fetches_;
};

template <class Cells, RowOrder kOrder>
void run_prepared(const PanelRun& run, const TileRange& tiles, GemmScratch& scratch) {
  using Cell = typename Cells::Cell;
  const Product& product = run.product;
  const auto* cells = static_cast<const Cell*>(product.b) + run.first_column * product.k;
  const Index leaf_cells = leaf_length(product.k) * run.width;
  if (std::is_same_v<Cells, FloatCells> || tiles.count() == 1) {
    const LeafAhead<Cells> ahead(run, tiles, scratch.plan);
    run_leaves<Cells, kOrder>(
        run, tiles, scratch.waiting, [&](Index leaf, Index) { return cells + leaf * leaf_cells; },
        [&](Index tile, TileLeaf<Cells>& work) HWY_ATTR { ahead.ask(tile, work.b + work.length * run.width, work); });
    return;
  }
  run_leaves<FloatCells, kOrder>(
      run, tiles, scratch.waiting,
      [&](Index leaf, Index length) HWY_ATTR {
        const float* scales = Cells::kScaled ? product.scales + run.first_column : nullptr;
        expand_leaf(PanelLeaf<Cells>{cells + leaf * leaf_cells, scales, length, run.vectors}, scratch.leaf);
        return static_cast<const float*>(scratch.leaf);
      },
      [](Index, TileLeaf<FloatCells>&) {});
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
