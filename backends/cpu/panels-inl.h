// Lines of a panel from a matrix, once per target.
#if defined(SAMBA_CPU_PANELS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_PANELS_INL_H_
#undef SAMBA_CPU_PANELS_INL_H_
#else
#define SAMBA_CPU_PANELS_INL_H_
#endif

#include "samba/backends/cpu/vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {

// packed[p][c] = source[p * stride + c] for c < width, V vectors.
template <int V>
HWY_INLINE void copy_whole_lines(const float* HWY_RESTRICT source, Index stride, Index lines,
                                 float* HWY_RESTRICT packed) {
  const hn::ScalableTag<float> d;
  const Index lanes = lanes_of(d);
  for (Index p = 0; p < lines; ++p, source += stride, packed += V * lanes) {
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) hn::StoreU(hn::LoadU(d, source + v * lanes), d, packed + v * lanes);
  }
}

// packed[p][c] = source[p * stride + c] for c < columns, +0 from there to `width`, a whole number of vectors.
inline void copy_lines(const float* HWY_RESTRICT source, Index stride, Index columns, Index lines, Index width,
                       float* HWY_RESTRICT packed) {
  const hn::ScalableTag<float> d;
  const Index lanes = lanes_of(d);
  if (columns == 3 * lanes && width == columns) return copy_whole_lines<3>(source, stride, lines, packed);
  if (columns == 2 * lanes && width == columns) return copy_whole_lines<2>(source, stride, lines, packed);
  const Index whole = columns / lanes * lanes;
  const auto rest = hn::FirstN(d, static_cast<std::size_t>(columns - whole));
  for (Index p = 0; p < lines; ++p, source += stride, packed += width) {
    for (Index c = 0; c < whole; c += lanes) hn::StoreU(hn::LoadU(d, source + c), d, packed + c);
    if (whole < width) hn::StoreU(hn::MaskedLoad(rest, d, source + whole), d, packed + whole);
  }
}

// packed[p][r] = source[r * stride + p] for r < rows, +0 from there to `width`, a whole number of vectors.
inline void transpose_lines(const float* HWY_RESTRICT source, Index stride, Index rows, Index lines, Index width,
                            float* HWY_RESTRICT packed) {
  Index first = 0;
#if HWY_TARGET != HWY_SCALAR
  const hn::ScalableTag<float> d;
  const Index lanes = lanes_of(d);
  for (; first + lanes <= rows; first += lanes) {
    const float* from = source + first * stride;
    Index p = 0;
    for (; p + 4 <= lines; p += 4) {
      hn::Vec<decltype(d)> columns[4];
      load_transposed(
          d, [&](Index r) { return from + r * stride + p; }, columns);
      for (Index c = 0; c < 4; ++c) hn::StoreU(columns[c], d, packed + (p + c) * width + first);
    }
    for (; p < lines; ++p) {
      for (Index r = 0; r < lanes; ++r) packed[p * width + first + r] = from[r * stride + p];
    }
  }
#endif
  for (; first < width; ++first) {
    for (Index p = 0; p < lines; ++p) packed[p * width + first] = first < rows ? source[first * stride + p] : 0.0F;
  }
}

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
