// Mamba-3, backward of the chunked scan (spec 41 sections 3.4 to 3.8 and the sums to adt of 3.11), but for the long
// chains of version 1 (mamba3_pair_chains.gpu.h). For samba.fp32.v2: docs/spec-extensions.md section 2.
//
//   state gradients   products of all chunks side by side, then one thread a cell of the state, over the chunks
//   pairs             a block a chunk: d_seg; version 2: dq16 and dk16 as products of what it leaves in scratch
//   decay sums        a block a chunk, one thread a position
//   state operands    products a chunk, each row's sums by one thread of a block of rows
//   finish            one thread a chunk: d_dacs and its suffix sums
#pragma once

#include "samba/backends/gpu/mamba3_pair_chains.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

// direct[p, n] = chain over the rows i of mad(dY_i[p], q_i[n] exp(da_i), .)       section 3.6
SAMBA_KERNEL(kTileThreads) direct_gradients(ScanBackward s) {
  SAMBA_SHARED(float, read, kQ);
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int half = static_cast<int>(block_y()) * kTile, thread = static_cast<int>(thread_index());
  if (thread < kQ) read[thread] = exp_flushed(s.call.dacs[chunk_index(s.call, at) * kQ + thread]);
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::all, Along::cells, Along::cells>(
      at.real, [&](int i, int p) { return dy_row(s, at, i)[p]; },
      [&](int i, int n) { return mul(query_row(s, at, i)[half + n], read[i]); });
  float* state = s.g.state_gradients + state_index(s.call, at) + half;
  product.for_cells([&](int q, int p, int n) { state[p * kN + n] = product.acc[q]; });
}

// G = direct + carry exp(da_63), two roundings; chunks descending, in place.
struct PassGradients {
  ScanBackward s;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = s.call.heads(), chunks = s.call.chunks();
    const Index h = i / kStateCells % heads, b = i / kStateCells / heads;
    float carry = 0.0F;
    for (Index c = chunks - 1; c >= 0; --c) {
      float& slot = s.g.state_gradients[((b * chunks + c) * heads + h) * kStateCells + i % kStateCells];
      const float decay = exp_flushed(s.call.dacs[((b * heads + h) * chunks + c + 1) * kQ - 1]);
      carry = add(slot, mul(carry, decay));
      slot = carry;
    }
  }
};

// d_seg[i, j] = chain over p of mad(dY_i[p], s_ij v_j[p], .) for j < i, elsewhere +0.0     section 3.4
SAMBA_KERNEL(kTileThreads) segment_gradients(ScanBackward s) {
  constexpr int kPitch = kP + 1;
  SAMBA_SHARED(float, dy, kQ* kPitch);
  SAMBA_SHARED(float, v, kQ* kPitch);
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int thread = static_cast<int>(thread_index());
  for (int e = thread; e < at.real * kP; e += kTileThreads) {
    dy[e / kP * kPitch + e % kP] = flush(dy_row(s, at, e / kP)[e % kP]);
    v[e / kP * kPitch + e % kP] = flush(value_row(s, at, e / kP)[e % kP]);
  }
  barrier();
  const Index pairs = chunk_index(s.call, at) * kQ * kQ;
  for (int e = thread; e < kQ * kQ; e += kTileThreads) {
    const int i = e / kQ, j = e % kQ;
    float sum = 0.0F;
    if (j < i && i < at.real) {
      const float score = s.call.scores[pairs + e];
      for (int p = 0; p < kP; ++p) sum = flush(fma(dy[i * kPitch + p], flush(score * v[j * kPitch + p]), sum));
    }
    s.g.d_seg[pairs + e] = sum;
  }
}

// Version 2: w[i, j] = chain over p of mad(dY_i[p], v_j[p], .); weights = w L, d_seg = s w.
SAMBA_KERNEL(kTileThreads) pair_weights(ScanBackward s, float* weights) {
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::all, Along::terms, Along::terms>(
      kP, [&](int p, int i) { return i < at.real ? dy_row(s, at, i)[p] : 0.0F; },
      [&](int p, int j) { return j < at.real ? value_row(s, at, j)[p] : 0.0F; });
  const Index pairs = chunk_index(s.call, at) * kQ * kQ;
  product.for_cells([&](int q, int i, int j) {
    const float w = product.acc[q];
    const Index cell = pairs + i * kQ + j;
    const bool pair = j < i && i < at.real;
    weights[cell] = pair ? flush(w * s.call.decay[cell]) : 0.0F;
    s.g.d_seg[cell] = pair ? mul(s.call.scores[cell], w) : 0.0F;
  });
}

