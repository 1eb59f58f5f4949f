// The register tile of the matrix product, once per target.
//
// One call runs one leaf of R rows by V vectors of columns: R*V independent chains of fused steps, ascending in p, and
// combines the finished partial with the partials of earlier leaves by the binary counter of spec 10 section 3:
// leaf t joins the waiting partials of the trailing ones of t; the last leaf joins all that wait. Inside a DazScope the
// intermediate flushes are the identity, so only the stored cell is flushed by bits.
#if defined(SAMBA_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_GEMM_TILE_INL_H_
#undef SAMBA_CPU_GEMM_TILE_INL_H_
#else
#define SAMBA_CPU_GEMM_TILE_INL_H_
#endif

#include <hwy/cache_control.h>

#include "samba/backends/cpu/gemm.h"
#include "samba/backends/cpu/packed_cells-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// Tile sizes: AVX-512 has 32 registers (8 x 3 accumulators, 3 operands, 1 broadcast), AVX2 and the others 16 (4 x 3
// accumulators, 3 operands, 1 broadcast, or 6 x 2, 2 and 1). A full tile takes kTileLines lines of a leaf a turn.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kTileRows = 8;
inline constexpr int kTileVectors = 3;
inline constexpr Index kTileLines = 4;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kTileRows = 4;
inline constexpr int kTileVectors = 3;
inline constexpr Index kTileLines = 16;
#else
inline constexpr int kTileRows = 6;
inline constexpr int kTileVectors = 2;
inline constexpr Index kTileLines = 4;
#endif

template <class Cells>
struct TileLeaf {
  const float* a;  // a(first row, first term of the leaf)
  Index a_stride;
  Index a_ahead;                  // from a line of columns to one that is fetched early
  const typename Cells::Cell* b;  // line p at b + p * b_stride, V vectors
  Index b_stride;
  float* packed = nullptr;     // where the lines of float cells are written, one behind the other, as they are read
  const float* scales;         // [V * lanes], of int8 cells
  const char* fetch;           // `fetches` lines of memory are asked for beside each line of the leaf, at
  const Index* fetch_offsets;  // fetch + fetch_offsets[fetches * p + j]
  int fetches;
  Index length;
  Index leaf;  // t
  bool last;
  float* waiting;      // partial tiles by level, each [R][V * lanes]
  Index level_stride;  // floats between two levels
  float* c;            // the tile's first cell
  Index c_stride;
  Index columns;  // valid columns, <= V * lanes
};

template <RowOrder kOrder>
HWY_INLINE const float* a_cell(const float* a, Index stride, Index row, Index p) {
  return kOrder == RowOrder::rows ? a + row * stride + p : a + p * stride + row;
}

