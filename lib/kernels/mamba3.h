// The Mamba-3 (SISO) mixer between its two projections (spec 40 sections 3.3 to 3.12, backward: spec 41).
//
// The block runs, per call: mamba norm, in_proj, then prepare_tokens, accumulate_angles, rotate, weigh, scan, then
// out_proj and the residual. All kernels of one call take the same Mamba3Call, which names every array; the block
// sizes them, an executor fills what each kernel says. Null means "not wanted" for the pointers marked optional.
//
//   M = batch*tokens new tokens (row-major);  working rows t in [0, T), T = buffered + tokens: the buffered rows of the
//   state followed by the new tokens;  C = ceil(T/64) chunks;  H heads of P = 64;  N = 128 states;  R = 32 angles.
#pragma once

#include "samba/core/array.h"

namespace samba {

namespace mamba3 {
inline constexpr Index kHeadDim = 64;     // P
inline constexpr Index kStateSize = 128;  // N
inline constexpr Index kAngles = 32;      // R: rotated pairs of the 64 interleaved pairs
inline constexpr Index kChunk = 64;       // Q, part of the arithmetic
inline constexpr Index heads(Index d_model) { return d_model / 32; }
inline constexpr Index d_inner(Index d_model) { return 2 * d_model; }
inline constexpr Index projection_width(Index d_model) {
  return 2 * d_inner(d_model) + 2 * kStateSize + 3 * heads(d_model) + kAngles;
}
// First columns of the in_proj result: z | x | B | C | dd_dt | dd_A | trap | angle.
struct Columns {
  Index z, x, b, c, dt, a, trap, angle;
};
inline constexpr Columns columns(Index d_model) {
  const Index di = d_inner(d_model), h = heads(d_model);
  return {0, di, 2 * di, 2 * di + 128, 2 * di + 256, 2 * di + 256 + h, 2 * di + 256 + 2 * h, 2 * di + 256 + 3 * h};
}
}  // namespace mamba3

// Row arrays of the state's buffer (64 rows a batch row) or of this call (tokens rows a batch row).
struct Mamba3Rows {
  float* q = nullptr;      // (batch, rows, H, 128) rotated
  float* k = nullptr;      // (batch, rows, H, 128) rotated, unscaled
  float* v = nullptr;      // (batch, rows, H, 64), see v_stride
  float* dt = nullptr;     // (batch, rows, H)
  float* sigma = nullptr;  // (batch, rows, H) sigmoid(trap)
  float* adt = nullptr;    // (batch, rows, H)
  Index rows = 0;          // rows a batch row
  Index v_stride = 0;      // floats between two rows of v
};

struct Mamba3Call {
  Index batch = 0;
  Index tokens = 0;  // L >= 1
  Index d_model = 0;
  Index buffered = 0;  // q0: rows of `buffer` in use; 0 without a state

  constexpr Index heads() const { return mamba3::heads(d_model); }
  constexpr Index new_rows() const { return batch * tokens; }                                        // M
  constexpr Index working_rows() const { return buffered + tokens; }                                 // T, a batch row
  constexpr Index chunks() const { return (working_rows() + mamba3::kChunk - 1) / mamba3::kChunk; }  // C

  // Weights.
  const float* dt_bias = nullptr;        // [H]
  const float* b_norm_weight = nullptr;  // [128]
  const float* c_norm_weight = nullptr;  // [128]
  const float* b_bias = nullptr;         // [H, 128]
  const float* c_bias = nullptr;         // [H, 128]
  const float* d = nullptr;              // [H]

  const float* in_proj = nullptr;  // [M, projection_width]

  // State. theta and h are read and written; null h and theta stand for a fresh zero state that is dropped.
  float* theta = nullptr;  // (batch, H, 32)
  float* h =
      nullptr;  // (batch, H, 64, 128) state entering the last working chunk; untouched while C == 1 and not pending
  Mamba3Rows buffer;                 // read only by the kernels; the block stores the last chunk's rows after the call
  const float* pending_k = nullptr;  // (batch, H, 128), non-null exactly when input states are pending (spec 40 3.10)
  const float* pending_v = nullptr;  // (batch, H, 64)
  // The head start of the chunk's state, see Mamba3Kernels; null where the executor makes none.
  float* head_start = nullptr;    // (batch, H, head_start_size())
  bool head_start_known = false;  // the call before left it, and no row of `buffer` has changed since

  // prepare_tokens: per new token (and head)                                        spec 40 sections 3.3, 3.4
  float* a = nullptr;           // [M, H]   A
  float* b_normed = nullptr;    // [M, 128]
  float* c_normed = nullptr;    // [M, 128]
  float* angle_rate = nullptr;  // [M, 32]  mul(tanh(angle), PI)
  Mamba3Rows current;           // dt, sigma, adt by prepare_tokens; q, k by rotate; v points into in_proj

  float* angles = nullptr;    // [M, H, 32] theta after each token, by accumulate_angles       section 3.7
  float* qk_chain = nullptr;  // [M, H]   the un-scaled chain, by rotate                       section 3.8
  float* gamma = nullptr;     // (batch, T, H) by weigh                                        section 3.6
  float* scale = nullptr;     // (batch, T, H) by weigh
  float* k_scaled = nullptr;  // (batch, T, H, 128) by weigh; scratch unless dacs is kept

