// The Mamba-2 (SSD) mixer between its convolution and its gated norm (spec 31 S8 to S19 and section 3; backward: spec
// 32 section 4).
//
// The block runs, per call: mamba norm, in_proj, conv_forward (conv.h), scan, the gated norm, out_proj, residual. All
// kernels of one call take the same Mamba2Call, which names every array; the block sizes them, an executor fills what
// each kernel says. Null means "not wanted" for the pointers marked optional.
//
//   M = batch * tokens new tokens (row-major);  working rows t in [0, T), T = buffered + tokens: the buffered rows of
//   the state followed by the new tokens;  C = ceil(T/256) chunks;  H heads of P = 64;  N = 128 states;
//   di = 64 H inner columns;  CD = di + 256 columns of the convolution: x | B | C
#pragma once

#include <algorithm>

#include "samba/core/array.h"

namespace samba {

namespace mamba2 {
inline constexpr Index kHeadDim = 64;     // P
inline constexpr Index kStateSize = 128;  // N
inline constexpr Index kChunk = 256;      // Q, part of the arithmetic
inline constexpr Index kCells = kHeadDim * kStateSize;
inline constexpr Index heads(Index d_model) { return d_model / 32; }
inline constexpr Index d_inner(Index d_model) { return 2 * d_model; }
inline constexpr Index conv_channels(Index d_model) { return d_inner(d_model) + 2 * kStateSize; }
// Columns of the in_proj result: z (di) | xBC (CD) | raw dt (H).
inline constexpr Index dt_column(Index d_model) { return d_inner(d_model) + conv_channels(d_model); }
inline constexpr Index projection_width(Index d_model) { return dt_column(d_model) + heads(d_model); }
}  // namespace mamba2

struct Mamba2Call {
  Index batch = 0;
  Index tokens = 0;  // L >= 1
  Index d_model = 0;
  Index buffered = 0;  // q0: rows of the state's buffers in use; 0 without a state

  constexpr Index heads() const { return mamba2::heads(d_model); }
  constexpr Index inner() const { return mamba2::d_inner(d_model); }
  constexpr Index channels() const { return mamba2::conv_channels(d_model); }
  constexpr Index width() const { return mamba2::projection_width(d_model); }
  constexpr Index rows() const { return batch * tokens; }                                            // M
  constexpr Index working_rows() const { return buffered + tokens; }                                 // T, a batch row
  constexpr Index chunks() const { return (working_rows() + mamba2::kChunk - 1) / mamba2::kChunk; }  // C
  // Rows of chunk c that hold working rows, and the first of them that is new.
  constexpr Index real_rows(Index c) const { return std::min(mamba2::kChunk, working_rows() - c * mamba2::kChunk); }
  constexpr Index first_new(Index c) const { return c == 0 ? buffered : 0; }
  // Units of one chunk: (batch, H, C) and (batch, C, H).
  constexpr Index head_chunk(Index b, Index head, Index c) const { return (b * heads() + head) * chunks() + c; }
  constexpr Index chunk_head(Index b, Index c, Index head) const { return (b * chunks() + c) * heads() + head; }
  // The new token of row i of chunk c.
  constexpr Index token(Index b, Index c, Index i) const { return b * tokens + c * mamba2::kChunk + i - buffered; }

  const float* a = nullptr;        // [H], -exp(A_log)
  const float* dt_bias = nullptr;  // [H]
  const float* d = nullptr;        // [H]
  float dt_low = 0.0F;
  float dt_high = 0.0F;

  const float* in_proj = nullptr;  // [M, width()]
  const float* x_bc = nullptr;     // [M, CD], the convolution after SiLU

  // State. Null h stands for a fresh zero state that is dropped.
  const float* buffer_xbc = nullptr;  // (batch, 256, CD), rows [0, buffered) are read
  const float* buffer_dt = nullptr;   // (batch, 256, H), raw
  float* h = nullptr;  // (batch, H, 64, 128), the state entering the first chunk; replaced when a chunk is completed

  // Filled by scan. dt and scores are scratch as well.
  float* dt = nullptr;           // (batch, T, H), clamped
  float* scores = nullptr;       // [M, 256]: G[i, j] for j <= i, j a row of the chunk
  float* dacs = nullptr;         // (batch, H, C, 256), rows after the last real one repeat it
  float* decay = nullptr;        // (batch, H, C, 256)
  float* pass_states = nullptr;  // (batch, C, H, 64, 128), the states entering the chunks; may be null when C is 1
  float* skip = nullptr;         // [M, di]
  float* gate = nullptr;         // [M, di]
  float* h_last = nullptr;       // optional (batch, H, 64, 128): the report; costs a chunk product a call
  // Optional stages, each by itself.
  float* x_d = nullptr;           // [M, H, 64]
  float* y_diag = nullptr;        // [M, H, 64]
  float* y_off = nullptr;         // [M, H, 64]
  float* y = nullptr;             // [M, H, 64]
  float* chunk_states = nullptr;  // (batch, C, H, 64, 128), of every chunk
};

// Arrays of the backward (q0 = 0, null h, pass_states given). All are required but those marked optional.
struct Mamba2Gradients {
  const float* conv = nullptr;         // [M, CD], the forward's, before SiLU
  const float* conv_weight = nullptr;  // [CD, 4]
  const float* d_gate = nullptr;       // [M, di]

  // gate_backward                                                                  spec 32 section 4.3
  float* d_skip = nullptr;     // [M, di]  dY
  float* d_rows = nullptr;     // [M, H]   pD, the rows whose column sum is the gradient of D
  float* d_in_proj = nullptr;  // [M, width()]: gate_backward fills the z columns, scan_backward those of dt,
                               // conv_backward the others

  // scan_backward                                                                  sections 4.4 to 4.7
  float* d_off = nullptr;      // (batch, H, C, 256)
  float* d_decay = nullptr;    // (batch, H, C, 256)
  float* d_scale = nullptr;    // (batch, C, H)
  float* d_dacs = nullptr;     // (batch, H, C, 256)
  float* d_cumsum = nullptr;   // [M, H]
  float* d_da_seg = nullptr;   // [M, H]
  float* d_da = nullptr;       // [M, H]
  float* d_xd = nullptr;       // [M, H, 64]
  float* d_dt = nullptr;       // [M, H]
  float* d_xbc = nullptr;      // [M, CD]: dx | dB | dC
  float* d_states = nullptr;   // (batch, C, H, 64, 128) scratch: dcs
  float* d_scores = nullptr;   // [M, 256] scratch: dG[i, j] for j <= i
  float* d_a_log = nullptr;    // [H]
  float* d_dt_bias = nullptr;  // [H]

  // conv_backward                                                                  section 4.8
  float* d_conv = nullptr;         // [M, CD]
  float* d_conv_weight = nullptr;  // [CD, 4]
  float* d_conv_bias = nullptr;    // [CD]
};

class Mamba2Kernels {
 public:
  virtual ~Mamba2Kernels() = default;

  virtual void scan(const Mamba2Call& call) = 0;

  virtual void gate_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) = 0;
  virtual void scan_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) = 0;
  virtual void conv_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) = 0;
};

}  // namespace samba
