// One chunk of a Mamba-3 sequence in the backward of its scan: where its operands lie, and what they are gathered into;
// once per target.
#if defined(SAMBA_CPU_MAMBA3_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_MAMBA3_CHUNK_INL_H_
#undef SAMBA_CPU_MAMBA3_CHUNK_INL_H_
#else
#define SAMBA_CPU_MAMBA3_CHUNK_INL_H_
#endif

#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"
#include "samba/backends/cpu/scratch_pieces.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::mamba3_lanes {

// Where the operands of one (batch, head, chunk) lie. Rows of [M, H, 128] are row_n() apart, of [M, H, 64] row_p().
struct Chunk {
  const Mamba3Call* call;
  const Mamba3Gradients* g;
  Index unit, batch, head, chunk;
  Index real;
  Index first;  // the chunk's first row of [M, H]

  Index heads() const { return call->heads(); }
  Index row(Index i) const { return first + i * heads(); }
  Index row_n() const { return heads() * N; }
  Index row_p() const { return heads() * P; }
  const float* q() const { return call->current.q + first * N; }
  const float* keys() const { return call->k_scaled + first * N; }
  const float* v() const {
    return call->current.v + (batch * call->tokens + chunk * Q) * call->current.v_stride + head * P;
  }
  const float* d_y() const { return g->d_skip + first * P; }
  const float* decay() const { return call->decay + unit * Q * Q; }
  const float* scores() const { return call->scores + unit * Q * Q; }
  const float* dacs() const { return call->dacs + unit * Q; }
  bool is_last() const { return chunk + 1 == call->chunks(); }
  // The chunk's (64, 128) piece of an array (batch, C, H, 64, 128), `ahead` chunks further on.
  Index state_piece(Index ahead) const { return ((batch * call->chunks() + chunk + ahead) * heads() + head) * P * N; }
};

inline Chunk make_chunk(const Mamba3Call& call, const Mamba3Gradients& g, Index unit) {
  const Mamba3ChunkIndex at = mamba3_chunk_index(call, unit, call.chunks());
  Chunk c{&call, &g, unit, at.batch, at.head, at.chunk, mamba3_real_rows(call, at.chunk), 0};
  c.first = (at.batch * call.tokens + at.chunk * Q) * call.heads() + at.head;
  return c;
}

// Scratch of one thread for one chunk.
struct Pieces {
  float* v;         // [64][64]
  float* v_t;       // [64 p][64 j]
  float* d_y_t;     // [64 p][64 i]
  float* weights;   // [64][64] M
  float* d_value;   // [64][64] dv_skip + dv16
  float* scaled;    // [64][128] for the pair chains, then u of 3.7
  float* state_t;   // [128][64] E transposed
  float* no_state;  // [64][128] zeros: E of the last chunk
  float* read;      // [64] exp(da_i)
  float* left;      // [64] exp(da_63 - da_i)
  float* pairs;     // [64][64] samba.fp32.v2: (dY_i . v_j) L_ij, and transposed
  float* pairs_t;
  float* sums;  // [64][64] samba.fp32.v2: serial sums along rows
};
constexpr Index kPiecesFloats = 5 * Q * P + 3 * Q * N + 2 * Q + 3 * Q * Q;

inline Pieces make_pieces(float* scratch) {
  Pieces s{};
  ScratchPieces take(scratch);
  s.v = take(Q * P);
  s.v_t = take(Q * P);
  s.d_y_t = take(Q * P);
  s.weights = take(Q * P);
  s.d_value = take(Q * P);
  s.scaled = take(Q * N);
  s.state_t = take(Q * N);
  s.no_state = take(Q * N);
  s.read = take(Q);
  s.left = take(Q);
  s.pairs = take(Q * Q);
  s.pairs_t = take(Q * Q);
  s.sums = take(Q * Q);
  std::fill_n(s.no_state, P * N, 0.0F);
  return s;
}

// v, its transpose, dY transposed, M and the chunk's exponentials.
inline void gather(const Chunk& c, const Pieces& s) {
  for (Index i = 0; i < Q; ++i) {
    if (i < c.real) {
      std::copy_n(c.v() + i * c.call->current.v_stride, P, s.v + i * P);
    } else {
      std::fill_n(s.v + i * P, P, 0.0F);
    }
  }
  transpose(
      Q, P, [&](Index i) { return s.v + i * P; }, s.v_t, Q);
  transpose(
      c.real, P, [&](Index i) { return c.d_y() + i * c.row_p(); }, s.d_y_t, Q);
  for (Index i = 0; i < c.real; ++i) {
    each_vector(Q, [&](Index j) {
      const M below = hn::Lt(iota(j), constant(static_cast<float>(i)));
      const V weight = mul(load(c.scores() + i * Q + j), load(c.decay() + i * Q + j));
      store(select(below, weight, zero()), s.weights + i * Q + j);
    });
  }
  const V last = broadcast(c.dacs() + Q - 1);
  each_vector(Q, [&](Index i) {
    store(exp(load(c.dacs() + i)), s.read + i);
    store(exp(sub(last, load(c.dacs() + i))), s.left + i);
  });
}

}  // namespace samba::cpu::HWY_NAMESPACE::mamba3_lanes
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
