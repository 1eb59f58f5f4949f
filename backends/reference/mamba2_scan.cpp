// Mamba-2, the chunked core and its outputs (spec 31 S8, S18, S19 and section 3).
#include <memory>

#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba2.h"
#include "samba/backends/reference/mamba2_arithmetic.h"

namespace samba::reference {

namespace {

using namespace mamba2_arithmetic;

// One chunk of one batch row and head; rows at and after `real` are +0.0.
struct Chunk {
  Index b, c, h;
  Index real;
  float keys[kChunk][kStateSize];     // B
  float queries[kChunk][kStateSize];  // C
  float keys_t[kStateSize][kChunk];
  float x_d[kChunk][kHeadDim];
  float decayed[kChunk][kStateSize];  // B times the decay to the end of the chunk
  float da[kChunk];
  float dacs[kChunk];
  float decay[kChunk];
};

using State = float[kStateSize][kHeadDim];  // transposed: [n][p]

void step_sizes(const Mamba2Call& call, Index b) {
  const Index heads = call.heads();
  for (Index t = 0; t < call.working_rows(); ++t) {
    const float* raw = t < call.buffered ? call.buffer_dt + (b * kChunk + t) * heads
                                         : call.in_proj + (b * call.tokens + t - call.buffered) * call.width() +
                                               mamba2::dt_column(call.d_model);
    for (Index h = 0; h < heads; ++h) {
      const float s = flush(elementary::softplus(add(raw[h], call.dt_bias[h])));
      call.dt[(b * call.working_rows() + t) * heads + h] = flush(clamp(s, call.dt_low, call.dt_high));
    }
  }
}

void read_keys(const Mamba2Call& call, Index b, Index c, Chunk& chunk) {
  chunk.b = b;
  chunk.c = c;
  chunk.real = call.real_rows(c);
  read_rows(call, Part::b, b, c, chunk.keys);
  read_rows(call, Part::c, b, c, chunk.queries);
  for (Index j = 0; j < kChunk; ++j) {
    for (Index n = 0; n < kStateSize; ++n) chunk.keys_t[n][j] = chunk.keys[j][n];
  }
}

// G[i][j] = dot(C_i, B_j) of the new rows.
SAMBA_FMA_CLONES void fill_scores(const Mamba2Call& call, const Chunk& chunk) {
  for (Index i = call.first_new(chunk.c); i < chunk.real; ++i) {
    float row[kChunk] = {};
    const Index width = std::min(kChunk, (i + 8) / 8 * 8);
    for (Index n = 0; n < kStateSize; ++n) {
      for (Index j = 0; j < width; ++j) row[j] = flushed_mad(chunk.queries[i][n], chunk.keys_t[n][j], row[j]);
    }
    std::copy_n(row, i + 1, call.scores + call.token(chunk.b, chunk.c, i) * kChunk);
  }
}

// Steps 1, 2 and 6 of section 3.
SAMBA_FMA_CLONES void read_head(const Mamba2Call& call, Index h, Chunk& chunk) {
  chunk.h = h;
  const Index first = chunk.c * kChunk;
  for (Index i = 0; i < kChunk; ++i) {
    const bool inside = i < chunk.real;
    const float* x = inside ? xbc_row(call, chunk.b, first + i) + h * kHeadDim : nullptr;
    const float dt = inside ? call.dt[(chunk.b * call.working_rows() + first + i) * call.heads() + h] : 0.0F;
    for (Index p = 0; p < kHeadDim; ++p) chunk.x_d[i][p] = inside ? mul(x[p], dt) : 0.0F;
    chunk.da[i] = inside ? mul(dt, call.a[h]) : 0.0F;
    if (i == 0) {
      chunk.dacs[i] = chunk.da[i];
    } else {
      chunk.dacs[i] = inside ? add(chunk.dacs[i - 1], chunk.da[i]) : chunk.dacs[i - 1];
    }
  }
  for (Index i = 0; i < kChunk; ++i) chunk.decay[i] = exp_flushed(sub(chunk.dacs[kChunk - 1], chunk.dacs[i]));
  const Index at = call.head_chunk(chunk.b, h, chunk.c) * kChunk;
  std::copy_n(chunk.dacs, kChunk, call.dacs + at);
  std::copy_n(chunk.decay, kChunk, call.decay + at);
}

// The terms +0 * +0 of a leaf's missing rows turn -0.0 into +0.0 and change nothing else.
inline float with_missing_rows(float leaf) { return leaf + 0.0F; }

// The leaf of Y_diag over rows [first, first + 128).
SAMBA_FMA_CLONES void diagonal_leaf(const Chunk& chunk, const float* weights, Index first, float* sum) {
  std::fill_n(sum, kHeadDim, 0.0F);
  const Index end = first + kChunk / 2;
  for (Index j = first; j < std::min(end, chunk.real); ++j) {
    for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(weights[j], chunk.x_d[j][p], sum[p]);
  }
  if (chunk.real >= end) return;
  for (Index p = 0; p < kHeadDim; ++p) sum[p] = with_missing_rows(sum[p]);
}

// Step 5, literally: all columns, +0.0 above the diagonal.
void diagonal_output(const Mamba2Call& call, const Chunk& chunk, Index i, const float* decay, float* out) {
  const float* scores = call.scores + call.token(chunk.b, chunk.c, i) * kChunk;
  float weights[kChunk] = {};
  for (Index j = 0; j <= i; ++j) weights[j] = flushed_mul(scores[j], decay[j]);
  float second[kHeadDim];
  diagonal_leaf(chunk, weights, 0, out);
  diagonal_leaf(chunk, weights, kChunk / 2, second);
  for (Index p = 0; p < kHeadDim; ++p) out[p] = flush(out[p] + second[p]);
}

// Step 9.
SAMBA_FMA_CLONES void state_output(const Chunk& chunk, Index i, const State& state, float* out) {
  float sum[kHeadDim] = {};
  for (Index n = 0; n < kStateSize; ++n) {
    for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(chunk.queries[i][n], state[n][p], sum[p]);
  }
  const float decay = exp_flushed(chunk.dacs[i]);
  for (Index p = 0; p < kHeadDim; ++p) out[p] = flushed_mul(sum[p], decay);
}

// Step 10, S18 and S19 of one row.
SAMBA_FMA_CLONES void write_row(const Mamba2Call& call, const Chunk& chunk, Index i, const float* y_diag,
                                const float* y_off) {
  const Index m = call.token(chunk.b, chunk.c, i);
  const Index at = m * call.inner() + chunk.h * kHeadDim;
  const float* x = call.x_bc + m * call.channels() + chunk.h * kHeadDim;
  const float* z = call.in_proj + m * call.width() + chunk.h * kHeadDim;
  for (Index p = 0; p < kHeadDim; ++p) {
    const float y = add(y_diag[p], y_off[p]);
    const float skip = add(y, mul(x[p], call.d[chunk.h]));
    call.skip[at + p] = skip;
    call.gate[at + p] = mul(skip, flush(elementary::silu(flush(z[p]))));
    if (call.y != nullptr) call.y[at + p] = y;
  }
  if (call.x_d != nullptr) std::copy_n(chunk.x_d[i], kHeadDim, call.x_d + at);
  if (call.y_diag != nullptr) std::copy_n(y_diag, kHeadDim, call.y_diag + at);
  if (call.y_off != nullptr) std::copy_n(y_off, kHeadDim, call.y_off + at);
}

SAMBA_FMA_CLONES void write_outputs(const Mamba2Call& call, const Chunk& chunk, const float* entering) {
  const Index first_new = call.first_new(chunk.c);
  alignas(64) State state;
  transpose_state(entering, state);
  float sums[kChunk];
  float decay[kChunk];
  for (Index i = 0; i < chunk.real; ++i) {
    segment_row(chunk.da, i, sums, decay);
    if (i < first_new) continue;
    float y_diag[kHeadDim];
    float y_off[kHeadDim];
    diagonal_output(call, chunk, i, decay, y_diag);
    state_output(chunk, i, state, y_off);
    write_row(call, chunk, i, y_diag, y_off);
  }
}

// Step 7 of one p: two leaves over the rows.
SAMBA_FMA_CLONES void chunk_state_row(const Chunk& chunk, Index p, float* sum) {
  float leaves[2][kStateSize] = {};
  for (Index i = 0; i < chunk.real; ++i) {
    float* leaf = leaves[i < kChunk / 2 ? 0 : 1];
    for (Index n = 0; n < kStateSize; ++n) leaf[n] = flushed_mad(chunk.x_d[i][p], chunk.decayed[i][n], leaf[n]);
  }
  for (Index k = 0; k < 2; ++k) {
    if (chunk.real >= (k + 1) * kChunk / 2) continue;
    for (Index n = 0; n < kStateSize; ++n) leaves[k][n] = with_missing_rows(leaves[k][n]);
  }
  for (Index n = 0; n < kStateSize; ++n) sum[n] = flush(leaves[0][n] + leaves[1][n]);
}

// Steps 7 and 8. `state` holds the state entering the chunk, then the one that leaves it.
SAMBA_FMA_CLONES void advance_state(const Mamba2Call& call, Chunk& chunk, float* state) {
  for (Index i = 0; i < chunk.real; ++i) {
    for (Index n = 0; n < kStateSize; ++n) chunk.decayed[i][n] = flushed_mul(chunk.keys[i][n], chunk.decay[i]);
  }
  const float carry = exp_flushed(chunk.dacs[kChunk - 1]);
  float* kept =
      call.chunk_states == nullptr ? nullptr : call.chunk_states + call.chunk_head(chunk.b, chunk.c, chunk.h) * kCells;
  for (Index p = 0; p < kHeadDim; ++p) {
    float sum[kStateSize];
    chunk_state_row(chunk, p, sum);
    if (kept != nullptr) std::copy_n(sum, kStateSize, kept + p * kStateSize);
    float* row = state + p * kStateSize;
    for (Index n = 0; n < kStateSize; ++n) row[n] = mad(carry, row[n], sum[n]);
  }
}

void scan_head(const Mamba2Call& call, Chunk& chunk, Index h, float* state) {
  read_head(call, h, chunk);
  if (call.pass_states != nullptr) {
    std::copy_n(state, kCells, call.pass_states + call.chunk_head(chunk.b, chunk.c, h) * kCells);
  }
  write_outputs(call, chunk, state);
  const bool last = chunk.c + 1 == call.chunks();
  const bool completed = chunk.real == kChunk;
  const Index at = (chunk.b * call.heads() + h) * kCells;
  if (last && !completed && call.h_last == nullptr && call.chunk_states == nullptr) return;
  advance_state(call, chunk, state);
  if (completed && call.h != nullptr) std::copy_n(state, kCells, call.h + at);
  if (last && call.h_last != nullptr) std::copy_n(state, kCells, call.h_last + at);
}

}  // namespace

void Mamba2Reference::scan(const Mamba2Call& call) {
  const auto chunk = std::make_unique<Chunk>();
  const Index row_cells = call.heads() * kCells;
  const auto states = std::make_unique<float[]>(static_cast<std::size_t>(row_cells));
  for (Index b = 0; b < call.batch; ++b) {
    step_sizes(call, b);
    if (call.h == nullptr) {
      std::fill_n(states.get(), row_cells, 0.0F);
    } else {
      std::copy_n(call.h + b * row_cells, row_cells, states.get());
    }
    for (Index c = 0; c < call.chunks(); ++c) {
      read_keys(call, b, c, *chunk);
      fill_scores(call, *chunk);
      for (Index h = 0; h < call.heads(); ++h) scan_head(call, *chunk, h, states.get() + h * kCells);
    }
  }
}

}  // namespace samba::reference
