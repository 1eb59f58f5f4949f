// Mamba-3, the chunked scan (spec 40 sections 3.9 to 3.12).
//
//   decay sums     one thread a chunk: the cumulative sums of adt
//   input states   one thread a cell of the state
//   increments     a block a chunk and half of its state: what the chunk adds to the state; all chunks side by side
//   pass           one thread a cell of the state, over the chunks: an increment becomes the state entering the chunk
//   outputs        a block a chunk: scores, decay, the two outputs, skip and gate; few new rows: a block a row
#pragma once

#include "samba/backends/gpu/mamba3_product.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

struct DecaySums {
  Mamba3Call call;
  float* dacs;
  SAMBA_DEVICE void operator()(Index unit) const {
    const ChunkPlace at = chunk_place(call, unit, 0, call.chunks());
    float sum = adt_of(call, at.b, at.h, at.first);
    for (int i = 0; i < kQ; ++i) {
      if (i > 0 && i < at.real) sum = add(sum, adt_of(call, at.b, at.h, at.first + i));
      dacs[unit * kQ + i] = sum;
    }
  }
};

// h += (v_in k_in^T) dt_0 (1 - sigma_0)                                           section 3.10
struct InputStates {
  Mamba3Call call;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index row = i / kStateCells, h = row % call.heads(), b = row / call.heads();
    const float c = mul(dt_of(call, b, h, 0), sub(1.0F, sigma_of(call, b, h, 0)));
    const float v = call.pending_v[row * kP + i / kN % kP], k = call.pending_k[row * kN + i % kN];
    call.h[i] = add(call.h[i], mul(mul(v, k), c));
  }
};

// inc[p, n] = chain over the rows i of mad(v_i[p] exp(da_63 - da_i), ks_i[n], .)  section 3.11
SAMBA_KERNEL(kTileThreads) state_increments(Mamba3Call call, Index count, const float* dacs, float* states) {
  SAMBA_SHARED(float, left, kQ);
  const ChunkPlace at = chunk_place(call, block_x(), 0, count);
  const int half = static_cast<int>(block_y()) * kTile;
  const int thread = static_cast<int>(thread_index());
  const float* da = dacs + chunk_index(call, at) * kQ;
  if (thread < kQ) left[thread] = exp_flushed(sub(da[kQ - 1], da[thread]));
  SAMBA_TILE_PRODUCT(product);
  product.run<Terms::all, Along::cells, Along::cells>(
      kQ, [&](int i, int p) { return i < at.real ? mul(v_row(call, at.b, at.h, at.first + i)[p], left[i]) : 0.0F; },
      [&](int i, int n) { return i < at.real ? scaled_key(call, at.b, at.h, at.first + i, half + n) : 0.0F; });
  float* state = states + state_index(call, at) + half;
  product.for_cells([&](int q, int p, int n) { state[p * kN + n] = product.acc[q]; });
}

// S = exp(da_63) S + inc, fused; `states` holds the increments and gets the states entering the chunks.
struct PassStates {
  Mamba3Call call;
  const float* dacs;
  float* states;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = call.heads(), chunks = call.chunks();
    const Index h = i / kStateCells % heads, b = i / kStateCells / heads;
    float state = call.h == nullptr ? 0.0F : flush(call.h[i]);
    for (Index c = 0; c < chunks; ++c) {
      const bool last = c + 1 == chunks, advance = !last || call.h_last != nullptr;
      float& slot = states[((b * chunks + c) * heads + h) * kStateCells + i % kStateCells];
      const float increment = advance ? slot : 0.0F;
      slot = state;
      if (last && c > 0 && call.h != nullptr) call.h[i] = state;
      if (advance) state = mad(exp_flushed(dacs[((b * heads + h) * chunks + c + 1) * kQ - 1]), state, increment);
    }
    if (call.h_last != nullptr) call.h_last[i] = state;
  }
};

// What a new row's outputs need beside the two sums of a cell.
struct OutputRow {
  Index m, at;  // the new token, and with its head
  float qkdot, weight;
};
SAMBA_DEVICE OutputRow output_row(const Mamba3Call& call, Index b, Index h, Index t) {
  const Index heads = call.heads();
  const Index m = b * call.tokens + t - call.buffered, at = m * heads + h;
  const float qkdot = mul(call.qk_chain[at], call.gamma[(b * call.working_rows() + t) * heads + h]);
  return {m, at, qkdot, add(call.d[h], qkdot)};
}

