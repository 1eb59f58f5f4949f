// Mamba-3, backward of the chunked scan (spec 41 sections 3.4 to 3.8 and the sums to adt of 3.11; for samba.fp32.v2
// docs/spec-extensions.md section 2 in the place of 3.4, 3.5 and the tail chain of 3.7).
#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba3.h"
#include "samba/backends/reference/mamba3_arithmetic.h"

namespace samba::reference {

namespace {

// One chunk of one batch row and head: what the forward kept, and the gradient dY of the skip output.
struct ChunkTape {
  Index first;
  Index real;
  float q[kChunk][kStateSize];
  float k_scaled[kChunk][kStateSize];
  float v[kChunk][kHeadDim];
  float dy[kChunk][kHeadDim];
  const float* dacs;                    // [64]
  const float* decay;                   // [64][64]
  const float* scores;                  // [64][64]
  const float* entering;                // [p][n], the state entering the chunk
  float leaving[kHeadDim][kStateSize];  // E, the gradient of the state leaving the chunk
  float d_seg[kChunk][kChunk];
  float pairs[kChunk][kChunk];  // of samba.fp32.v2: dY_i . v_j, then times L_ij, for j < i

  float decay_at(Index i, Index j) const { return decay[i * kChunk + j]; }
  float score_at(Index i, Index j) const { return scores[i * kChunk + j]; }
};

void read_chunk(const Mamba3Call& call, const Mamba3Gradients& gradients, Index b, Index h, Index c, ChunkTape& chunk) {
  const Index heads = call.heads();
  const WorkingRows rows(call, b, h);
  const ChunkRange range = chunk_range(call, c);
  chunk.first = range.first;
  chunk.real = range.real;
  for (Index i = 0; i < range.real; ++i) {
    const Index t = range.first + i;
    const Index at = (b * call.tokens + t) * heads + h;
    std::copy_n(rows.q(t), kStateSize, chunk.q[i]);
    std::copy_n(rows.v(t), kHeadDim, chunk.v[i]);
    std::copy_n(call.k_scaled + at * kStateSize, kStateSize, chunk.k_scaled[i]);
    std::copy_n(gradients.d_skip + at * kHeadDim, kHeadDim, chunk.dy[i]);
  }
  const Index at = (b * heads + h) * call.chunks() + c;
  chunk.dacs = call.dacs + at * kChunk;
  chunk.decay = call.decay + at * kChunk * kChunk;
  chunk.scores = call.scores + at * kChunk * kChunk;
  chunk.entering = call.pass_states + ((b * call.chunks() + c) * heads + h) * kHeadDim * kStateSize;
}

// dq[n] += dY[i0][p] * ((ks_j[n] L[i0][j]) v_j[p]), p outer, j < i0 inner. The inner product is taken out of the p
// loop.
SAMBA_FMA_CLONES void query_gradient(const ChunkTape& chunk, Index i0, float* out) {
  float keys[kChunk][kStateSize];
  for (Index j = 0; j < i0; ++j) {
    for (Index n = 0; n < kStateSize; ++n) keys[j][n] = flushed_mul(chunk.k_scaled[j][n], chunk.decay_at(i0, j));
  }
  float dq[kStateSize] = {};
  for (Index p = 0; p < kHeadDim; ++p) {
    const float g = chunk.dy[i0][p];
    for (Index j = 0; j < i0; ++j) {
      const float v = chunk.v[j][p];
      for (Index n = 0; n < kStateSize; ++n) dq[n] = flushed_mad(g, flushed_mul(keys[j][n], v), dq[n]);
    }
  }
  std::copy_n(dq, kStateSize, out);
}

// dk[n] += dY[i][p] * ((q_i[n] L[i][i0]) v_i0[p]), p outer, i > i0 inner.
SAMBA_FMA_CLONES void key_gradient(const ChunkTape& chunk, Index i0, float* out) {
  float queries[kChunk][kStateSize];
  for (Index i = i0 + 1; i < chunk.real; ++i) {
    for (Index n = 0; n < kStateSize; ++n) queries[i][n] = flushed_mul(chunk.q[i][n], chunk.decay_at(i, i0));
  }
  float dk[kStateSize] = {};
  for (Index p = 0; p < kHeadDim; ++p) {
    const float v = chunk.v[i0][p];
    for (Index i = i0 + 1; i < chunk.real; ++i) {
      const float g = chunk.dy[i][p];
      for (Index n = 0; n < kStateSize; ++n) dk[n] = flushed_mad(g, flushed_mul(queries[i][n], v), dk[n]);
    }
  }
  std::copy_n(dk, kStateSize, out);
}

SAMBA_FMA_CLONES void value_gradient(const ChunkTape& chunk, Index i0, float* out) {
  float dv[kHeadDim] = {};
  for (Index i = i0 + 1; i < chunk.real; ++i) {
    const float weight = flushed_mul(chunk.score_at(i, i0), chunk.decay_at(i, i0));
    for (Index p = 0; p < kHeadDim; ++p) dv[p] = flushed_mad(chunk.dy[i][p], weight, dv[p]);
  }
  std::copy_n(dv, kHeadDim, out);
}

// d_seg[i][j] = chain over p of dY[i][p] (s_ij v_j[p]) for j < i; +0.0 elsewhere.
SAMBA_FMA_CLONES void fill_segment_gradient(ChunkTape& chunk) {
  float values[kHeadDim][kChunk] = {};
  for (Index j = 0; j < chunk.real; ++j) {
    for (Index p = 0; p < kHeadDim; ++p) values[p][j] = chunk.v[j][p];
  }
  for (Index i = 0; i < kChunk; ++i) {
    float sum[kChunk] = {};
    if (i < chunk.real) {
      for (Index p = 0; p < kHeadDim; ++p) {
        for (Index j = 0; j < i; ++j) {
          sum[j] = flushed_mad(chunk.dy[i][p], flushed_mul(chunk.score_at(i, j), values[p][j]), sum[j]);
        }
      }
    }
    std::copy_n(sum, kChunk, chunk.d_seg[i]);
  }
}

// One chain: i outer from s, j < s inner                                         section 3.5
SAMBA_FMA_CLONES float segment_sum(const ChunkTape& chunk, Index s) {
  float sum = 0.0F;
  for (Index i = s; i < chunk.real; ++i) {
    for (Index j = 0; j < s; ++j) sum = flushed_mad(chunk.d_seg[i][j], chunk.decay_at(i, j), sum);
  }
  return sum;
}

// G = direct + E exp(da_63): two roundings, unlike the forward                   section 3.6
SAMBA_FMA_CLONES void entering_gradient(const ChunkTape& chunk, float* out) {
  float queries[kChunk][kStateSize];
  for (Index i = 0; i < chunk.real; ++i) {
    const float e = exp_flushed(chunk.dacs[i]);
    for (Index n = 0; n < kStateSize; ++n) queries[i][n] = flushed_mul(chunk.q[i][n], e);
  }
  const float decay = exp_flushed(chunk.dacs[kChunk - 1]);
  for (Index p = 0; p < kHeadDim; ++p) {
    float direct[kStateSize] = {};
    for (Index i = 0; i < chunk.real; ++i) {
      for (Index n = 0; n < kStateSize; ++n) direct[n] = flushed_mad(chunk.dy[i][p], queries[i][n], direct[n]);
    }
    for (Index n = 0; n < kStateSize; ++n) {
      out[p * kStateSize + n] = add(direct[n], flushed_mul(chunk.leaving[p][n], decay));
    }
  }
}

// dq17; returns d_dacs_read                                                      section 3.7 step 1
SAMBA_FMA_CLONES float read_gradient(const ChunkTape& chunk, Index i0, float* dq) {
  float u[kStateSize] = {};
  for (Index p = 0; p < kHeadDim; ++p) {
    const float* state = chunk.entering + p * kStateSize;
    for (Index n = 0; n < kStateSize; ++n) u[n] = flushed_mad(chunk.dy[i0][p], state[n], u[n]);
  }
  const float decay = exp_flushed(chunk.dacs[i0]);
  float sum = 0.0F;
  for (Index n = 0; n < kStateSize; ++n) {
    dq[n] = flushed_mul(u[n], decay);
    sum = flushed_mad(chunk.q[i0][n], u[n], sum);
  }
  return mul(sum, decay);
}

// dk17, dv17; returns d_dacs_rec without its tail                                section 3.7 steps 2 to 4
SAMBA_FMA_CLONES float record_gradient(const ChunkTape& chunk, Index i0, const float (*leaving)[kHeadDim], float* dk,
                                       float* dv) {
  const float decay = exp_flushed(sub(chunk.dacs[kChunk - 1], chunk.dacs[i0]));
  float u[kStateSize] = {};
  for (Index p = 0; p < kHeadDim; ++p) {
    for (Index n = 0; n < kStateSize; ++n) u[n] = flushed_mad(chunk.leaving[p][n], chunk.v[i0][p], u[n]);
  }
  for (Index n = 0; n < kStateSize; ++n) dk[n] = flushed_mul(u[n], decay);

  float w[kHeadDim] = {};
  for (Index n = 0; n < kStateSize; ++n) {
    for (Index p = 0; p < kHeadDim; ++p) w[p] = flushed_mad(leaving[n][p], chunk.k_scaled[i0][n], w[p]);
  }
  float sum = 0.0F;
  for (Index p = 0; p < kHeadDim; ++p) {
    dv[p] = flushed_mul(w[p], decay);
    sum = flushed_mad(dv[p], chunk.v[i0][p], sum);
  }
  return -sum;
}

// The tail chain of the chunk's last row                                         section 3.7 step 5
SAMBA_FMA_CLONES float tail_sum(const ChunkTape& chunk) {
  const float last = chunk.dacs[kChunk - 1];
  float sum = 0.0F;
  for (Index j = 0; j < chunk.real; ++j) {
    const float e = exp_flushed(sub(last, chunk.dacs[j]));
    for (Index p = 0; p < kHeadDim; ++p) {
      float terms[kStateSize];
      for (Index n = 0; n < kStateSize; ++n) {
        terms[n] = flushed_mul(flushed_mul(chunk.v[j][p], chunk.k_scaled[j][n]), e);
      }
      for (Index n = 0; n < kStateSize; ++n) sum = flushed_mad(chunk.leaving[p][n], terms[n], sum);
    }
  }
  const float e = exp_flushed(last);
  for (Index p = 0; p < kHeadDim; ++p) {
    for (Index n = 0; n < kStateSize; ++n) {
      sum = flushed_mad(chunk.leaving[p][n], flushed_mul(chunk.entering[p * kStateSize + n], e), sum);
    }
  }
  return sum;
}

// --- samba.fp32.v2 ---

// pairs[i][j] = w L_ij and d_seg[i][j] = s_ij w for j < i, w = chain over p of dY[i][p] v_j[p].
SAMBA_FMA_CLONES void fill_pairs(ChunkTape& chunk) {
  std::fill_n(&chunk.d_seg[0][0], kChunk * kChunk, 0.0F);
  for (Index i = 0; i < chunk.real; ++i) {
    for (Index j = 0; j < i; ++j) {
      float w = 0.0F;
      for (Index p = 0; p < kHeadDim; ++p) w = flushed_mad(chunk.dy[i][p], chunk.v[j][p], w);
      chunk.pairs[i][j] = flushed_mul(w, chunk.decay_at(i, j));
      chunk.d_seg[i][j] = flushed_mul(chunk.score_at(i, j), w);
    }
  }
}

// dq = chain over j < i0 of pairs[i0][j] ks_j, dk = chain over i > i0 of pairs[i][i0] q_i
SAMBA_FMA_CLONES void pair_gradients(const ChunkTape& chunk, Index i0, float* dq, float* dk) {
  float query[kStateSize] = {}, key[kStateSize] = {};
  for (Index j = 0; j < i0; ++j) {
    for (Index n = 0; n < kStateSize; ++n) query[n] = flushed_mad(chunk.pairs[i0][j], chunk.k_scaled[j][n], query[n]);
  }
  for (Index i = i0 + 1; i < chunk.real; ++i) {
    for (Index n = 0; n < kStateSize; ++n) key[n] = flushed_mad(chunk.pairs[i][i0], chunk.q[i][n], key[n]);
  }
  std::copy_n(query, kStateSize, dq);
  std::copy_n(key, kStateSize, dk);
}

// Serial sums: of each row i over j < s, then of these over i from s on.
SAMBA_FMA_CLONES float segment_sum_of_rows(const ChunkTape& chunk, Index s) {
  float sum = 0.0F;
  for (Index i = s; i < chunk.real; ++i) {
    float row = 0.0F;
    for (Index j = 0; j < s; ++j) row = flush(row + flushed_mul(chunk.d_seg[i][j], chunk.decay_at(i, j)));
    sum = flush(sum + row);
  }
  return sum;
}

// What the rows' own parts of d_dacs add up to, and the state that was carried over the chunk.
SAMBA_FMA_CLONES float tail_of_rows(const ChunkTape& chunk, const float* records) {
  float sum = 0.0F;
  for (Index j = 0; j < chunk.real; ++j) sum = flush(sum + records[j]);
  float carried = 0.0F;
  for (Index p = 0; p < kHeadDim; ++p) {
    float row = 0.0F;
    for (Index n = 0; n < kStateSize; ++n) {
      row = flushed_mad(chunk.leaving[p][n], chunk.entering[p * kStateSize + n], row);
    }
    carried = flush(carried + row);
  }
  return add(sum, mul(carried, exp_flushed(chunk.dacs[kChunk - 1])));
}

// records[i]: the row's part of the tail, -d_dacs_rec of step 4.
void write_row(const ChunkTape& chunk, const Mamba3Gradients& gradients, Index i0, Index at,
               const float (*leaving)[kHeadDim], bool products, float* records) {
  float* dq16 = gradients.d_q16 + at * kStateSize;
  float* dk16 = gradients.d_k16 + at * kStateSize;
  float* dv16 = gradients.d_v16 + at * kHeadDim;
  if (products) {
    pair_gradients(chunk, i0, dq16, dk16);
  } else {
    query_gradient(chunk, i0, dq16);
    key_gradient(chunk, i0, dk16);
  }
  value_gradient(chunk, i0, dv16);
  gradients.d_adt_seg[at] = products ? segment_sum_of_rows(chunk, i0) : segment_sum(chunk, i0);

  float dq17[kStateSize];
  float dk17[kStateSize];
  float* dv17 = gradients.d_v17 + at * kHeadDim;
  const float read = read_gradient(chunk, i0, dq17);
  float record = record_gradient(chunk, i0, leaving, dk17, dv17);
  records[i0] = -record;
  if (i0 + 1 == chunk.real) {
    record = add(record, products ? tail_of_rows(chunk, records) : tail_sum(chunk));
  }

  gradients.d_dacs_read[at] = read;
  gradients.d_dacs_rec[at] = record;
  gradients.d_dacs[at] = add(read, record);
  for (Index n = 0; n < kStateSize; ++n) {
    gradients.d_q[at * kStateSize + n] = add(dq16[n], dq17[n]);
    gradients.d_k[at * kStateSize + n] = add(dk16[n], dk17[n]);
  }
  for (Index p = 0; p < kHeadDim; ++p) {
    gradients.d_v[at * kHeadDim + p] = add(add(gradients.d_v_skip[at * kHeadDim + p], dv16[p]), dv17[p]);
  }
}

// The chunk's rows descending: the gradient of a cumulative sum                  section 3.11
void write_adt(const Mamba3Call& call, const Mamba3Gradients& gradients, Index b, Index h, const ChunkTape& chunk) {
  float run = 0.0F;
  for (Index i = chunk.real - 1; i >= 0; --i) {
    const Index at = (b * call.tokens + chunk.first + i) * call.heads() + h;
    run = add(run, gradients.d_dacs[at]);
    gradients.d_adt_dacs[at] = run;
    gradients.d_adt[at] = add(gradients.d_adt_seg[at], run);
  }
}

void scan_head_backward(const Mamba3Call& call, const Mamba3Gradients& gradients, Index b, Index h, bool products) {
  const Index heads = call.heads();
  alignas(64) ChunkTape chunk;
  alignas(64) float leaving_transposed[kStateSize][kHeadDim] = {};
  std::fill_n(&chunk.leaving[0][0], kHeadDim * kStateSize, 0.0F);
  for (Index c = call.chunks() - 1; c >= 0; --c) {
    read_chunk(call, gradients, b, h, c, chunk);
    if (products) {
      fill_pairs(chunk);
    } else {
      fill_segment_gradient(chunk);
    }
    float records[kChunk];
    std::copy_n(&chunk.d_seg[0][0], kChunk * kChunk,
                gradients.d_seg + ((b * heads + h) * call.chunks() + c) * kChunk * kChunk);
    for (Index i = 0; i < chunk.real; ++i) {
      write_row(chunk, gradients, i, (b * call.tokens + chunk.first + i) * heads + h, leaving_transposed, products,
                records);
    }
    write_adt(call, gradients, b, h, chunk);

    float* entering = gradients.state_gradients + ((b * call.chunks() + c) * heads + h) * kHeadDim * kStateSize;
    entering_gradient(chunk, entering);
    std::copy_n(entering, kHeadDim * kStateSize, &chunk.leaving[0][0]);
    transpose_state(entering, leaving_transposed);
  }
}

}  // namespace

void Mamba3Reference::scan_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index h = 0; h < call.heads(); ++h) scan_head_backward(call, gradients, b, h, false);
  }
}

void Mamba3Reference::scan_backward_products(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  for (Index b = 0; b < call.batch; ++b) {
    for (Index h = 0; h < call.heads(); ++h) scan_head_backward(call, gradients, b, h, true);
  }
}

}  // namespace samba::reference