  // scan
  float* skip = nullptr;    // [M, H, 64] y1
  float* gate = nullptr;    // [M, H, 64] g, the input of out_proj
  float* h_last = nullptr;  // optional (batch, H, 64, 128): the report; costs a chunk product a call
  // Optional as a group: kept for the backward and as stages.
  float* dacs = nullptr;         // (batch, H, C, 64), all 64 rows: the last sum is repeated
  float* decay = nullptr;        // (batch, H, C, 64, 64)  "seg.L", every cell as spec 40 section 3.9 says
  float* scores = nullptr;       // (batch, H, C, 64, 64)  s_ij for j < i, elsewhere unspecified
  float* pass_states = nullptr;  // (batch, C, H, 64, 128)
  // Optional stages, each by itself.
  float* qkdot = nullptr;    // [M, H]  mul(qk_chain, gamma of the token's working row)
  float* y_intra = nullptr;  // [M, H, 64]
  float* y_state = nullptr;  // [M, H, 64]
};

// Arrays of the backward (q0 = 0, T = tokens). Names are the golden stages "b.<name>" (spec 41 section 7) without the
// prefix; everything is per new row: [M, H, 128], [M, H, 64], [M, H] or as said. All are required: the block takes them
// from its workspace, so that stages and data flow are the same arrays.
struct Mamba3Gradients {
  const float* d_gate = nullptr;  // [M, H, 64], input: gradient of the out_proj input

  // gate_backward                                                                  spec 41 section 3.2
  float* d_skip = nullptr;    // [M, H, 64]
  float* d_v_skip = nullptr;  // [M, H, 64]
  float* d_qkdot = nullptr;   // [M, H]

  // scan_backward                                                                  sections 3.4 to 3.8, 3.11
  // (d_adt_dacs, d_adt)
  float* d_q16 = nullptr;            // [M, H, 128]
  float* d_k16 = nullptr;            // [M, H, 128]
  float* d_v16 = nullptr;            // [M, H, 64]
  float* d_seg = nullptr;            // (batch, H, C, 64, 64), +0 where j >= i and in rows or columns >= real
  float* d_adt_seg = nullptr;        // [M, H]
  float* d_v17 = nullptr;            // [M, H, 64]
  float* d_dacs_read = nullptr;      // [M, H]
  float* d_dacs_rec = nullptr;       // [M, H]
  float* d_q = nullptr;              // [M, H, 128]
  float* d_k = nullptr;              // [M, H, 128]
  float* d_v = nullptr;              // [M, H, 64]
  float* d_dacs = nullptr;           // [M, H]
  float* d_adt_dacs = nullptr;       // [M, H]
  float* d_adt = nullptr;            // [M, H]
  float* state_gradients = nullptr;  // (batch, C, H, 64, 128) scratch: G of section 3.6

  // rotate_backward                                                                sections 3.3, 3.9, 3.10, 3.12
  float* d_dt_qk = nullptr;    // [M, H]
  float* d_trap_qk = nullptr;  // [M, H]
  float* d_scale = nullptr;    // [M, H]
  float* d_krot = nullptr;     // [M, H, 128]
  float* d_qraw = nullptr;     // [M, H, 128]
  float* d_kraw = nullptr;     // [M, H, 128]
  float* d_theta = nullptr;    // [M, H, 32]
  float* d_b = nullptr;        // [M, H, 128]
  float* d_c = nullptr;        // [M, H, 128]
  float* d_dt_cur = nullptr;   // [M, H]
  float* d_trap = nullptr;     // [M, H]

  // tokens_backward                                                                sections 3.11, 3.13 to 3.16
  float* d_theta_suffix = nullptr;  // [M, H, 32]
  float* d_dt_angle = nullptr;      // [M, H]
  float* d_dd_dt = nullptr;         // [M, H]
  float* d_dd_a = nullptr;          // [M, H]
  float* b_weight_rows = nullptr;   // [M, 128]
  float* c_weight_rows = nullptr;   // [M, 128]
  float* d_in_proj = nullptr;  // [M, projection_width]; gate_backward fills its z columns, tokens_backward the rest
};

class Mamba3Kernels {
 public:
  virtual ~Mamba3Kernels() = default;

  virtual void prepare_tokens(const Mamba3Call& call) = 0;
  virtual void accumulate_angles(const Mamba3Call& call) = 0;
  virtual void rotate(const Mamba3Call& call) = 0;
  virtual void weigh(const Mamba3Call& call) = 0;
  virtual void scan(const Mamba3Call& call) = 0;

  // A chunk's state is made with the first token of the next chunk (spec 40 section 3.11), but all terms of its chains
  // except the last row's are known when that row comes. scan() may then run a part of the chains up to it into
  // call.head_start, and go on from there in the call behind. Derived data, of no effect on any result.
  virtual Index head_start_size() const { return 0; }                                 // floats a batch row and head
  virtual bool leaves_head_start(const Mamba3Call& /*call*/) const { return false; }  // after scan(call)

  // After a forward of the same call that kept dacs, decay, scores and pass_states.
  virtual void gate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) = 0;
  virtual void scan_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) = 0;
  virtual void rotate_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) = 0;
  virtual void tokens_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) = 0;
};

}  // namespace samba
