// What the files of the reference Mamba-3 kernels share: constants, the rows of the working sequence, chunks.
#pragma once

#include <algorithm>

#include "samba/kernels/mamba3.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba::reference {

using mamba3::kAngles;
using mamba3::kChunk;
using mamba3::kHeadDim;
using mamba3::kStateSize;

inline constexpr float kNormEpsilon = from_bits(0x3727C5ACU);  // 1e-5
inline constexpr float kPi = from_bits(0x40490FDBU);
inline constexpr float kTwoPi = from_bits(0x40C90FDBU);
inline constexpr float kAFloor = from_bits(0x38D1B717U);  // 1e-4

// mul and mad for operands that are flushed already: the same bits, fewer instructions.
inline float flushed_mul(float a, float b) { return flush(a * b); }
inline float flushed_mad(float a, float b, float c) { return flush(fma(a, b, c)); }

inline float exp_flushed(float x) { return flush(elementary::exp(x)); }
inline float sigmoid_flushed(float x) { return flush(elementary::sigmoid(flush(x))); }

// F(rsqrt(add(F(div(sum_of_squares, width)), EPS)))                              spec 40 section 3.1 step 3
inline float norm_rstd(float sum_of_squares, float width) {
  return flush(elementary::rsqrt(add(div(sum_of_squares, width), kNormEpsilon)));
}

// The serial chain of squares of the B and C norms                               spec 40 section 3.4
inline float serial_sumsq(const float* v) {
  float sum = 0.0F;
  for (Index n = 0; n < kStateSize; ++n) sum = mad(v[n], v[n], sum);
  return sum;
}

// One batch row and head of the working sequence: buffered rows, then the rows of this call (spec 40 section 3.5).
class WorkingRows {
 public:
  WorkingRows(const Mamba3Call& call, Index b, Index h)
      : buffer_(call.buffer), current_(call.current), heads_(call.heads()), buffered_(call.buffered), b_(b), h_(h) {}

  const float* q(Index t) const { return row(t, &Mamba3Rows::q, kStateSize); }
  const float* k(Index t) const { return row(t, &Mamba3Rows::k, kStateSize); }
  const float* v(Index t) const {
    const Mamba3Rows& rows = source(t);
    return rows.v + index(rows, t) * rows.v_stride + h_ * kHeadDim;
  }
  float dt(Index t) const { return flush(*row(t, &Mamba3Rows::dt, 1)); }
  float sigma(Index t) const { return flush(*row(t, &Mamba3Rows::sigma, 1)); }
  float adt(Index t) const { return flush(*row(t, &Mamba3Rows::adt, 1)); }

 private:
  const Mamba3Rows& source(Index t) const { return t < buffered_ ? buffer_ : current_; }
  Index index(const Mamba3Rows& rows, Index t) const { return b_ * rows.rows + (t < buffered_ ? t : t - buffered_); }
  const float* row(Index t, float* Mamba3Rows::*array, Index width) const {
    const Mamba3Rows& rows = source(t);
    return rows.*array + (index(rows, t) * heads_ + h_) * width;
  }

  const Mamba3Rows& buffer_;
  const Mamba3Rows& current_;
  Index heads_, buffered_, b_, h_;
};

// Working rows first .. first + real - 1.
struct ChunkRange {
  Index first;
  Index real;
};
inline ChunkRange chunk_range(const Mamba3Call& call, Index c) {
  const Index first = c * kChunk;
  return {first, std::min(kChunk, call.working_rows() - first)};
}

// to[n][p] = F(from[p][n]): a state as the lanes over p want it.
inline void transpose_state(const float* from, float (*to)[kHeadDim]) {
  for (Index p = 0; p < kHeadDim; ++p) {
    for (Index n = 0; n < kStateSize; ++n) to[n][p] = flush(from[p * kStateSize + n]);
  }
}

}  // namespace samba::reference