// skip and gate of one cell, and the stages that are wanted                       section 3.12
SAMBA_DEVICE void write_output(const Mamba3Call& call, const OutputRow& row, Index h, int p, float v, float y_intra,
                               float y_state) {
  const Index cell = row.at * kP + p;
  const float y = add(add(y_state, y_intra), mul(row.weight, v));
  const float z = projected_row(call, row.m)[mamba3::columns(call.d_model).z + h * kP + p];
  call.skip[cell] = y;
  call.gate[cell] = mul(y, silu_flushed(z));
  if (call.y_intra != nullptr) call.y_intra[cell] = y_intra;
  if (call.y_state != nullptr) call.y_state[cell] = y_state;
  if (call.qkdot != nullptr && p == 0) call.qkdot[row.at] = row.qkdot;
}

// Chunks first_chunk .. first_chunk + count - 1 of every batch row and head.
SAMBA_KERNEL(kTileThreads)
chunk_outputs(Mamba3Call call, Index first_chunk, Index count, const float* dacs, const float* states) {
  SAMBA_SHARED(float, adt, kQ);
  SAMBA_SHARED(float, weights, kQ* kPairPitch);  // sums of adt, then M = s L
  const ChunkPlace at = chunk_place(call, block_x(), first_chunk, count);
  const int thread = static_cast<int>(thread_index());
  if (thread < kQ) adt[thread] = thread < at.real ? adt_of(call, at.b, at.h, at.first + thread) : 0.0F;
  SAMBA_TILE_PRODUCT(product);

  // A column of the decay matrix is a chain of its own; behind the real rows its last sum is repeated.
  if (thread < kQ) {
    float sum = 0.0F;
    for (int i = thread + 1; i < kQ; ++i) {
      if (i < at.real) sum = flush(sum + adt[i]);
      weights[i * kPairPitch + thread] = sum;
    }
  }
  const auto query = [&](int n, int i) { return i < at.real ? q_row(call, at.b, at.h, at.first + i)[n] : 0.0F; };
  product.run<Terms::all, Along::terms, Along::terms>(
      kN, query, [&](int n, int j) { return j < at.real ? scaled_key(call, at.b, at.h, at.first + j, n) : 0.0F; });
  const Index pairs = chunk_index(call, at) * kQ * kQ;
  product.for_cells([&](int q, int i, int j) {
    const float score = product.acc[q];
    float& weight = weights[i * kPairPitch + j];
    const float decay = j < i ? exp_flushed(weight) : 0.0F;
    weight = j < i ? flush(score * decay) : 0.0F;
    if (call.decay == nullptr) return;
    call.decay[pairs + i * kQ + j] = decay;
    if (i < at.real) call.scores[pairs + i * kQ + j] = score;
  });
  barrier();

  float y_intra[kThreadCells];
  product.run<Terms::all, Along::terms, Along::cells>(
      kQ, [&](int j, int i) { return weights[i * kPairPitch + j]; },
      [&](int j, int p) { return j < at.real ? v_row(call, at.b, at.h, at.first + j)[p] : 0.0F; });
  SAMBA_UNROLL
  for (int q = 0; q < kThreadCells; ++q) y_intra[q] = product.acc[q];
  const float* state = states + state_index(call, at);
  product.run<Terms::all, Along::terms, Along::terms>(kN, query, [&](int n, int p) { return state[p * kN + n]; });

  const float* da = dacs + chunk_index(call, at) * kQ;
  SAMBA_UNROLL
  for (int r = 0; r < kCellRows; ++r) {
    const int i = product.row + r;
    const Index t = at.first + i;
    if (i >= at.real || t < call.buffered) continue;
    const OutputRow row = output_row(call, at.b, at.h, t);
    const float decay = exp_flushed(da[i]);
    const float* v = v_row(call, at.b, at.h, t);
    SAMBA_UNROLL
    for (int c = 0; c < kCellRows; ++c) {
      const int p = product.column + c;
      write_output(call, row, at.h, p, v[p], y_intra[r * kCellRows + c], mul(product.acc[r * kCellRows + c], decay));
    }
  }
}

inline constexpr int kStepThreads = kQ + kP;  // one a column j of the scores, then one a cell p of the outputs
inline constexpr int kStepSlice = 32;
inline constexpr int kStepPitch = kStepSlice + 1;
inline constexpr Index kMostStepRows = 8;

