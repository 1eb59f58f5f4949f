// What the chunked scans share, once per target: vectors with flushed operations, products of small matrices, chains
// along rows. Everything runs inside a DazScope (lanes-inl.h).
#if defined(SAMBA_CPU_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_TILES_INL_H_
#undef SAMBA_CPU_TILES_INL_H_
#else
#define SAMBA_CPU_TILES_INL_H_
#endif

#include <algorithm>

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/core/array.h"
#include "samba/numerics/elementary.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::tiles {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
using M = hn::Mask<D>;
inline constexpr Index kLanes = static_cast<Index>(hn::MaxLanes(D()));

// Vectors of one row of a product tile; with 4 rows the tile covers the latency of the fused step.
#if HWY_TARGET <= HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr Index kTileVectors = 4;
#else
inline constexpr Index kTileVectors = 2;
#endif

HWY_INLINE V load(const float* p) { return flush_operand(D(), hn::LoadU(D(), p)); }
HWY_INLINE V broadcast(const float* p) { return flush_operand(D(), hn::Set(D(), *p)); }
HWY_INLINE V constant(float x) { return hn::Set(D(), x); }
HWY_INLINE V zero() { return hn::Zero(D()); }
HWY_INLINE void store(V x, float* p) { hn::StoreU(flush_store(D(), x), D(), p); }

HWY_INLINE V mul(V a, V b) { return flush_operand(D(), hn::Mul(a, b)); }
HWY_INLINE V add(V a, V b) { return flush_operand(D(), hn::Add(a, b)); }
HWY_INLINE V sub(V a, V b) { return flush_operand(D(), hn::Sub(a, b)); }
HWY_INLINE V mad(V a, V b, V c) { return flush_operand(D(), fused(D(), a, b, c)); }
HWY_INLINE V negate(V a) { return hn::Xor(a, hn::Set(D(), -0.0F)); }
HWY_INLINE V select(M mask, V yes, V no) { return hn::IfThenElse(mask, yes, no); }
HWY_INLINE SimdLanes<D> lanes() { return {}; }

HWY_INLINE V div(V a, V b) { return elementary::divide(lanes(), a, b); }
HWY_INLINE V exp(V x) { return flush_operand(D(), elementary::exp(lanes(), x)); }
HWY_INLINE V sigmoid(V x) { return flush_operand(D(), elementary::sigmoid(lanes(), x)); }
HWY_INLINE V silu(V x) { return flush_operand(D(), elementary::silu(lanes(), x)); }

// One value; under DAZ the plain operations are the flushed ones.
HWY_INLINE float mad_one(float a, float b, float c) {
#if SAMBA_HAS_DAZ
  return std::fma(a, b, c);
#else
  return samba::mad(a, b, c);
#endif
}

// The lanes' own numbers first, first + 1, ...
HWY_INLINE V iota(Index first) { return hn::Iota(D(), static_cast<float>(first)); }

// For each vector of [0, count), count a multiple of kLanes: body(offset).
template <class Body>
HWY_INLINE void each_vector(Index count, Body&& body) {
  for (Index i = 0; i < count; i += kLanes) body(i);
}

inline constexpr Index round_up_to_lanes(Index count) { return (count + kLanes - 1) / kLanes * kLanes; }

// An operand a(row, k) = data[(row - first) * row_stride + k * step].
struct Strided {
  const float* data;
  Index row_stride;
  Index step;
  Index first = 0;  // the row at which data starts
};

template <int kRows, int kVectors, class Start, class Finish>
HWY_INLINE void product_tile(Strided a, Index row, const float* HWY_RESTRICT b, Index b_stride, Index x, Index first,
                             Index last, Start&& start, Finish&& finish) {
  V acc[kRows][kVectors];
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) acc[i][v] = start(row + i, x + v * kLanes);
  }
  const float* HWY_RESTRICT left = a.data + (row - a.first) * a.row_stride;
  for (Index k = first; k < last; ++k) {
    V right[kVectors];
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) right[v] = load(b + k * b_stride + x + v * kLanes);
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      const V factor = broadcast(left + i * a.row_stride + k * a.step);
      HWY_UNROLL(8)
      for (int v = 0; v < kVectors; ++v) acc[i][v] = mad(factor, right[v], acc[i][v]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(8)
    for (int v = 0; v < kVectors; ++v) finish(row + i, x + v * kLanes, acc[i][v]);
  }
}

// Rows [row, row + kRows) of c(row, x) = chain over k in [first, last) of mad(a(row, k), b[k][x], .) from start(row,
// x), x < width, a multiple of kLanes. finish(row, x, value) takes the vector of cells from x on.
template <int kRows, class Start, class Finish>
HWY_INLINE void product_rows_from(Strided a, Index row, const float* b, Index b_stride, Index width, Index first,
                                  Index last, Start&& start, Finish&& finish) {
  Index x = 0;
  for (; x + kTileVectors * kLanes <= width; x += kTileVectors * kLanes) {
    product_tile<kRows, kTileVectors>(a, row, b, b_stride, x, first, last, start, finish);
  }
  for (; x < width; x += kLanes) product_tile<kRows, 1>(a, row, b, b_stride, x, first, last, start, finish);
}

