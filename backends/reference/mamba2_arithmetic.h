// What the files of the reference Mamba-2 kernels share: flushed steps, the rows of a chunk, sums in blocks of tokens.
#pragma once

#include <algorithm>

#include "samba/kernels/mamba2.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"

namespace samba::reference::mamba2_arithmetic {

using mamba2::kCells;
using mamba2::kChunk;
using mamba2::kHeadDim;
using mamba2::kStateSize;

// mul and mad for operands that are flushed already: the same bits, fewer instructions.
inline float flushed_mul(float a, float b) { return flush(a * b); }
inline float flushed_mad(float a, float b, float c) { return flush(fma(a, b, c)); }
inline float exp_flushed(float x) { return flush(elementary::exp(x)); }
inline float sigmoid_flushed(float x) { return flush(elementary::sigmoid(flush(x))); }

// The row of xBC of working row t.
inline const float* xbc_row(const Mamba2Call& call, Index b, Index t) {
  return t < call.buffered ? call.buffer_xbc + (b * kChunk + t) * call.channels()
                           : call.x_bc + (b * call.tokens + t - call.buffered) * call.channels();
}

// to[i][n] = F(the row's B or C); rows at and after `real` are +0.0.
enum class Part { b, c };
inline void read_rows(const Mamba2Call& call, Part part, Index b, Index c, float (*to)[kStateSize]) {
  const Index real = call.real_rows(c);
  const Index column = call.inner() + (part == Part::b ? 0 : kStateSize);
  for (Index i = 0; i < kChunk; ++i) {
    if (i >= real) {
      std::fill_n(to[i], kStateSize, 0.0F);
      continue;
    }
    const float* row = xbc_row(call, b, c * kChunk + i) + column;
    for (Index n = 0; n < kStateSize; ++n) to[i][n] = flush(row[n]);
  }
}

// to[n][p] = F(from[p][n]): a state as the lanes over p want it.
inline void transpose_state(const float* from, float (*to)[kHeadDim]) {
  for (Index p = 0; p < kHeadDim; ++p) {
    for (Index n = 0; n < kStateSize; ++n) to[n][p] = flush(from[p * kStateSize + n]);
  }
}

// The segment sums of row i from those of row i - 1, and their exponentials: decay[j] for j <= i.
inline void segment_row(const float* da, Index i, float* sums, float* decay) {
  for (Index j = 0; j < i; ++j) sums[j] = add(sums[j], da[i]);
  sums[i] = 0.0F;
  for (Index j = 0; j <= i; ++j) decay[j] = exp_flushed(sums[j]);
}

// BLOCKSUM of spec 32 section 2: step(acc, t) over blocks of 256 rows, joined left to right from the first block's sum.
template <class Step>
float block_sum(Index rows, Step&& step) {
  constexpr Index kBlock = 256;
  float total = 0.0F;
  for (Index first = 0; first < rows; first += kBlock) {
    float sum = 0.0F;
    for (Index t = first; t < std::min(rows, first + kBlock); ++t) sum = step(sum, t);
    total = first == 0 ? sum : add(total, sum);
  }
  return total;
}

}  // namespace samba::reference::mamba2_arithmetic