// One new row (token and head) a block.
SAMBA_KERNEL(kStepThreads) row_outputs(Mamba3Call call, const float* dacs, const float* states) {
  SAMBA_SHARED(float, query, kN);
  SAMBA_SHARED(float, adt, kQ);
  SAMBA_SHARED(float, tile, kStepThreads* kStepPitch);  // rows 0..63: scaled keys; rows 64..127: the state
  SAMBA_SHARED(float, weights, kQ);
  const Index heads = call.heads();
  const Index h = static_cast<Index>(block_x()) % heads, m = static_cast<Index>(block_x()) / heads;
  const Index b = m / call.tokens, t = call.buffered + m % call.tokens;
  const ChunkPlace at = chunk_place(call, (b * heads + h) * call.chunks() + t / kQ, 0, call.chunks());
  const int thread = static_cast<int>(thread_index());
  const int row = static_cast<int>(t - at.first);
  const bool is_cell = thread >= kQ;
  const float* state = states + state_index(call, at);
  query[thread] = flush(q_row(call, b, h, t)[thread]);
  if (thread <= row) adt[thread] = adt_of(call, b, h, at.first + thread);

  // Threads of columns: the score of their key; threads of cells: the state's part of the output.
  float sum = 0.0F;
  for (int first = 0; first < kN; first += kStepSlice) {
    for (int e = thread; e < kStepThreads * kStepSlice; e += kStepThreads) {
      const int line = e / kStepSlice, n = first + e % kStepSlice;
      float value = 0.0F;
      if (line >= kQ) {
        value = flush(state[(line - kQ) * kN + n]);
      } else if (line < row) {
        value = scaled_key(call, b, h, at.first + line, n);
      }
      tile[line * kStepPitch + e % kStepSlice] = value;
    }
    barrier();
    for (int d = 0; d < kStepSlice; ++d) sum = flush(fma(query[first + d], tile[thread * kStepPitch + d], sum));
    barrier();
  }
  if (!is_cell) {
    float decay = 0.0F;
    for (int i = thread + 1; i <= row; ++i) decay = flush(decay + adt[i]);
    weights[thread] = thread < row ? mul(sum, exp_flushed(decay)) : 0.0F;
  }
  barrier();
  if (!is_cell) return;
  const int p = thread - kQ;
  float y_intra = 0.0F;
  for (int j = 0; j < kQ; ++j) {
    const float v = j < at.real ? v_row(call, b, h, at.first + j)[p] : 0.0F;
    y_intra = mad(weights[j], v, y_intra);
  }
  const float y_state = mul(sum, exp_flushed(dacs[chunk_index(call, at) * kQ + row]));
  write_output(call, output_row(call, b, h, t), h, p, v_row(call, b, h, t)[p], y_intra, y_state);
}

// The states that enter the chunks, in `scratch` or where they are kept.
const float* launch_states(Context& context, const Mamba3Call& call, const float* dacs, float* scratch) {
  const Index heads = call.batch * call.heads();
  if (call.pending_k != nullptr) for_each(context, heads * kStateCells, InputStates{call});
  if (scratch == nullptr) return call.h;
  const Index advanced = call.h_last != nullptr ? call.chunks() : call.chunks() - 1;
  if (advanced > 0) {
    launch(context, Grid{blocks_of(heads * advanced), 2}, kTileThreads, state_increments, call, advanced, dacs,
           scratch);
  }
  for_each(context, heads * kStateCells, PassStates{call, dacs, scratch});
  return scratch;
}

void launch_scan(Context& context, const Mamba3Call& call) {
  const Index heads = call.batch * call.heads(), chunks = call.chunks();
  const Workspace::Scope scope(context.workspace());
  float* dacs = call.dacs != nullptr ? call.dacs : context.workspace().floats(heads * chunks * kQ);
  for_each(context, heads * chunks, DecaySums{call, dacs});
  // A call inside the first chunk reads the state where it lies.
  float* scratch = call.pass_states;
  if (scratch == nullptr && (chunks > 1 || call.h == nullptr || call.h_last != nullptr)) {
    scratch = context.workspace().floats(heads * chunks * kStateCells);
  }
  const float* states = launch_states(context, call, dacs, scratch);
  if (call.decay == nullptr && call.tokens <= kMostStepRows) {
    return launch(context, Grid{blocks_of(call.new_rows() * call.heads())}, kStepThreads, row_outputs, call, dacs,
                  states);
  }
  const Index first = call.decay == nullptr ? call.buffered / kQ : 0;
  launch(context, Grid{blocks_of(heads * (chunks - first))}, kTileThreads, chunk_outputs, call, first, chunks - first,
         dacs, states);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
