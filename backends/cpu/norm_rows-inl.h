// Rows of the norms, once per target: the row folds of spec 10 sections 6 and 7 and of spec 40 section 3.1.
#if defined(SAMBA_CPU_NORM_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_NORM_ROWS_INL_H_
#undef SAMBA_CPU_NORM_ROWS_INL_H_
#else
#define SAMBA_CPU_NORM_ROWS_INL_H_
#endif

#include "samba/backends/cpu/norm.h"
#include "samba/backends/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// One value of every row in the lanes of a vector, as an array.
template <class D>
struct RowValues {
  HWY_ALIGN float at[hn::MaxLanes(D())];
  HWY_INLINE RowValues(D d, hn::Vec<D> v) { hn::Store(flush_store(d, v), d, at); }
};

// rstd = F(rsqrt(F(div(sum, width) + eps)))
template <class D>
HWY_INLINE hn::Vec<D> reciprocal_root(D d, hn::Vec<D> sum, Index width, const Epsilon& eps) {
  const SimdLanes<D> l{d, {}};
  const auto mean = elementary::divide(l, sum, l.set(static_cast<float>(width)));
  auto shifted = l.add(mean, l.set(eps.value));
  if (eps.scaled != 0.0F) {
    // A mean of 2^-60 or more swallows a subnormal eps; below, the sum is taken 2^64 higher, where all is normal.
    const auto up = l.set(0x1p64F), down = l.set(0x1p-64F);
    const auto raised = l.mul(l.add(l.mul(mean, up), l.set(eps.scaled)), down);
    shifted = l.select(l.lt(mean, l.set(0x1p-60F)), raised, mean);
  }
  return l.flush(elementary::rsqrt(l, l.flush(shifted)));
}

// The serial chain of squares of `rows` rows.
template <class D>
HWY_INLINE hn::Vec<D> serial_squares(D d, const float* x, Index width, Index rows) {
  return fold_columns<1>(d, {x}, width, rows, 0, width, hn::Zero(d), [&](auto acc, Index, const auto(&v)[1]) HWY_ATTR {
    return flush_operand(d, fused(d, v[0], v[0], acc));
  });
}

// The serial chain over j of fma(F(dy_j * w_j), x_j, acc).
template <class D>
HWY_INLINE hn::Vec<D> serial_product(D d, const float* dy, const float* x, const float* weight, Index width,
                                     Index rows) {
  return fold_columns<2>(d, {dy, x}, width, rows, 0, width, hn::Zero(d),
                         [&](auto acc, Index j, const auto(&v)[2]) HWY_ATTR {
                           const auto w = flush_operand(d, hn::Set(d, weight[j]));
                           const auto gradient = flush_operand(d, hn::Mul(v[0], w));
                           return flush_operand(d, fused(d, gradient, v[1], acc));
                         });
}

constexpr Index kFoldLanes = 32;

// partial[l] = the fold of step(acc, values of j) over j = l, l + 32, ... of one row: 32 lanes in vectors. `load(io,
// j)` gives the values of j, j + 1, ...; a lane without an element keeps what it has.
template <class Step>
HWY_INLINE void fold_32_lanes(Index width, float* HWY_RESTRICT partial, Step&& step) {
  const hn::CappedTag<float, kFoldLanes> d;
  for (Index l = 0; l < kFoldLanes; l += lanes_of(d)) {
    auto acc = hn::Zero(d);
    Index j = l;
    for (; j + lanes_of(d) <= width; j += kFoldLanes) acc = flush_operand(d, step(acc, WholeVector<decltype(d)>{d}, j));
    if (j < width) {
      const auto mask = hn::FirstN(d, static_cast<std::size_t>(width - j));
      acc = hn::IfThenElse(mask, flush_operand(d, step(acc, PartialVector<decltype(d)>{d, mask}, j)), acc);
    }
    hn::Store(flush_store(d, acc), d, partial + l);
  }
}

// Lane l meets lane l + h for h = 16, 8, 4, 2, 1 (spec 10 section 7.2).
inline float meet_halves(float* lanes) {
  for (Index h = kFoldLanes / 2; h >= 1; h /= 2) {
    for (Index l = 0; l < h; ++l) lanes[l] = samba::add(lanes[l], lanes[l + h]);
  }
  return lanes[0];
}

// Lane 2l meets lane 2l + 1 (spec 40 section 3.1).
inline float meet_neighbours(float* lanes) {
  for (Index h = kFoldLanes / 2; h >= 1; h /= 2) {
    for (Index l = 0; l < h; ++l) lanes[l] = samba::add(lanes[2 * l], lanes[2 * l + 1]);
  }
  return lanes[0];
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
