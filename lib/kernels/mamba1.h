// The selective scan of Mamba-1 and what surrounds it (spec 30 S6, S11 to S14; backward: spec 32 section 3).
//
// The block runs, per call: mamba norm, in_proj, conv_forward (conv.h), x_proj, dt_proj, scan, out_proj, residual. All
// kernels of one call take the same Mamba1Call. Null means "not wanted" for the pointers marked optional.
//
//   M = batch * tokens rows (row-major);  di = 2 * d_model channels;  N = 16 states a channel;  r = dt_rank
#pragma once

#include "samba/core/array.h"
#include "samba/numerics/fold.h"

namespace samba {

namespace mamba1 {
inline constexpr Index kStates = 16;   // N
inline constexpr Index kSegment = 16;  // tokens between two states that a forward keeps for its backward
inline constexpr Index d_inner(Index d_model) { return 2 * d_model; }
inline constexpr Index dt_rank(Index d_model) { return (d_model + 15) / 16; }
inline constexpr Index x_proj_width(Index d_model) { return dt_rank(d_model) + 2 * kStates; }
}  // namespace mamba1

struct Mamba1Call {
  Index batch = 0;
  Index tokens = 0;  // L >= 1
  Index d_model = 0;

  constexpr Index rows() const { return batch * tokens; }                // M
  constexpr Index channels() const { return mamba1::d_inner(d_model); }  // di
  constexpr Index dt_rank() const { return mamba1::dt_rank(d_model); }   // r; B and C follow in a row of x_proj
  constexpr Index x_width() const { return mamba1::x_proj_width(d_model); }
  constexpr Index segments() const { return (tokens + mamba1::kSegment - 1) / mamba1::kSegment; }  // a batch row

  const float* a = nullptr;        // [di, 16], by decay_rates
  const float* dt_bias = nullptr;  // [di]
  const float* d = nullptr;        // [di]

  const float* in_proj = nullptr;  // [M, 2 di]: hidden | z
  const float* u = nullptr;        // [M, di], the convolution after SiLU
  const float* x_proj = nullptr;   // [M, r + 32]: dt_low | B | C
  const float* dt_proj = nullptr;  // [M, di], without the bias

  float* h = nullptr;  // (batch, di, 16), read and written; null: a zero state that is dropped

  float* gate = nullptr;   // [M, di], the input of out_proj
  float* delta = nullptr;  // [M, di], optional: softplus(dt_proj + bias)
  float* y = nullptr;      // [M, di], optional: the scan's output
  float* skip = nullptr;   // [M, di], optional: y + D u
  float* kept = nullptr;   // (batch, segments, di, 16), optional: the states entering tokens 0, 16, 32, ...
};

// Arrays of the backward of a call that kept delta, skip and kept, from the zero state (h null).
struct Mamba1Gradients {
  const float* conv = nullptr;         // [M, di], the forward's, before SiLU
  const float* conv_weight = nullptr;  // [di, 4]
  const float* d_gate = nullptr;       // [M, di]

  // gate_backward                                                                  spec 32 section 3.2
  float* d_skip = nullptr;     // [M, di]  dsk
  float* d_u_skip = nullptr;   // [M, di]  duD
  float* d_rows = nullptr;     // [M, di]  pD, the rows whose column sum is the gradient of D
  float* d_in_proj = nullptr;  // [M, 2 di]: gate_backward fills the z columns (dz), conv_backward the others (dhin)

  // scan_backward                                                                  sections 3.3 to 3.6
  float* d_h = nullptr;        // [M, di, 16], optional: dh
  float* d_u_scan = nullptr;   // [M, di]  du_s
  float* d_delta = nullptr;    // [M, di]  ddelta
  float* d_dt_proj = nullptr;  // [M, di]  ddtp
  float* d_x_proj = nullptr;   // [M, r + 32]: the columns dB and dC; the others are left alone
  float* d_a_rows = nullptr;   // (batch, di, 16) scratch: the dA partials
  float* leaf_sums = nullptr;  // scratch of leaf_sum_floats(): the leaves of dB and dC
  float* d_a_log = nullptr;    // [di, 16]

  // conv_backward                                                                  sections 3.9, 3.10
  const float* d_u_x = nullptr;    // [M, di]
  float* d_u = nullptr;            // [M, di]
  float* d_conv = nullptr;         // [M, di]
  float* d_conv_weight = nullptr;  // [di, 4]
  float* d_conv_bias = nullptr;    // [di]

  static Index leaf_sum_floats(const Mamba1Call& call) {
    return leaf_count(call.channels()) * call.rows() * 2 * mamba1::kStates;
  }
};

class Mamba1Kernels {
 public:
  virtual ~Mamba1Kernels() = default;

  // a[i] = -F(exp(F(a_log[i])))
  virtual void decay_rates(Index n, const float* a_log, float* a) = 0;
  virtual void scan(const Mamba1Call& call) = 0;

  virtual void gate_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) = 0;
  virtual void scan_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) = 0;
  virtual void conv_backward(const Mamba1Call& call, const Mamba1Gradients& gradients) = 0;
};

}  // namespace samba
