// Loops of the cpu kernels: runs of values in whole and partial vectors, and serial folds with one row in each lane.
#if defined(SAMBA_CPU_VECTORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_VECTORS_INL_H_
#undef SAMBA_CPU_VECTORS_INL_H_
#else
#define SAMBA_CPU_VECTORS_INL_H_
#endif

#include <algorithm>

#include "samba/backends/cpu/lanes-inl.h"
#include "samba/core/array.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

template <class D>
HWY_INLINE Index lanes_of(D d) {
  return static_cast<Index>(hn::Lanes(d));
}

// Where a loop body reads and writes: all lanes, or the first few (the others read +0). `store` flushes; `keep` puts
// `other` into the lanes that are not there.
template <class D>
struct WholeVector {
  D d;
  HWY_INLINE hn::Vec<D> load(const float* p) const { return hn::LoadU(d, p); }
  HWY_INLINE hn::Vec<D> keep(hn::Vec<D> v, hn::Vec<D> /*other*/) const { return v; }
  HWY_INLINE void store(hn::Vec<D> v, float* p) const { hn::StoreU(flush_store(d, v), d, p); }
};

template <class D>
struct PartialVector {
  D d;
  hn::Mask<D> mask;
  HWY_INLINE hn::Vec<D> load(const float* p) const { return hn::MaskedLoad(mask, d, p); }
  HWY_INLINE hn::Vec<D> keep(hn::Vec<D> v, hn::Vec<D> other) const { return hn::IfThenElse(mask, v, other); }
  HWY_INLINE void store(hn::Vec<D> v, float* p) const { hn::BlendedStore(flush_store(d, v), mask, d, p); }
};

// body(vector, i) for i = first, first + lanes, ..., the last one partial.
template <class D, class Body>
HWY_INLINE void over_vectors(D d, Index first, Index end, Body&& body) {
  const Index lanes = lanes_of(d);
  Index i = first;
  for (; i + lanes <= end; i += lanes) body(WholeVector<D>{d}, i);
  if (i < end) body(PartialVector<D>{d, hn::FirstN(d, static_cast<std::size_t>(end - i))}, i);
}

// Signed integers in the order of spec 10 section 2.10, and back: the map is its own inverse.
template <class L>
HWY_INLINE typename L::I order_key(const L& l, typename L::I bits) {
  return hn::Xor(bits, hn::And(l.template shift_right<31>(bits), l.set_int(0x7FFFFFFF)));
}

// columns[i][l] = row(l)[i] for i < 4, l < lanes.
#if HWY_TARGET != HWY_SCALAR
template <class D, class Row>
HWY_INLINE void load_transposed(D d, Row&& row, hn::Vec<D> (&columns)[4]) {
  const hn::RepartitionToWide<hn::RebindToUnsigned<D>> wide;
  hn::Vec<D> r[4];
  for (Index i = 0; i < 4; ++i) {
    r[i] = hn::LoadDup128(d, row(i));
    for (Index block = 1; block < lanes_of(d) / 4; ++block) {
      const auto from_here = hn::Not(hn::FirstN(d, static_cast<std::size_t>(4 * block)));
      r[i] = hn::IfThenElse(from_here, hn::LoadDup128(d, row(4 * block + i)), r[i]);
    }
  }
  const auto a = hn::BitCast(wide, hn::InterleaveLower(d, r[0], r[1]));
  const auto b = hn::BitCast(wide, hn::InterleaveUpper(d, r[0], r[1]));
  const auto c = hn::BitCast(wide, hn::InterleaveLower(d, r[2], r[3]));
  const auto e = hn::BitCast(wide, hn::InterleaveUpper(d, r[2], r[3]));
  columns[0] = hn::BitCast(d, hn::InterleaveLower(wide, a, c));
  columns[1] = hn::BitCast(d, hn::InterleaveUpper(wide, a, c));
  columns[2] = hn::BitCast(d, hn::InterleaveLower(wide, b, e));
  columns[3] = hn::BitCast(d, hn::InterleaveUpper(wide, b, e));
}
#endif

