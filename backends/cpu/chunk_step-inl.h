// What a decode step of Mamba-2 and Mamba-3 needs beside the tiles: columns of rows that lie apart, turned into lanes
// in registers, the product with a state, segment sums of one row.
#if defined(SAMBA_CPU_CHUNK_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_CHUNK_STEP_INL_H_
#undef SAMBA_CPU_CHUNK_STEP_INL_H_
#else
#define SAMBA_CPU_CHUNK_STEP_INL_H_
#endif

#include "samba/backends/cpu/tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::tiles {

// Columns c .. c + 3 of kLanes rows, row r in lane r. from(r) is the first cell of row r.
template <class From>
HWY_INLINE void load_columns(From&& from, Index c, V (&columns)[4]) {
#if HWY_TARGET == HWY_SCALAR
  for (Index k = 0; k < 4; ++k) columns[k] = load(from(Index{0}) + c + k);
#else
  const D d;
  // Four cells of the rows r, r + 4, r + 8, ..., one row a 128-bit block.
  const auto blocks = [&](Index r) HWY_ATTR {
    const hn::FixedTag<float, 4> d4;
    const auto row = [&](Index i) HWY_ATTR { return hn::LoadU(d4, from(r + i) + c); };
    if constexpr (kLanes == 16) {
      const hn::CappedTag<float, 8> d8;  // of fewer lanes where this is not reached
      return hn::Combine(d, hn::Combine(d8, row(12), row(8)), hn::Combine(d8, row(4), row(0)));
    } else if constexpr (kLanes == 8) {
      return hn::Combine(d, row(4), row(0));
    } else {
      return row(0);
    }
  };
  const V r0 = flush_operand(d, blocks(0)), r1 = flush_operand(d, blocks(1));
  const V r2 = flush_operand(d, blocks(2)), r3 = flush_operand(d, blocks(3));
  const V even_low = hn::InterleaveLower(d, r0, r2), odd_low = hn::InterleaveLower(d, r1, r3);
  const V even_high = hn::InterleaveUpper(d, r0, r2), odd_high = hn::InterleaveUpper(d, r1, r3);
  columns[0] = hn::InterleaveLower(d, even_low, odd_low);
  columns[1] = hn::InterleaveUpper(d, even_low, odd_low);
  columns[2] = hn::InterleaveLower(d, even_high, odd_high);
  columns[3] = hn::InterleaveUpper(d, even_high, odd_high);
#endif
}

// sums[v] = chain over n < depth of mad(factors[n], turn(v, cells n of the kLanes rows of group v), .) from +0.
// from(row) counts the rows of all kGroups groups.
template <int kGroups, class From, class Turn>
HWY_INLINE void dot_rows(Index depth, const float* HWY_RESTRICT factors, From&& from, Turn&& turn, V (&sums)[kGroups]) {
  for (V& sum : sums) sum = zero();
  for (Index n = 0; n < depth; n += 4) {
    HWY_UNROLL(4)
    for (int v = 0; v < kGroups; ++v) {
      V columns[4];
      load_columns([&](Index r) HWY_ATTR { return from(v * kLanes + r); }, n, columns);
      HWY_UNROLL(4)
      for (int k = 0; k < 4; ++k) sums[v] = mad(broadcast(factors + n + k), turn(v, columns[k]), sums[v]);
    }
  }
}

// finish(p, vector) of the chain over n < depth of mad(factors[n], state[p][n], .) for p < rows.
template <class Finish>
HWY_INLINE void state_dots(Index rows, Index depth, const float* factors, const float* state, Finish&& finish) {
  constexpr int kGroups = 4;
  for (Index first = 0; first < rows; first += kGroups * kLanes) {
    V sums[kGroups];
    dot_rows(
        depth, factors, [&](Index p) HWY_ATTR { return state + (first + p) * depth; },
        [](int, V column) HWY_ATTR { return column; }, sums);
    HWY_UNROLL(4)
    for (int v = 0; v < kGroups; ++v) finish(first + v * kLanes, sums[v]);
  }
}

// sums[r][j] = terms[r][j + 1] + ... + terms[r][last], added in this order to +0, for j <= last: kRows rows of `terms`
// and `sums`, `stride` floats apart. Cells up to the next multiple of 4 vectors after `last` are written.
template <int kRows>
HWY_INLINE void segment_sums(Index last, const float* HWY_RESTRICT terms, Index stride, float* HWY_RESTRICT sums) {
  constexpr int kSide = 4;
  for (Index x = 0; x <= last; x += kSide * kLanes) {
    V acc[kRows][kSide];
    for (auto& row : acc) {
      for (V& sum : row) sum = zero();
    }
    const Index inside = std::min(last, x + kSide * kLanes - 1);
    for (Index k = x + 1; k <= inside; ++k) {
      const V row = constant(static_cast<float>(k));
      for (int v = 0; v < kSide; ++v) {
        const M started = hn::Lt(iota(x + v * kLanes), row);
        for (int r = 0; r < kRows; ++r) {
          acc[r][v] = select(started, add(acc[r][v], broadcast(terms + r * stride + k)), acc[r][v]);
        }
      }
    }
    for (Index k = inside + 1; k <= last; ++k) {
      HWY_UNROLL(4)
      for (int r = 0; r < kRows; ++r) {
        const V term = broadcast(terms + r * stride + k);
        HWY_UNROLL(4)
        for (int v = 0; v < kSide; ++v) acc[r][v] = add(acc[r][v], term);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kSide; ++v) store(acc[r][v], sums + r * stride + x + v * kLanes);
    }
  }
}

// One value; under DAZ the plain operation is the flushed one.
HWY_INLINE float add_one(float a, float b) {
#if SAMBA_HAS_DAZ
  return a + b;
#else
  return samba::add(a, b);
#endif
}

// terms[0] + terms[1] + ... + terms[last], flushed.
HWY_INLINE float sum_terms(Index last, const float* terms) {
  float sum = terms[0];
  for (Index k = 1; k <= last; ++k) sum = add_one(sum, terms[k]);
  return flush(sum);
}

}  // namespace samba::cpu::HWY_NAMESPACE::tiles
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
