// Mamba-2, the gradient of the chunked core (spec 32 sections 4.4 to 4.7): between the chunks, then inside each.
#include <memory>

#include "samba/backends/reference/clones.h"
#include "samba/backends/reference/mamba2.h"
#include "samba/backends/reference/mamba2_arithmetic.h"
#include "samba/numerics/fold.h"

namespace samba::reference {

namespace {

using namespace mamba2_arithmetic;

// The values of one chunk; rows at and after `real` are +0.0.
struct Chunk {
  Index b, c, h;
  Index real;
  float keys[kChunk][kStateSize];     // B
  float queries[kChunk][kStateSize];  // C
  // of the head
  float d_y[kChunk][kHeadDim];
  float x_d[kChunk][kHeadDim];
  float da[kChunk];
  float reach[kChunk];  // exp(dacs)
  float decay[kChunk];
  float segments[kChunk][kChunk];    // seg
  float d_products[kChunk][kChunk];  // dM
  float d_xd_state[kChunk][kHeadDim];
  // over the heads, in order
  float d_c_off[kChunk][kStateSize];
  float d_b_state[kChunk][kStateSize];
};

SAMBA_FMA_CLONES void read_head(const Mamba2Call& call, const Mamba2Gradients& g, Index h, Chunk& chunk) {
  chunk.h = h;
  const Index at = call.head_chunk(chunk.b, h, chunk.c) * kChunk;
  for (Index i = 0; i < kChunk; ++i) {
    const bool inside = i < chunk.real;
    const Index t = inside ? call.token(chunk.b, chunk.c, i) : 0;
    const float dt = inside ? call.dt[t * call.heads() + h] : 0.0F;
    const float* x = call.x_bc + t * call.channels() + h * kHeadDim;
    const float* d_y = g.d_skip + t * call.inner() + h * kHeadDim;
    for (Index p = 0; p < kHeadDim; ++p) {
      chunk.x_d[i][p] = inside ? mul(x[p], dt) : 0.0F;
      chunk.d_y[i][p] = inside ? d_y[p] : 0.0F;
    }
    chunk.da[i] = inside ? mul(dt, call.a[h]) : 0.0F;
    chunk.reach[i] = exp_flushed(call.dacs[at + i]);
    chunk.decay[i] = call.decay[at + i];
  }
}

const float* entering(const Mamba2Call& call, const Chunk& chunk) {
  return call.pass_states + call.chunk_head(chunk.b, chunk.c, chunk.h) * kCells;
}

// carry = e_last carry + direct, the gradient of the state entering the chunk; the closing add of section 4.4.
SAMBA_FMA_CLONES void carry_state(const Chunk& chunk, float* carry) {
  for (Index p = 0; p < kHeadDim; ++p) {
    float sums[2][kStateSize] = {};
    for (Index i = 0; i < chunk.real; ++i) {
      float* sum = sums[i < kChunk / 2 ? 0 : 1];
      const float d_y = flushed_mul(chunk.d_y[i][p], chunk.reach[i]);
      for (Index n = 0; n < kStateSize; ++n) sum[n] = flushed_mad(chunk.queries[i][n], d_y, sum[n]);
    }
    float* row = carry + p * kStateSize;
    for (Index n = 0; n < kStateSize; ++n) {
      row[n] = flushed_mad(chunk.reach[kChunk - 1], row[n], flush(sums[0][n] + sums[1][n]));
    }
  }
}

float scale_gradient(const float* d_state, const float* state) {
  return dot(
      kCells, [&](Index i) { return mul(d_state[i], state[i]); }, [](Index) { return 1.0F; });
}

// off and ddec of every row.
SAMBA_FMA_CLONES void decay_gradients(const Mamba2Call& call, const Mamba2Gradients& g, const Chunk& chunk,
                                      const float* d_state) {
  const Index at = call.head_chunk(chunk.b, chunk.h, chunk.c) * kChunk;
  std::fill_n(g.d_off + at, kChunk, 0.0F);
  std::fill_n(g.d_decay + at, kChunk, 0.0F);
  alignas(64) float state[kStateSize][kHeadDim];
  transpose_state(entering(call, chunk), state);
  for (Index i = 0; i < chunk.real; ++i) {
    float y[kHeadDim] = {};
    for (Index n = 0; n < kStateSize; ++n) {
      for (Index p = 0; p < kHeadDim; ++p) y[p] = flushed_mad(chunk.queries[i][n], state[n][p], y[p]);
    }
    float total = 0.0F;
    for (Index p = 0; p < kHeadDim; ++p) total = flushed_mad(chunk.d_y[i][p], y[p], total);
    g.d_off[at + i] = flushed_mul(total, chunk.reach[i]);
    float chain = 0.0F;
    for (Index p = 0; p < kHeadDim; ++p) {
      for (Index n = 0; n < kStateSize; ++n) {
        chain = flushed_mad(d_state[p * kStateSize + n], flushed_mul(chunk.x_d[i][p], chunk.keys[i][n]), chain);
      }
    }
    g.d_decay[at + i] = chain;
  }
}

// d_dacs and the suffix sums d_cum.
void cumulative_gradients(const Mamba2Call& call, const Mamba2Gradients& g, const Chunk& chunk) {
  const Index at = call.head_chunk(chunk.b, chunk.h, chunk.c) * kChunk;
  const float scale = g.d_scale[call.chunk_head(chunk.b, chunk.c, chunk.h)];
  float last = 0.0F;
  for (Index i = 0; i < kChunk; ++i) {
    float through_decay = last;
    float through_state = mul(scale, chunk.reach[kChunk - 1]);
    if (i + 1 < kChunk) {
      const float d = mul(g.d_decay[at + i], chunk.decay[i]);
      through_decay = -d;
      through_state = 0.0F;
      last = add(last, d);
    }
    g.d_dacs[at + i] = add(add(g.d_off[at + i], through_state), through_decay);
  }
  float carry = 0.0F;
  for (Index i = kChunk - 1; i >= 0; --i) {
    carry = add(carry, g.d_dacs[at + i]);
    if (i < chunk.real) g.d_cumsum[call.token(chunk.b, chunk.c, i) * call.heads() + chunk.h] = carry;
  }
}

// The head's terms of dC_off and dB_cs, and dxd_cs.
SAMBA_FMA_CLONES void state_gradients(const Mamba2Call& call, const float* d_state, Chunk& chunk) {
  const float* state = entering(call, chunk);
  alignas(64) float d_state_t[kStateSize][kHeadDim];
  transpose_state(d_state, d_state_t);
  for (Index i = 0; i < chunk.real; ++i) {
    for (Index p = 0; p < kHeadDim; ++p) {
      const float d_y = flushed_mul(chunk.d_y[i][p], chunk.reach[i]);
      const float x_d = flushed_mul(chunk.x_d[i][p], chunk.decay[i]);
      for (Index n = 0; n < kStateSize; ++n) {
        chunk.d_c_off[i][n] = flushed_mad(state[p * kStateSize + n], d_y, chunk.d_c_off[i][n]);
        chunk.d_b_state[i][n] = flushed_mad(d_state[p * kStateSize + n], x_d, chunk.d_b_state[i][n]);
      }
    }
    float sum[kHeadDim] = {};
    for (Index n = 0; n < kStateSize; ++n) {
      const float key = flushed_mul(chunk.keys[i][n], chunk.decay[i]);
      for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(d_state_t[n][p], key, sum[p]);
    }
    std::copy_n(sum, kHeadDim, chunk.d_xd_state[i]);
  }
}

// seg, dM, and the head's term of dG.
SAMBA_FMA_CLONES void pair_gradients(const Mamba2Call& call, const Mamba2Gradients& g, Chunk& chunk) {
  alignas(64) float x_d[kHeadDim][kChunk];
  for (Index j = 0; j < kChunk; ++j) {
    for (Index p = 0; p < kHeadDim; ++p) x_d[p][j] = chunk.x_d[j][p];
  }
  float sums[kChunk];
  for (Index i = 0; i < chunk.real; ++i) {
    segment_row(chunk.da, i, sums, chunk.segments[i]);
    float products[kChunk] = {};
    for (Index p = 0; p < kHeadDim; ++p) {
      for (Index j = 0; j < kChunk; ++j) products[j] = flushed_mad(chunk.d_y[i][p], x_d[p][j], products[j]);
    }
    std::copy_n(products, kChunk, chunk.d_products[i]);
    float* d_scores = g.d_scores + call.token(chunk.b, chunk.c, i) * kChunk;
    if (chunk.h == 0) std::fill_n(d_scores, i + 1, 0.0F);
    for (Index j = 0; j <= i; ++j) d_scores[j] = flushed_mad(products[j], chunk.segments[i][j], d_scores[j]);
  }
}

// da_seg: every k of j+1..i takes the same pair (dseg[i][j], seg[i][j]); j outer, i inner.
SAMBA_FMA_CLONES void segment_gradients(const Mamba2Call& call, const Mamba2Gradients& g, const Chunk& chunk) {
  float sums[kChunk] = {};
  for (Index j = 0; j < chunk.real; ++j) {
    for (Index i = j + 1; i < chunk.real; ++i) {
      const float score = call.scores[call.token(chunk.b, chunk.c, i) * kChunk + j];
      const float d_segment = flushed_mul(chunk.d_products[i][j], score);
      for (Index k = j + 1; k <= i; ++k) sums[k] = flushed_mad(d_segment, chunk.segments[i][j], sums[k]);
    }
  }
  for (Index i = 0; i < chunk.real; ++i) {
    const Index at = call.token(chunk.b, chunk.c, i) * call.heads() + chunk.h;
    g.d_da_seg[at] = sums[i];
    g.d_da[at] = add(g.d_cumsum[at], sums[i]);
  }
}

// dxd, dx and d_dt.
SAMBA_FMA_CLONES void input_gradients(const Mamba2Call& call, const Mamba2Gradients& g, const Chunk& chunk) {
  for (Index j = 0; j < chunk.real; ++j) {
    float sum[kHeadDim] = {};
    for (Index i = j; i < chunk.real; ++i) {
      const float score = call.scores[call.token(chunk.b, chunk.c, i) * kChunk + j];
      const float weight = flushed_mul(score, chunk.segments[i][j]);
      for (Index p = 0; p < kHeadDim; ++p) sum[p] = flushed_mad(weight, chunk.d_y[i][p], sum[p]);
    }
    const Index t = call.token(chunk.b, chunk.c, j);
    const Index at = t * call.heads() + chunk.h;
    const float* x = call.x_bc + t * call.channels() + chunk.h * kHeadDim;
    float* d_x = g.d_xbc + t * call.channels() + chunk.h * kHeadDim;
    float chain = 0.0F;
    for (Index p = 0; p < kHeadDim; ++p) {
      const float d_xd = add(sum[p], chunk.d_xd_state[j][p]);
      g.d_xd[at * kHeadDim + p] = d_xd;
      d_x[p] = add(mul(chunk.d_y[j][p], call.d[chunk.h]), mul(d_xd, call.dt[at]));
      chain = mad(x[p], d_xd, chain);
    }
    g.d_dt[at] = add(mul(g.d_da[at], call.a[chunk.h]), chain);
  }
}

// dB and dC of the chunk, once all heads have added to dG.
SAMBA_FMA_CLONES void key_gradients(const Mamba2Call& call, const Mamba2Gradients& g, const Chunk& chunk) {
  const float* d_scores = g.d_scores + call.token(chunk.b, chunk.c, 0) * kChunk;
  for (Index r = 0; r < chunk.real; ++r) {
    float d_key[kStateSize] = {};
    float d_query[kStateSize] = {};
    for (Index i = r; i < chunk.real; ++i) {
      for (Index n = 0; n < kStateSize; ++n) {
        d_key[n] = flushed_mad(d_scores[i * kChunk + r], chunk.queries[i][n], d_key[n]);
      }
    }
    for (Index j = 0; j <= r; ++j) {
      for (Index n = 0; n < kStateSize; ++n) {
        d_query[n] = flushed_mad(d_scores[r * kChunk + j], chunk.keys[j][n], d_query[n]);
      }
    }
    float* out = g.d_xbc + call.token(chunk.b, chunk.c, r) * call.channels() + call.inner();
    for (Index n = 0; n < kStateSize; ++n) {
      out[n] = add(chunk.d_b_state[r][n], d_key[n]);
      out[kStateSize + n] = add(chunk.d_c_off[r][n], d_query[n]);
    }
  }
}

void chunk_backward(const Mamba2Call& call, const Mamba2Gradients& g, Index b, Index c, float* carries, Chunk& chunk) {
  chunk.b = b;
  chunk.c = c;
  chunk.real = call.real_rows(c);
  read_rows(call, Part::b, b, c, chunk.keys);
  read_rows(call, Part::c, b, c, chunk.queries);
  std::fill_n(&chunk.d_c_off[0][0], kChunk * kStateSize, 0.0F);
  std::fill_n(&chunk.d_b_state[0][0], kChunk * kStateSize, 0.0F);
  for (Index h = 0; h < call.heads(); ++h) {
    read_head(call, g, h, chunk);
    float* d_state = g.d_states + call.chunk_head(b, c, h) * kCells;
    std::copy_n(carries + h * kCells, kCells, d_state);
    g.d_scale[call.chunk_head(b, c, h)] = scale_gradient(d_state, entering(call, chunk));
    if (c > 0) carry_state(chunk, carries + h * kCells);
    decay_gradients(call, g, chunk, d_state);
    cumulative_gradients(call, g, chunk);
    state_gradients(call, d_state, chunk);
    pair_gradients(call, g, chunk);
    segment_gradients(call, g, chunk);
    input_gradients(call, g, chunk);
  }
  key_gradients(call, g, chunk);
}

// Sections 4.6 and 4.7 of one head.
SAMBA_FMA_CLONES void step_size_gradients(const Mamba2Call& call, const Mamba2Gradients& g, Index h) {
  const Index heads = call.heads();
  const Index column = mamba2::dt_column(call.d_model) + h;
  for (Index t = 0; t < call.rows(); ++t) {
    const float biased = add(call.in_proj[t * call.width() + column], call.dt_bias[h]);
    const float s = flush(elementary::softplus(biased));
    const bool passes = call.dt_low <= s && s <= call.dt_high;
    g.d_in_proj[t * call.width() + column] = passes ? mul(g.d_dt[t * heads + h], sigmoid_flushed(biased)) : 0.0F;
  }
  const float rate = block_sum(
      call.rows(), [&](float sum, Index t) { return mad(call.dt[t * heads + h], g.d_da[t * heads + h], sum); });
  g.d_a_log[h] = mul(rate, call.a[h]);
  g.d_dt_bias[h] =
      block_sum(call.rows(), [&](float sum, Index t) { return add(sum, g.d_in_proj[t * call.width() + column]); });
}

}  // namespace

void Mamba2Reference::scan_backward(const Mamba2Call& call, const Mamba2Gradients& g) {
  const auto chunk = std::make_unique<Chunk>();
  const Index row_cells = call.heads() * kCells;
  const auto carries = std::make_unique<float[]>(static_cast<std::size_t>(row_cells));
  for (Index b = 0; b < call.batch; ++b) {
    std::fill_n(carries.get(), row_cells, 0.0F);
    for (Index c = call.chunks() - 1; c >= 0; --c) chunk_backward(call, g, b, c, carries.get(), *chunk);
  }
  for (Index h = 0; h < call.heads(); ++h) step_size_gradients(call, g, h);
}

}  // namespace samba::reference
