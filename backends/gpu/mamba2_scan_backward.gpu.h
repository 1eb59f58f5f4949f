// Mamba-2, the gradient between the chunks: of the states that enter them and of the decays (spec 32 section 4.4).
#pragma once

#include "samba/backends/gpu/mamba2_gate_backward.gpu.h"
#include "samba/backends/gpu/mamba2_scan.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

SAMBA_DEVICE const float* entering(const Mamba2Call& call, const ChunkRows& rows, Index h) {
  return call.pass_states + call.chunk_head(rows.b, rows.c, h) * kCells;
}

// The gradient of the state that leaves the chunk.
SAMBA_DEVICE const float* leaving(const Mamba2Call& call, const Mamba2Gradients& g, const ChunkRows& rows, Index h) {
  return g.d_states + call.chunk_head(rows.b, rows.c, h) * kCells;
}

// dY of row i.
SAMBA_DEVICE float upstream(const Mamba2Call& call, const Mamba2Gradients& g, const ChunkRows& rows, Index h, int i,
                            int p) {
  return g.d_skip[call.token(rows.b, rows.c, i) * call.inner() + h * kHeadDim + p];
}

// The state that enters the first chunk and the gradient of the one that leaves the last are +0: every chain through
// them is +0, and left out, while the products of what they meet cannot overflow. *large becomes 1 where a factor
// reaches 2^40.
SAMBA_DEVICE bool is_large(float v) { return (to_bits(v) & kExponentMask) >= (127U + 40U) << 23; }

struct FindLargeRows {  // element (token, column of xBC)
  Mamba2Call call;
  Mamba2Gradients g;
  int* large;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index column = i % call.channels(), t = i / call.channels();
    const bool of_head = column < call.inner();
    if (is_large(call.x_bc[i]) || (of_head && is_large(g.d_skip[t * call.inner() + column])) ||
        (column < call.heads() && is_large(call.dt[t * call.heads() + column]))) {
      atomic_max(large, 1);
    }
  }
};

struct FindLargeDecays {  // element (b, H, C, 256)
  const float *dacs, *decay;
  int* large;
  SAMBA_DEVICE void operator()(Index i) const {
    if (is_large(decay[i]) || is_large(elementary::exp(dacs[i]))) atomic_max(large, 1);
  }
};

const int* find_large(Context& context, const Mamba2Call& call, const Mamba2Gradients& g) {
  int* large = context.workspace().ints(1);
  for_each(context, 1, ClearFlags{large});
  for_each(context, call.rows() * call.channels(), FindLargeRows{call, g, large});
  for_each(context, call.batch * call.heads() * call.chunks() * kChunk, FindLargeDecays{call.dacs, call.decay, large});
  return large;
}

SAMBA_DEVICE bool no_entering(const ChunkRows& rows, const int* large) { return rows.c == 0 && *large == 0; }
SAMBA_DEVICE bool no_leaving(const Mamba2Call& call, const ChunkRows& rows, const int* large) {
  return rows.c + 1 == call.chunks() && *large == 0;
}

// `direct` of every chunk c but the first, in the place of chunk c - 1; x: (chunk, half of the columns).
SAMBA_KERNEL(kTileThreads)
direct_states(Mamba2Call call, Mamba2Gradients g) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(float, reach, kRows);
  SAMBA_SHARED(int, smallest, 4);
  constexpr int kHalves = kStateColumns / kTile;
  const Index later = call.chunks() - 1, index = static_cast<Index>(block_x()) / kHalves, h = block_y();
  const ChunkRows rows = chunk_rows(call, index / later * call.chunks() + 1 + index % later);
  const int first_n = static_cast<int>(block_x() % kHalves) * kTile;
  reach[thread_index()] = exp_flushed(call.dacs[call.head_chunk(rows.b, h, rows.c) * kChunk + thread_index()]);
  TileProduct product(left, right, smallest, kTile, kTile);
  float halves[2][kThreadCells];
  SAMBA_UNROLL
  for (int half = 0; half < 2; ++half) {
    product.begin();
    for (int tile = 2 * half; tile < 2 * half + 2; ++tile) {
      const int length = tile_rows(rows, tile), first = tile * kTile;
      if (length == 0) break;
      const int of_left = fill_panel<false>(left, length, kTile, [&](int d, int p) {
        return mul(upstream(call, g, rows, h, first + d, p), reach[first + d]);
      });
      const int of_right = fill_panel<false>(right, length, kTile,
                                             [&](int d, int n) { return rows.query(call, first + d, first_n + n); });
      product.take<Terms::all>(length, of_left, of_right);
    }
    SAMBA_UNROLL
    for (int q = 0; q < kThreadCells; ++q) halves[half][q] = product.acc[q];
  }
  float* to = g.d_states + call.chunk_head(rows.b, rows.c - 1, h) * kCells;
  product.for_cells(
      [&](int q, int p, int n) { to[p * kStateSize + first_n + n] = flush(halves[0][q] + halves[1][q]); });
}