// The same from +0.
template <int kRows, class Finish>
HWY_INLINE void product_rows(Strided a, Index row, const float* b, Index b_stride, Index width, Index first, Index last,
                             Finish&& finish) {
  const auto start = [](Index, Index) HWY_ATTR { return zero(); };
  product_rows_from<kRows>(a, row, b, b_stride, width, first, last, start, finish);
}

// Rows [row, rows) of the product over k in [first, last).
template <class Finish>
HWY_INLINE void product_part(Index row, Index rows, Strided a, const float* b, Index b_stride, Index width, Index first,
                             Index last, Finish&& finish) {
  const Index whole = row + (rows - row) / 4 * 4;
  for (; row < whole; row += 4) product_rows<4>(a, row, b, b_stride, width, first, last, finish);
  for (; row < rows; ++row) product_rows<1>(a, row, b, b_stride, width, first, last, finish);
}

// The whole product: rows [row, rows).
template <class Finish>
HWY_INLINE void product(Index row, Index rows, Strided a, const float* b, Index b_stride, Index width, Index depth,
                        Finish&& finish) {
  product_part(row, rows, a, b, b_stride, width, 0, depth, finish);
}

// The tile of packed_product: as many chains as hide the latency of the fused step, few loads beside them.
#if HWY_TARGET <= HWY_AVX3
inline constexpr int kPackedRows = 8;
#else
inline constexpr int kPackedRows = 4;
#endif
inline constexpr int kPackedVectors = 2;
inline constexpr Index kPackedWidth = kPackedVectors * kLanes;

// finish(row, x, chain over k < depth of mad(a(row, k), right(k, x), .)) for row < rows, a multiple of 8, and x <
// width, a multiple of the packed width. right(k, x) is the vector of cells from x on. A few columns at a time lie
// densely in `packed` [depth][kPackedWidth], in the first-level cache, while all rows pass them.
template <class Right, class Finish>
HWY_INLINE void packed_product(Index rows, Strided a, Index width, Index depth, Right&& right, float* packed,
                               Finish&& finish) {
  const auto start = [](Index, Index) HWY_ATTR { return zero(); };
  for (Index first = 0; first < width; first += kPackedWidth) {
    for (Index k = 0; k < depth; ++k) {
      float* line = packed + k * kPackedWidth;
      each_vector(kPackedWidth, [&](Index x) { store(right(k, first + x), line + x); });
    }
    for (Index row = 0; row < rows; row += kPackedRows) {
      product_tile<kPackedRows, kPackedVectors>(a, row, packed, kPackedWidth, 0, 0, depth, start,
                                                [&](Index i, Index x, V sum) { finish(i, first + x, sum); });
    }
  }
}

template <int kRows, class Finish>
HWY_INLINE void row_dots_block(Index row, Index depth, const float* HWY_RESTRICT x, Index x_stride,
                               const float* HWY_RESTRICT y, Index y_stride, Finish&& finish) {
  float acc[kRows] = {};
  for (Index k = 0; k < depth; ++k) {
    HWY_UNROLL(8)
    for (int i = 0; i < kRows; ++i) {
      acc[i] = mad_one(x[(row + i) * x_stride + k], y[(row + i) * y_stride + k], acc[i]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kRows; ++i) finish(row + i, flush(acc[i]));
}

// finish(row, chain over k < depth of mad(x[row][k], y[row][k], .)): serial chains, 8 rows side by side.
template <class Finish>
HWY_INLINE void row_dots(Index rows, Index depth, const float* x, Index x_stride, const float* y, Index y_stride,
                         Finish&& finish) {
  Index row = 0;
  for (; row < rows / 8 * 8; row += 8) row_dots_block<8>(row, depth, x, x_stride, y, y_stride, finish);
  for (; row < rows; ++row) row_dots_block<1>(row, depth, x, x_stride, y, y_stride, finish);
}

// True when every value is finite. `count` is a multiple of kLanes.
HWY_INLINE bool all_finite(const float* x, Index count) {
  const hn::RebindToUnsigned<D> du;
  auto bad = hn::Zero(du);
  const auto mask = hn::Set(du, kExponentMask);
  for (Index i = 0; i < count; i += kLanes) {
    const auto exponent = hn::And(hn::BitCast(du, hn::LoadU(D(), x + i)), mask);
    bad = hn::Or(bad, hn::VecFromMask(du, hn::Eq(exponent, mask)));
  }
  return hn::AllTrue(du, hn::Eq(bad, hn::Zero(du)));
}

// True when a lane of a flushed vector is -0.0.
HWY_INLINE bool has_negative_zero(V flushed) {
  const hn::RebindToUnsigned<D> du;
  return !hn::AllFalse(du, hn::Eq(hn::BitCast(du, flushed), hn::Set(du, kSignBit)));
}

}  // namespace samba::cpu::HWY_NAMESPACE::tiles
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