// Version 2: dq16_i = chain over j < i of weights[i, j] ks_j (y = 0, 1), dk16_j = chain over i > j of weights[i, j] q_i
// (y = 2, 3).
SAMBA_KERNEL(kTileThreads) pair_products(ScanBackward s, const float* weights) {
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int half = static_cast<int>(block_y() % 2) * kTile;
  const float* pairs = weights + chunk_index(s.call, at) * kQ * kQ;
  SAMBA_TILE_PRODUCT(product);
  float* out = s.g.d_q16;
  if (block_y() < 2) {
    product.run<Terms::before_row, Along::terms, Along::cells>(
        at.real, [&](int j, int i) { return pairs[i * kQ + j]; },
        [&](int j, int n) { return key_row(s, at, j)[half + n]; });
  } else {
    out = s.g.d_k16;
    product.run<Terms::behind_row, Along::cells, Along::cells>(
        at.real, [&](int i, int j) { return pairs[i * kQ + j]; },
        [&](int i, int n) { return query_row(s, at, i)[half + n]; });
  }
  product.for_cells([&](int q, int i, int n) {
    const float value = product.acc[q];
    if (i < at.real) out[new_row(s.call, at, i) * kN + half + n] = value;
  });
}

// dv16_j[p] = chain over i > j of mad(dY_i[p], s_ij L_ij, .)                      section 3.4
SAMBA_KERNEL(kTileThreads) value_gradients(ScanBackward s) {
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const Index pairs = chunk_index(s.call, at) * kQ * kQ;
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::behind_row, Along::cells, Along::cells>(
      at.real,
      [&](int i, int j) {
        const Index cell = pairs + i * kQ + j;
        return j < i ? mul(s.call.scores[cell], s.call.decay[cell]) : 0.0F;
      },
      [&](int i, int p) { return dy_row(s, at, i)[p]; });
  product.for_cells([&](int q, int j, int p) {
    const float value = product.acc[q];
    if (j < at.real) s.g.d_v16[new_row(s.call, at, j) * kP + p] = value;
  });
}

// d_adt_seg: version 1 one chain over i >= pos, j < pos of mad(d_seg, L, .) (section 3.5); version 2 the row sums over
// j < pos first, then their sum over i >= pos. One thread a position; of version 2's first part one a row.
SAMBA_KERNEL(kQ) segment_sums(ScanBackward s, bool products) {
  SAMBA_SHARED(float, rows, kQ* kPairPitch);
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int pos = static_cast<int>(thread_index());
  const float* d_seg = s.g.d_seg + chunk_index(s.call, at) * kQ * kQ;
  const float* decay = s.call.decay + chunk_index(s.call, at) * kQ * kQ;
  float sum = 0.0F;
  if (!products) {
    // All threads walk the pairs together, so that they read the same cells.
    for (int i = 0; i < at.real; ++i) {
      for (int j = 0; j < i; ++j) {
        if (pos <= i && j < pos) sum = mad(d_seg[i * kQ + j], decay[i * kQ + j], sum);
      }
    }
  } else {
    for (int i = 0; i < at.real; ++i) rows[i * kPairPitch + pos] = mul(d_seg[i * kQ + pos], decay[i * kQ + pos]);
    barrier();
    if (pos < at.real) {
      float run = 0.0F;
      for (int j = 0; j <= pos; ++j) {
        float& cell = rows[pos * kPairPitch + j];
        const float term = cell;
        cell = run;
        run = flush(run + term);
      }
    }
    barrier();
    for (int i = pos; i < at.real; ++i) sum = flush(sum + rows[i * kPairPitch + pos]);
  }
  if (pos < at.real) s.g.d_adt_seg[new_row(s.call, at, pos)] = sum;
}

// u_i[n] = chain over p of mad(dY_i[p], S[p, n], .), S the state entering; into d_q for join_rows     section 3.7 (1)
SAMBA_KERNEL(kTileThreads) read_products(ScanBackward s) {
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int half = static_cast<int>(block_y()) * kTile;
  const float* state = s.call.pass_states + state_index(s.call, at) + half;
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::all, Along::terms, Along::cells>(
      kP, [&](int p, int i) { return i < at.real ? dy_row(s, at, i)[p] : 0.0F; },
      [&](int p, int n) { return state[p * kN + n]; });
  product.for_cells([&](int q, int i, int n) {
    const float value = product.acc[q];
    if (i < at.real) s.g.d_q[new_row(s.call, at, i) * kN + half + n] = value;
  });
}