// dcs of all chunks, one cell of a head's state; `direct` of chunk c lies in the place of chunk c - 1.
struct CarryStates {
  Mamba2Call call;
  Mamba2Gradients g;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index cell = i % kCells, h = i / kCells % call.heads(), b = i / kCells / call.heads();
    float carry = 0.0F;
    for (Index c = call.chunks() - 1; c >= 0; --c) {
      g.d_states[call.chunk_head(b, c, h) * kCells + cell] = carry;
      if (c == 0) return;
      const float reach = exp_flushed(call.dacs[call.head_chunk(b, h, c) * kChunk + kRows - 1]);
      carry = mad(reach, carry, g.d_states[call.chunk_head(b, c - 1, h) * kCells + cell]);
    }
  }
};

// dscale of a (chunk, head): the fold of a product over the cells, a leaf a row of the state.
SAMBA_KERNEL(kTileThreads)
scale_gradients(Mamba2Call call, Mamba2Gradients g) {
  constexpr int kSlice = 32, kPitch = kSlice + 1;
  SAMBA_SHARED(float, terms, kTile* kPitch);
  SAMBA_SHARED(float, leaves, kTile);
  const ChunkRows rows = chunk_rows(call, block_x());
  const Index h = block_y();
  const float *state = entering(call, rows, h), *d_state = leaving(call, g, rows, h);
  const int thread = static_cast<int>(thread_index());
  float sum = 0.0F;
  for (int first = 0; first < kStateColumns; first += kSlice) {
    for (int e = thread; e < kTile * kSlice; e += kTileThreads) {
      const Index cell = e / kSlice * kStateSize + first + e % kSlice;
      terms[e / kSlice * kPitch + e % kSlice] = mul(d_state[cell], state[cell]);
    }
    barrier();
    if (thread < kTile) {
      for (int n = 0; n < kSlice; ++n) sum = flush(sum + terms[thread * kPitch + n]);
    }
    barrier();
  }
  if (thread < kTile) leaves[thread] = sum;
  barrier();
  if (thread > 0) return;
  TreeFold tree;
  for (int p = 0; p < kTile; ++p) tree.push(leaves[p]);
  g.d_scale[call.chunk_head(rows.b, rows.c, h)] = tree.finish();
}

// off of a tile of rows; x: (chunk, tile).
SAMBA_KERNEL(kTileThreads)
off_gradients(Mamba2Call call, Mamba2Gradients g, const int* large) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(int, smallest, 4);
  const ChunkRows rows = chunk_rows(call, block_x() / kTiles);
  const int tile = static_cast<int>(block_x() % kTiles), first = tile * kTile, count = tile_rows(rows, tile);
  const Index h = block_y();
  const int thread = static_cast<int>(thread_index());
  const Index at = call.head_chunk(rows.b, h, rows.c) * kChunk + first + thread;
  if (no_entering(rows, large)) {
    if (thread < kTile) g.d_off[at] = 0.0F;
    return;
  }
  const float* state = entering(call, rows, h);
  TileProduct product(left, right, smallest, count, kTile);
  for (int n = 0; n < kStateColumns; n += kTile) {
    const int of_left =
        fill_panel<true>(left, kTile, count, [&](int d, int x) { return rows.query(call, first + x, n + d); });
    const int of_right =
        fill_panel<true>(right, kTile, kTile, [&](int d, int p) { return state[p * kStateSize + n + d]; });
    product.take<Terms::all>(kTile, of_left, of_right);
  }
  product.for_cells([&](int q, int row, int p) { left[row * kHeadPitch + p] = product.acc[q]; });
  for (int e = thread; e < count * kTile; e += kTileThreads) {
    right[e / kTile * kHeadPitch + e % kTile] = upstream(call, g, rows, h, first + e / kTile, e % kTile);
  }
  barrier();
  if (thread >= kTile) return;
  g.d_off[at] = thread < count ? mul(head_chain(right, left, thread), exp_flushed(call.dacs[at])) : 0.0F;
}

// ddec of a tile of rows of kDecayHeads heads: one thread a row and head has the chain over the 8192 cells of the
// state. The keys of the tile lie in shared memory; x: (chunk, tile).
inline constexpr int kDecayHeads = kTileThreads / kTile;