template <class Cells, RowOrder kOrder, bool kPacks, int R, int V>
HWY_INLINE void run_tile_leaf(const TileLeaf<Cells>& leaf) {
  const hn::ScalableTag<float> d;
  const Index lanes = static_cast<Index>(hn::Lanes(d));
  hn::Vec<decltype(d)> scales[V], acc[R][V];
#pragma GCC unroll 3
  for (int j = 0; j < V; ++j) scales[j] = Cells::kScaled ? hn::Load(d, leaf.scales + j * lanes) : hn::Zero(d);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
#pragma GCC unroll 3
    for (int j = 0; j < V; ++j) acc[i][j] = hn::Zero(d);
  }
  const float* HWY_RESTRICT a = leaf.a;
  const typename Cells::Cell* HWY_RESTRICT b = leaf.b;
  [[maybe_unused]] float* HWY_RESTRICT packed = leaf.packed;
  const Index* HWY_RESTRICT offset = leaf.fetch_offsets;
  const auto step = [&](Index p) HWY_ATTR {
    if constexpr (kOrder == RowOrder::columns) hwy::Prefetch(a + p * leaf.a_stride + leaf.a_ahead);
    hn::Vec<decltype(d)> columns[V];
#pragma GCC unroll 3
    for (int j = 0; j < V; ++j) {
      columns[j] = Cells::load(d, b + j * lanes, scales[j]);
      if constexpr (kPacks) hn::Store(columns[j], d, packed + j * lanes);
      columns[j] = flush_operand(d, columns[j]);
    }
    if constexpr (kPacks) packed += V * lanes;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const auto value = flush_operand(d, hn::Set(d, *a_cell<kOrder>(a, leaf.a_stride, i, p)));
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) acc[i][j] = flush_operand(d, fused(d, value, columns[j], acc[i][j]));
    }
    b += leaf.b_stride;
  };
  // A group of lines a turn: the end of a leaf is then no surprise to the processor.
  constexpr Index kTogether = R >= kTileRows && V == kTileVectors ? kTileLines : 1;
  Index p = 0;
  for (; p + kTogether <= leaf.length; p += kTogether) {
    for (Index j = 0; j < kTogether * leaf.fetches; ++j) hwy::Prefetch(leaf.fetch + *offset++);
    if constexpr (kTogether > 1 && HWY_TARGET != HWY_SCALAR) {
      const Index row = p / kTogether;
      if (leaf.last && row < R) {  // where the cells will be stored
#pragma GCC unroll 3
        for (int j = 0; j < V; ++j) __builtin_prefetch(leaf.c + row * leaf.c_stride + j * lanes, 1);
      }
    }
#pragma GCC unroll 16
    for (Index line = 0; line < kTogether; ++line) step(p + line);
  }
  for (; p < leaf.length; ++p) step(p);

  // Pairings of the tree: with the last leaf every waiting level, else the trailing ones of t.
  Index level = 0;
  for (Index rest = leaf.leaf; rest != 0; rest >>= 1, ++level) {
    if ((rest & 1) == 0) {
      if (!leaf.last) break;
      continue;
    }
    const float* HWY_RESTRICT lower = leaf.waiting + level * leaf.level_stride;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) {
        acc[i][j] = flush_operand(d, hn::Add(hn::Load(d, lower + (i * V + j) * lanes), acc[i][j]));
      }
    }
  }

  if (!leaf.last) {
    float* HWY_RESTRICT waiting = leaf.waiting + level * leaf.level_stride;
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) hn::Store(acc[i][j], d, waiting + (i * V + j) * lanes);
    }
    return;
  }
  if (leaf.columns == V * lanes) {
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
#pragma GCC unroll 3
      for (int j = 0; j < V; ++j) hn::StoreU(flush_store(d, acc[i][j]), d, leaf.c + i * leaf.c_stride + j * lanes);
    }
    return;
  }
  const Index whole = leaf.columns / lanes;
  const std::size_t rest = static_cast<std::size_t>(leaf.columns % lanes);
#pragma GCC unroll 8
  for (int i = 0; i < R; ++i) {
    float* row = leaf.c + i * leaf.c_stride;
#pragma GCC unroll 3
    for (int j = 0; j < V; ++j) {
      const auto cells = flush_store(d, acc[i][j]);
      if (j < whole) {
        hn::StoreU(cells, d, row + j * lanes);
      } else if (rest != 0) {
        hn::BlendedStore(cells, hn::FirstN(d, rest), d, row + j * lanes);
      }
    }
  }
}

template <class Cells, RowOrder kOrder, bool kPacks, int V>
void run_tile_rows(int rows, const TileLeaf<Cells>& leaf) {
  switch (rows) {
    case 1:
      return run_tile_leaf<Cells, kOrder, kPacks, 1, V>(leaf);
    case 2:
      return run_tile_leaf<Cells, kOrder, kPacks, 2, V>(leaf);
    case 3:
      return run_tile_leaf<Cells, kOrder, kPacks, 3, V>(leaf);
    case 4:
      return run_tile_leaf<Cells, kOrder, kPacks, 4, V>(leaf);
#if HWY_TARGET != HWY_AVX2
    case 5:
      return run_tile_leaf<Cells, kOrder, kPacks, 5, V>(leaf);
    case 6:
      return run_tile_leaf<Cells, kOrder, kPacks, 6, V>(leaf);
#endif
#if HWY_TARGET <= HWY_AVX3
    case 7:
      return run_tile_leaf<Cells, kOrder, kPacks, 7, V>(leaf);
    case 8:
      return run_tile_leaf<Cells, kOrder, kPacks, 8, V>(leaf);
#endif
    default:
      return;
  }
}

template <class Cells, RowOrder kOrder, bool kPacks>
HWY_INLINE void run_tile(int rows, int vectors, const TileLeaf<Cells>& leaf) {
  switch (vectors) {
    case 1:
      return run_tile_rows<Cells, kOrder, kPacks, 1>(rows, leaf);
    case 2:
      return run_tile_rows<Cells, kOrder, kPacks, 2>(rows, leaf);
#if HWY_TARGET <= HWY_AVX2
    case 3:
      return run_tile_rows<Cells, kOrder, kPacks, 3>(rows, leaf);
#endif
    default:
      return;
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