// d_k = dk16 + dk17, dk17_i[n] = exp(da_63 - da_i) chain over p of mad(E[p, n], v_i[p], .)            section 3.7 (2)
SAMBA_KERNEL(kTileThreads) key_products(ScanBackward s) {
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int half = static_cast<int>(block_y()) * kTile;
  const float* leaving = leaving_gradient(s, at);
  const float* da = s.call.dacs + chunk_index(s.call, at) * kQ;
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::all, Along::terms, Along::cells>(
      kP, [&](int p, int i) { return i < at.real ? value_row(s, at, i)[p] : 0.0F; },
      [&](int p, int n) { return leaving == nullptr ? 0.0F : leaving[p * kN + half + n]; });
  product.for_cells([&](int q, int i, int n) {
    const float value = product.acc[q];
    if (i >= at.real) return;
    const Index cell = new_row(s.call, at, i) * kN + half + n;
    s.g.d_k[cell] = add(s.g.d_k16[cell], mul(value, exp_flushed(sub(da[kQ - 1], da[i]))));
  });
}

// dv17_i[p] = exp(da_63 - da_i) chain over n of mad(E[p, n], ks_i[n], .), and d_v                    section 3.7 (3)
SAMBA_KERNEL(kTileThreads) record_products(ScanBackward s) {
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const float* leaving = leaving_gradient(s, at);
  const float* da = s.call.dacs + chunk_index(s.call, at) * kQ;
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::all, Along::terms, Along::terms>(
      kN, [&](int n, int i) { return i < at.real ? key_row(s, at, i)[n] : 0.0F; },
      [&](int n, int p) { return leaving == nullptr ? 0.0F : leaving[p * kN + n]; });
  product.for_cells([&](int q, int i, int p) {
    const float value = product.acc[q];
    if (i >= at.real) return;
    const Index cell = new_row(s.call, at, i) * kP + p;
    const float d_v17 = mul(value, exp_flushed(sub(da[kQ - 1], da[i])));
    s.g.d_v17[cell] = d_v17;
    s.g.d_v[cell] = add(add(s.g.d_v_skip[cell], s.g.d_v16[cell]), d_v17);
  });
}

// The rows' sums: d_dacs_read, d_dacs_rec without its tail; d_q                   sections 3.7 (1), (3), (4) and 3.8
SAMBA_KERNEL(kRowThreads) join_rows(ScanBackward s) {
  SAMBA_SHARED(float, u, kRowBlock* kRowPitch);
  SAMBA_SHARED(float, q, kRowBlock* kRowPitch);
  SAMBA_SHARED(float, d_v17, kRowBlock* kPairPitch);
  SAMBA_SHARED(float, v, kRowBlock* kPairPitch);
  SAMBA_SHARED(float, read, kRowBlock);
  const Index heads = s.call.heads();
  const RowBlock block = row_block(s.call.new_rows() * heads);
  const int thread = static_cast<int>(thread_index());
  for_row_elements(block, kN, [&](int r, int n) {
    u[r * kRowPitch + n] = s.g.d_q[(block.first + r) * kN + n];
    q[r * kRowPitch + n] = flush(s.call.current.q[(block.first + r) * kN + n]);
  });
  for_row_elements(block, kP, [&](int r, int p) {
    const Index at = block.first + r;
    d_v17[r * kPairPitch + p] = s.g.d_v17[at * kP + p];
    v[r * kPairPitch + p] = flush(s.call.current.v[at / heads * s.call.current.v_stride + at % heads * kP + p]);
  });
  if (thread < block.rows) {
    const Index at = block.first + thread, m = at / heads, t = m % s.call.tokens;
    const ChunkPlace place = {m / s.call.tokens, at % heads, t / kQ, t / kQ * kQ, 0};
    read[thread] = exp_flushed(s.call.dacs[chunk_index(s.call, place) * kQ + t % kQ]);
  }
  barrier();
  if (thread < block.rows) {
    float sum = 0.0F;
    for (int n = 0; n < kN; ++n) sum = flush(fma(q[thread * kRowPitch + n], u[thread * kRowPitch + n], sum));
    s.g.d_dacs_read[block.first + thread] = flush(sum * read[thread]);
  } else if (thread >= kRowThreads / 2 && thread < kRowThreads / 2 + block.rows) {
    const int r = thread - kRowThreads / 2;
    float sum = 0.0F;
    for (int p = 0; p < kP; ++p) sum = flush(fma(d_v17[r * kPairPitch + p], v[r * kPairPitch + p], sum));
    s.g.d_dacs_rec[block.first + r] = -sum;
  }
  for_row_elements(block, kN, [&](int r, int n) {
    const Index cell = (block.first + r) * kN + n;
    s.g.d_q[cell] = add(s.g.d_q16[cell], flush(u[r * kRowPitch + n] * read[r]));
  });
}