SAMBA_KERNEL(kTileThreads)
decay_gradients(Mamba2Call call, Mamba2Gradients g, const int* large) {
  constexpr int kPitch = kTile + 1;
  constexpr int kSlice = 4;  // rows of the states at a time
  SAMBA_SHARED(float, keys, kStateColumns* kPitch);
  SAMBA_SHARED(float, d_states, kDecayHeads* kSlice* kStateColumns);
  const ChunkRows rows = chunk_rows(call, block_x() / kTiles);
  const int tile = static_cast<int>(block_x() % kTiles), first = tile * kTile, count = tile_rows(rows, tile);
  const int thread = static_cast<int>(thread_index()), r = thread % kTile, of_head = thread / kTile;
  const Index first_head = static_cast<Index>(block_y()) * kDecayHeads, h = first_head + of_head;
  if (no_leaving(call, rows, large)) {
    if (h < call.heads()) g.d_decay[call.head_chunk(rows.b, h, rows.c) * kChunk + first + r] = 0.0F;
    return;
  }
  for (int e = thread; e < count * kStateColumns; e += kTileThreads) {
    keys[e % kStateColumns * kPitch + e / kStateColumns] =
        flush(rows.key(call, first + e / kStateColumns, e % kStateColumns));
  }
  const bool has_row = r < count && h < call.heads();
  float sum = 0.0F;
  for (int p = 0; p < kTile; p += kSlice) {
    for (int e = thread; e < kDecayHeads * kSlice * kStateColumns; e += kTileThreads) {
      const Index head = first_head + e / (kSlice * kStateColumns);
      if (head < call.heads()) {
        d_states[e] = leaving(call, g, rows, head)[p * kStateColumns + e % (kSlice * kStateColumns)];
      }
    }
    barrier();
    for (int k = 0; k < kSlice && has_row; ++k) {
      const float x_d = rows.x_d(call, h, first + r, p + k);
      const float* d_state = d_states + (of_head * kSlice + k) * kStateColumns;
      for (int n = 0; n < kStateColumns; ++n) {
        sum = flush(fma(d_state[n], flush(x_d * keys[n * kPitch + r]), sum));
      }
    }
    barrier();
  }
  if (h < call.heads()) g.d_decay[call.head_chunk(rows.b, h, rows.c) * kChunk + first + r] = sum;
}

// d_dacs and its suffix sums of a (chunk, head).
SAMBA_KERNEL(kTileThreads)
cumulative_gradients(Mamba2Call call, Mamba2Gradients g) {
  SAMBA_SHARED(float, terms, kRows);
  SAMBA_SHARED(float, sums, kRows);
  SAMBA_SHARED(float, last, 1);
  const ChunkRows rows = chunk_rows(call, block_x());
  const Index h = block_y();
  const int i = static_cast<int>(thread_index());
  const Index at = call.head_chunk(rows.b, h, rows.c) * kChunk + i;
  const float term = mul(g.d_decay[at], call.decay[at]);
  terms[i] = term;
  barrier();
  if (i == 0) {
    float sum = 0.0F;
    for (int k = 0; k + 1 < kRows; ++k) sum = flush(sum + terms[k]);
    last[0] = sum;
  }
  barrier();
  const bool ends = i + 1 == kRows;
  const float through_state =
      ends ? mul(g.d_scale[call.chunk_head(rows.b, rows.c, h)], exp_flushed(call.dacs[at])) : 0.0F;
  const float d = add(add(g.d_off[at], through_state), ends ? last[0] : -term);
  g.d_dacs[at] = d;
  sums[i] = d;
  barrier();
  if (i == 0) {
    float carry = 0.0F;
    for (int k = kRows - 1; k >= 0; --k) {
      carry = flush(carry + sums[k]);
      sums[k] = carry;
    }
  }
  barrier();
  if (i < rows.real) g.d_cumsum[call.token(rows.b, rows.c, i) * call.heads() + h] = sums[i];
}

void launch_state_gradients(Context& context, const Mamba2Call& call, const Mamba2Gradients& g, const int* large) {
  const Index chunks = call.batch * call.chunks(), heads = call.heads();
  if (call.chunks() > 1) {
    const Index later = call.batch * (call.chunks() - 1);
    launch(context, chunk_grid(later, kStateColumns / kTile, heads), kTileThreads, direct_states, call, g);
  }
  for_each(context, call.batch * heads * kCells, CarryStates{call, g});
  launch(context, chunk_grid(chunks, 1, heads), kTileThreads, scale_gradients, call, g);
  launch(context, chunk_grid(chunks, kTiles, heads), kTileThreads, off_gradients, call, g, large);
  launch(context, chunk_grid(chunks, kTiles, (heads + kDecayHeads - 1) / kDecayHeads), kTileThreads, decay_gradients,
         call, g, large);
  launch(context, chunk_grid(chunks, 1, heads), kTileThreads, cumulative_gradients, call, g);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
