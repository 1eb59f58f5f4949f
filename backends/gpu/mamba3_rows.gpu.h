// What the Mamba-3 kernels share: the scalar steps of the spec, the rows of the working sequence, the chunks.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/kernels/extended_gradients.h"
#include "samba/kernels/mamba3.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kP = static_cast<int>(mamba3::kHeadDim);
inline constexpr int kN = static_cast<int>(mamba3::kStateSize);
inline constexpr int kR = static_cast<int>(mamba3::kAngles);
inline constexpr int kQ = static_cast<int>(mamba3::kChunk);
inline constexpr int kStateCells = kP * kN;
inline constexpr int kPairPitch = kQ + 1;  // of the pairs of a chunk in shared memory

inline constexpr float kNormEpsilon = from_bits(0x3727C5ACU);  // 1e-5
inline constexpr float kPi = from_bits(0x40490FDBU);
inline constexpr float kTwoPi = from_bits(0x40C90FDBU);
inline constexpr float kAFloor = from_bits(0x38D1B717U);  // 1e-4

inline unsigned blocks_of(Index count) { return static_cast<unsigned>(count); }

SAMBA_DEVICE float exp_flushed(float x) { return flush(elementary::exp(x)); }
SAMBA_DEVICE float sigmoid_flushed(float x) { return flush(elementary::sigmoid(flush(x))); }
SAMBA_DEVICE float silu_flushed(float x) { return flush(elementary::silu(flush(x))); }

// Of a B or C row, from its chain of squares                                      spec 40 section 3.1 step 3
SAMBA_DEVICE float state_norm_rstd(float sumsq) {
  return flush(elementary::rsqrt(add(div(sumsq, static_cast<float>(kN)), kNormEpsilon)));
}

// ht(a): 1 + a for a >= 0, else 1 / (1 - a)                                       section 3.3
SAMBA_DEVICE float half_tangent(float a) { return a >= 0.0F ? add(1.0F, a) : div(1.0F, sub(1.0F, a)); }

// Working rows first .. first + real - 1 of one batch row and head.
struct ChunkPlace {
  Index b, h, c, first;
  int real;
};

// `unit` counts (batch, head, chunk), `count` chunks each, from chunk `first_chunk` on.
SAMBA_DEVICE ChunkPlace chunk_place(const Mamba3Call& call, Index unit, Index first_chunk, Index count) {
  const Index heads = call.heads();
  const Index c = first_chunk + unit % count;
  const Index left = call.working_rows() - c * kQ;
  return {unit / count / heads, unit / count % heads, c, c * kQ, left < kQ ? static_cast<int>(left) : kQ};
}

// Where an array of the chunks (batch, H, C, ...) and one of the states (batch, C, H, ...) hold this one.
SAMBA_DEVICE Index chunk_index(const Mamba3Call& call, const ChunkPlace& at) {
  return (at.b * call.heads() + at.h) * call.chunks() + at.c;
}
SAMBA_DEVICE Index state_index(const Mamba3Call& call, const ChunkPlace& at) {
  return ((at.b * call.chunks() + at.c) * call.heads() + at.h) * kStateCells;
}

// Row t of the working sequence: in the buffer of the state or among this call's rows (section 3.5).
SAMBA_DEVICE Index row_index(const Mamba3Call& call, Index b, Index h, Index t) {
  const bool buffered = t < call.buffered;
  return (b * (buffered ? call.buffer.rows : call.current.rows) + (buffered ? t : t - call.buffered)) * call.heads() +
         h;
}
SAMBA_DEVICE const float* q_row(const Mamba3Call& call, Index b, Index h, Index t) {
  return (t < call.buffered ? call.buffer.q : call.current.q) + row_index(call, b, h, t) * kN;
}
SAMBA_DEVICE const float* k_row(const Mamba3Call& call, Index b, Index h, Index t) {
  return (t < call.buffered ? call.buffer.k : call.current.k) + row_index(call, b, h, t) * kN;
}
SAMBA_DEVICE const float* v_row(const Mamba3Call& call, Index b, Index h, Index t) {
  if (t < call.buffered) return call.buffer.v + (b * call.buffer.rows + t) * call.buffer.v_stride + h * kP;
  return call.current.v + (b * call.current.rows + t - call.buffered) * call.current.v_stride + h * kP;
}
SAMBA_DEVICE float dt_of(const Mamba3Call& call, Index b, Index h, Index t) {
  return flush((t < call.buffered ? call.buffer.dt : call.current.dt)[row_index(call, b, h, t)]);
}
SAMBA_DEVICE float sigma_of(const Mamba3Call& call, Index b, Index h, Index t) {
  return flush((t < call.buffered ? call.buffer.sigma : call.current.sigma)[row_index(call, b, h, t)]);
}
SAMBA_DEVICE float adt_of(const Mamba3Call& call, Index b, Index h, Index t) {
  return flush((t < call.buffered ? call.buffer.adt : call.current.adt)[row_index(call, b, h, t)]);
}

// ks = k' scale: made where it is read, since it is kept for the backward only    section 3.8
SAMBA_DEVICE float scaled_key(const Mamba3Call& call, Index b, Index h, Index t, int n) {
  return mul(k_row(call, b, h, t)[n], call.scale[(b * call.working_rows() + t) * call.heads() + h]);
}

// The row (token and head) of a call's new rows that position i of the chunk is, in a call without buffered rows.
SAMBA_DEVICE Index new_row(const Mamba3Call& call, const ChunkPlace& at, int i) {
  return (at.b * call.tokens + at.first + i) * call.heads() + at.h;
}

// The row of the in_proj result of new token m.
SAMBA_DEVICE const float* projected_row(const Mamba3Call& call, Index m) {
  return call.in_proj + m * mamba3::projection_width(call.d_model);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