// Version 2, the tail of the last real row: the rows' own parts, and what the state carries over.
SAMBA_KERNEL(kP) tails_of_rows(ScanBackward s) {
  constexpr int kSlice = 32, kPitch = kSlice + 1;
  SAMBA_SHARED(float, e, kP* kPitch);
  SAMBA_SHARED(float, state, kP* kPitch);
  SAMBA_SHARED(float, carried, kP);
  const ChunkPlace at = chunk_place(s.call, block_x(), 0, s.call.chunks());
  const int p = static_cast<int>(thread_index());
  const float* leaving = leaving_gradient(s, at);
  const float* entering = s.call.pass_states + state_index(s.call, at);
  float sum = 0.0F;
  for (int first = 0; first < kN; first += kSlice) {
    for (int cell = p; cell < kP * kSlice; cell += kP) {
      const int line = cell / kSlice, n = cell % kSlice;
      e[line * kPitch + n] = leaving == nullptr ? 0.0F : leaving[line * kN + first + n];
      state[line * kPitch + n] = entering[line * kN + first + n];
    }
    barrier();
    for (int n = 0; n < kSlice; ++n) sum = flush(fma(e[p * kPitch + n], state[p * kPitch + n], sum));
    barrier();
  }
  carried[p] = sum;
  barrier();
  if (p > 0) return;
  float records = 0.0F, total = 0.0F;
  for (int j = 0; j < at.real; ++j) records = add(records, -s.g.d_dacs_rec[new_row(s.call, at, j)]);
  for (int line = 0; line < kP; ++line) total = flush(total + carried[line]);
  const float decay = exp_flushed(s.call.dacs[chunk_index(s.call, at) * kQ + kQ - 1]);
  float& end = s.g.d_dacs_rec[new_row(s.call, at, at.real - 1)];
  end = add(end, add(records, mul(total, decay)));
}

// d_dacs and, the chunk's rows descending, the gradient of a cumulative sum       sections 3.8, 3.11
struct FinishChunk {
  ScanBackward s;
  SAMBA_DEVICE void operator()(Index unit) const {
    const ChunkPlace at = chunk_place(s.call, unit, 0, s.call.chunks());
    float run = 0.0F;
    for (int i = at.real - 1; i >= 0; --i) {
      const Index row = new_row(s.call, at, i);
      const float d_dacs = add(s.g.d_dacs_read[row], s.g.d_dacs_rec[row]);
      run = add(run, d_dacs);
      s.g.d_dacs[row] = d_dacs;
      s.g.d_adt_dacs[row] = run;
      s.g.d_adt[row] = add(s.g.d_adt_seg[row], run);
    }
  }
};

// `products`: samba.fp32.v2.
void launch_scan_backward(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients, bool products) {
  const Index heads = call.batch * call.heads(), units = heads * call.chunks();
  const ScanBackward s{call, gradients};
  const Grid chunks{blocks_of(units)}, halves{blocks_of(units), 2};
  launch(context, halves, kTileThreads, direct_gradients, s);
  for_each(context, heads * kStateCells, PassGradients{s});
  if (products) {
    const Workspace::Scope scope(context.workspace());
    float* weights = context.workspace().floats(units * kQ * kQ);
    launch(context, chunks, kTileThreads, pair_weights, s, weights);
    launch(context, Grid{blocks_of(units), 4}, kTileThreads, pair_products, s, weights);
  } else {
    launch(context, chunks, kTileThreads, segment_gradients, s);
    launch_pair_chains(context, call, gradients);
  }
  launch(context, chunks, kTileThreads, value_gradients, s);
  launch(context, chunks, kQ, segment_sums, s, products);
  launch(context, halves, kTileThreads, read_products, s);
  launch(context, halves, kTileThreads, key_products, s);
  launch(context, chunks, kTileThreads, record_products, s);
  launch(context, row_grid(call.new_rows() * call.heads()), kRowThreads, join_rows, s);
  if (products) {
    launch(context, chunks, kP, tails_of_rows, s);
  } else {
    launch_tail_chains(context, call, gradients);
  }
  for_each(context, units, FinishChunk{s});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
