// Mamba-3, the chunked scan: decay, state pass, outputs (spec 40 sections 3.9 to 3.12).
#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba3.h"
#include "samba/backends/reference/mamba3_arithmetic.h"

namespace samba::reference {

namespace {

// One chunk of one batch row and head; rows at and after `real` are +0.0.
struct Chunk {
  Index first;
  Index real;
  float q[kChunk][kStateSize];
  float k_scaled[kChunk][kStateSize];
  float v[kChunk][kHeadDim];
  float adt[kChunk];
  float dacs[kChunk];
  float decay[kChunk][kChunk];
  float scores[kChunk][kChunk];
};

using State = float[kStateSize][kHeadDim];  // transposed: [n][p]

void read_chunk(const Mamba3Call& call, Index b, Index h, Index c, Chunk& chunk) {
  const WorkingRows rows(call, b, h);
  const ChunkRange range = chunk_range(call, c);
  chunk.first = range.first;
  chunk.real = range.real;
  for (Index i = 0; i < kChunk; ++i) {
    const Index t = range.first + i;
    const bool inside = i < range.real;
    const float* q = inside ? rows.q(t) : nullptr;
    const float* v = inside ? rows.v(t) : nullptr;
    const float* k = call.k_scaled + ((b * call.working_rows() + t) * call.heads() + h) * kStateSize;
    for (Index n = 0; n < kStateSize; ++n) {
      chunk.q[i][n] = inside ? flush(q[n]) : 0.0F;
      chunk.k_scaled[i][n] = inside ? k[n] : 0.0F;
    }
    for (Index p = 0; p < kHeadDim; ++p) chunk.v[i][p] = inside ? flush(v[p]) : 0.0F;
    chunk.adt[i] = inside ? rows.adt(t) : 0.0F;
    if (i == 0) {
      chunk.dacs[i] = chunk.adt[i];
    } else {
      chunk.dacs[i] = inside ? add(chunk.dacs[i - 1], chunk.adt[i]) : chunk.dacs[i - 1];
    }
  }
}

// L[i][j] = exp(adt[j+1] + ... + adt[i]), each column a sum of its own. Rows before `first_row` are left out.
SAMBA_FMA_CLONES void fill_decay(Chunk& chunk, Index first_row) {
  float sums[kChunk] = {};
  for (Index i = 0; i < kChunk; ++i) {
    if (i < chunk.real) {
      for (Index j = 0; j < i; ++j) sums[j] = add(sums[j], chunk.adt[i]);
    }
    if (i < first_row) continue;
    for (Index j = 0; j < i; ++j) chunk.decay[i][j] = exp_flushed(sums[j]);
    for (Index j = i; j < kChunk; ++j) chunk.decay[i][j] = 0.0F;
  }
}

// s[i][j] = dot(q[i], ks[j]) for j < i.
SAMBA_FMA_CLONES void fill_scores(Chunk& chunk, Index first_row) {
  float keys[kStateSize][kChunk];
  for (Index j = 0; j < kChunk; ++j) {
    for (Index n = 0; n < kStateSize; ++n) keys[n][j] = chunk.k_scaled[j][n];
  }
  for (Index i = first_row; i < chunk.real; ++i) {
    float row[kChunk] = {};
    for (Index n = 0; n < kStateSize; ++n) {
      for (Index j = 0; j < kChunk; ++j) row[j] = flushed_mad(chunk.q[i][n], keys[n][j], row[j]);
    }
    std::copy_n(row, kChunk, chunk.scores[i]);
  }
}

// yin: the chain over all 64 columns, with M = +0.0 at and after the diagonal.
SAMBA_FMA_CLONES void intra_output(const Chunk& chunk, Index i, float* out) {
  float sum[kHeadDim] = {};
  for (Index j = 0; j < kChunk; ++j) {
    const float weight = j < i ? flushed_mul(chunk.scores[i][j], chunk.decay[i][j]) : 0.0F;
    for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(weight, chunk.v[j][p], sum[p]);
  }
  std::copy_n(sum, kHeadDim, out);
}

SAMBA_FMA_CLONES void state_output(const Chunk& chunk, Index i, const State& state, float* out) {
  float sum[kHeadDim] = {};
  for (Index n = 0; n < kStateSize; ++n) {
    for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(chunk.q[i][n], state[n][p], sum[p]);
  }
  const float decay = exp_flushed(chunk.dacs[i]);
  for (Index p = 0; p < kHeadDim; ++p) out[p] = flushed_mul(sum[p], decay);
}

// S = exp(dl) S + sum over the chunk's rows of (v_i exp(dl - da_i)) ks_i, the last step fused.
SAMBA_FMA_CLONES void advance_state(const Chunk& chunk, State& state) {
  const float last = chunk.dacs[kChunk - 1];
  const float decay = exp_flushed(last);
  float v[kChunk][kHeadDim] = {};
  for (Index i = 0; i < chunk.real; ++i) {
    const float e = exp_flushed(sub(last, chunk.dacs[i]));
    for (Index p = 0; p < kHeadDim; ++p) v[i][p] = flushed_mul(chunk.v[i][p], e);
  }
  for (Index n = 0; n < kStateSize; ++n) {
    float sum[kHeadDim] = {};
    for (Index i = 0; i < kChunk; ++i) {
      for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(v[i][p], chunk.k_scaled[i][n], sum[p]);
    }
    for (Index p = 0; p < kHeadDim; ++p) state[n][p] = flushed_mad(decay, state[n][p], sum[p]);
  }
}

SAMBA_FMA_CLONES void write_row(const Mamba3Call& call, Index b, Index h, Index t, const float* v, const float* y_intra,
                                const float* y_state) {
  const Index heads = call.heads();
  const Index m = b * call.tokens + t - call.buffered;
  const Index at = m * heads + h;
  const float gamma = call.gamma[(b * call.working_rows() + t) * heads + h];
  const float qkdot = mul(call.qk_chain[at], gamma);
  const float weight = add(call.d[h], qkdot);
  const float* z =
      call.in_proj + m * mamba3::projection_width(call.d_model) + mamba3::columns(call.d_model).z + h * kHeadDim;
  for (Index p = 0; p < kHeadDim; ++p) {
    const float y = add(add(y_state[p], y_intra[p]), mul(weight, v[p]));
    call.skip[at * kHeadDim + p] = y;
    call.gate[at * kHeadDim + p] = mul(y, flush(elementary::silu(flush(z[p]))));
  }
  if (call.qkdot != nullptr) call.qkdot[at] = qkdot;
  if (call.y_intra != nullptr) std::copy_n(y_intra, kHeadDim, call.y_intra + at * kHeadDim);
  if (call.y_state != nullptr) std::copy_n(y_state, kHeadDim, call.y_state + at * kHeadDim);
}

void write_outputs(const Mamba3Call& call, Index b, Index h, Chunk& chunk, const State& state) {
  const Index first_new = std::max<Index>(call.buffered - chunk.first, 0);
  const Index first_row = call.decay == nullptr ? first_new : 0;
  fill_decay(chunk, first_row);
  fill_scores(chunk, first_row);
  for (Index i = first_new; i < chunk.real; ++i) {
    float y_intra[kHeadDim];
    float y_state[kHeadDim];
    intra_output(chunk, i, y_intra);
    state_output(chunk, i, state, y_state);
    write_row(call, b, h, chunk.first + i, chunk.v[i], y_intra, y_state);
  }
}

void write_state(const State& state, float* out) {
  for (Index p = 0; p < kHeadDim; ++p) {
    for (Index n = 0; n < kStateSize; ++n) out[p * kStateSize + n] = state[n][p];
  }
}

void keep_chunk(const Mamba3Call& call, Index b, Index h, Index c, const Chunk& chunk, const State& entering) {
  const Index heads = call.heads();
  const Index at = (b * heads + h) * call.chunks() + c;
  std::copy_n(chunk.dacs, kChunk, call.dacs + at * kChunk);
  std::copy_n(&chunk.decay[0][0], kChunk * kChunk, call.decay + at * kChunk * kChunk);
  for (Index i = 0; i < chunk.real; ++i) {
    std::copy_n(chunk.scores[i], kChunk, call.scores + (at * kChunk + i) * kChunk);
  }
  write_state(entering, call.pass_states + ((b * call.chunks() + c) * heads + h) * kHeadDim * kStateSize);
}

// h += (v_in k_in^T) dt_0 (1 - sig_0), in place                                  spec 40 section 3.10
void add_input_states(const Mamba3Call& call, Index b, Index h, float* state) {
  const WorkingRows rows(call, b, h);
  const float c = mul(rows.dt(0), sub(1.0F, rows.sigma(0)));
  const float* k = call.pending_k + (b * call.heads() + h) * kStateSize;
  const float* v = call.pending_v + (b * call.heads() + h) * kHeadDim;
  for (Index p = 0; p < kHeadDim; ++p) {
    for (Index n = 0; n < kStateSize; ++n) {
      float& cell = state[p * kStateSize + n];
      cell = add(cell, mul(mul(v[p], k[n]), c));
    }
  }
}

void scan_head(const Mamba3Call& call, Index b, Index h) {
  const Index head_at = (b * call.heads() + h) * kHeadDim * kStateSize;
  float* stored = call.h == nullptr ? nullptr : call.h + head_at;
  if (call.pending_k != nullptr) add_input_states(call, b, h, stored);
  alignas(64) State state = {};
  if (stored != nullptr) transpose_state(stored, state);

  alignas(64) Chunk chunk;
  for (Index c = 0; c < call.chunks(); ++c) {
    const bool last = c + 1 == call.chunks();
    read_chunk(call, b, h, c, chunk);
    if (last && c > 0 && stored != nullptr) write_state(state, stored);
    if (call.decay != nullptr || chunk.first + chunk.real > call.buffered) write_outputs(call, b, h, chunk, state);
    if (call.decay != nullptr) keep_chunk(call, b, h, c, chunk, state);
    if (!last || call.h_last != nullptr) advance_state(chunk, state);
  }
  if (call.h_last != nullptr) write_state(state, call.h_last + head_at);
}

}  // namespace

void Mamba3Reference::scan(const Mamba3Call& call) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index h = 0; h < call.heads(); ++h) scan_head(call, b, h);
  }
}

}  // namespace samba::reference