// to[c * to_stride + r] = from(r)[c] for r < rows and c < columns; from(r) is the first cell of row r.
template <class From>
HWY_INLINE void transpose(Index rows, Index columns, From&& from, float* HWY_RESTRICT to, Index to_stride) {
  Index r = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::FixedTag<float, 4> d4;
  for (; r < rows / 4 * 4; r += 4) {
    const float* HWY_RESTRICT r0 = from(r);
    const float* HWY_RESTRICT r1 = from(r + 1);
    const float* HWY_RESTRICT r2 = from(r + 2);
    const float* HWY_RESTRICT r3 = from(r + 3);
    float* HWY_RESTRICT out = to + r;
    Index c = 0;
    for (; c < columns / 4 * 4; c += 4, out += 4 * to_stride) {
      const auto v0 = hn::LoadU(d4, r0 + c);
      const auto v1 = hn::LoadU(d4, r1 + c);
      const auto v2 = hn::LoadU(d4, r2 + c);
      const auto v3 = hn::LoadU(d4, r3 + c);
      const auto a0 = hn::InterleaveLower(d4, v0, v2);
      const auto a1 = hn::InterleaveLower(d4, v1, v3);
      const auto a2 = hn::InterleaveUpper(d4, v0, v2);
      const auto a3 = hn::InterleaveUpper(d4, v1, v3);
      hn::StoreU(hn::InterleaveLower(d4, a0, a1), d4, out);
      hn::StoreU(hn::InterleaveUpper(d4, a0, a1), d4, out + to_stride);
      hn::StoreU(hn::InterleaveLower(d4, a2, a3), d4, out + 2 * to_stride);
      hn::StoreU(hn::InterleaveUpper(d4, a2, a3), d4, out + 3 * to_stride);
    }
    for (; c < columns; ++c, out += to_stride) {
      out[0] = r0[c];
      out[1] = r1[c];
      out[2] = r2[c];
      out[3] = r3[c];
    }
  }
#endif
  for (; r < rows; ++r) {
    const float* row = from(r);
    for (Index c = 0; c < columns; ++c) to[c * to_stride + r] = row[c];
  }
}

// packed[p][r] = source[r * stride + p] for p < count, r < rows; lanes from `rows` to `width` are +0.
HWY_NOINLINE inline void transpose_rows(const float* HWY_RESTRICT source, Index stride, Index rows, Index count,
                                        Index width, float* HWY_RESTRICT packed) {
  transpose(
      rows, count, [&](Index r) { return source + r * stride; }, packed, width);
  if (rows == width) return;
  for (Index p = 0; p < count; ++p, packed += width) std::fill(packed + rows, packed + width, 0.0F);
}

// Ascending over the columns j in [first, end) of kSources matrices: acc = step(acc, j, values), where values[s] holds
// column j of the rows of matrix s, row r in lane r (rows <= lanes of d). Columns are transposed in small blocks.
template <int kSources, class D, class Step>
HWY_INLINE hn::Vec<D> fold_columns(D d, const float* const (&sources)[kSources], Index stride, Index rows, Index first,
                                   Index end, hn::Vec<D> acc, Step&& step) {
  constexpr Index kBlock = 32;
  const Index lanes = lanes_of(d);
  if constexpr (hn::MaxLanes(D()) == 1) {
    for (Index j = first; j < end; ++j) {
      hn::Vec<D> values[kSources];
      for (int s = 0; s < kSources; ++s) values[s] = flush_operand(d, hn::LoadU(d, sources[s] + j));
      acc = step(acc, j, values);
    }
    return acc;
  }
  HWY_ALIGN float blocks[kSources][kBlock * static_cast<Index>(hn::MaxLanes(d))];
  for (Index j = first; j < end; j += kBlock) {
    const Index count = std::min(kBlock, end - j);
    for (int s = 0; s < kSources; ++s) transpose_rows(sources[s] + j, stride, rows, count, lanes, blocks[s]);
    for (Index p = 0; p < count; ++p) {
      hn::Vec<D> values[kSources];
      for (int s = 0; s < kSources; ++s) values[s] = flush_operand(d, hn::Load(d, blocks[s] + p * lanes));
      acc = step(acc, j + p, values);
    }
  }
  return acc;
}

// body(d, row, rows) for groups of rows of [first, end) that fill the lanes of d: whole vectors, then quarters, then
// single rows. The last group of quarters may be partial.
template <class Body>
HWY_INLINE void over_row_groups(Index first, Index end, Body&& body) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 4> quarter;
  const hn::CappedTag<float, 1> single;
  Index row = first;
  for (; row + lanes_of(d) <= end; row += lanes_of(d)) body(d, row, lanes_of(d));
  while (end - row > 1) {
    const Index rows = std::min(lanes_of(quarter), end - row);
    body(quarter, row, rows);
    row += rows;
  }
  if (row < end) body(single, row, Index{1});
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
