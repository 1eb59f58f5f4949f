// Mamba-2: step sizes, cumulative sums and decays of the chunks, and the states that pass between them (spec 31 S8 and
// section 3 steps 1, 2, 6 to 8).
#pragma once

#include "samba/backends/gpu/mamba2_chunk.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

// dt of every working row; element (b, t, h).
struct StepSizes {
  Mamba2Call call;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index heads = call.heads(), h = i % heads, row = i / heads;
    const Index b = row / call.working_rows(), t = row % call.working_rows();
    const float raw =
        t < call.buffered
            ? call.buffer_dt[(b * kChunk + t) * heads + h]
            : call.in_proj[(b * call.tokens + t - call.buffered) * call.width() + mamba2::dt_column(call.d_model) + h];
    const float s = flush(elementary::softplus(add(raw, call.dt_bias[h])));
    call.dt[i] = flush(clamp(s, call.dt_low, call.dt_high));
  }
};

// dacs, decay and, for whoever wants them, the segment sums that are kept; a block a (chunk, head).
SAMBA_KERNEL(kTileThreads)
chunk_decays(Mamba2Call call, float* starts) {
  SAMBA_SHARED(float, das, kRows);
  SAMBA_SHARED(float, sums, kRows);
  const ChunkRows rows = chunk_rows(call, block_x());
  const Index h = block_y();
  const int i = static_cast<int>(thread_index());
  das[i] = i < rows.real ? rows.da(call, h, i) : 0.0F;
  barrier();
  if (i == 0) {
    float sum = das[0];
    sums[0] = sum;
    for (int k = 1; k < rows.real; ++k) {
      sum = add(sum, das[k]);
      sums[k] = sum;
    }
    for (int k = rows.real; k < kRows; ++k) sums[k] = sum;
  }
  if (starts != nullptr) {
    // The chain of column i, begun at row i + 1.
    float* kept = starts + call.head_chunk(rows.b, h, rows.c) * kStarts * kChunk + i;
    float sum = 0.0F;
    for (int k = 0; k < kRows; ++k) {
      if (k % kStartRows == 0) kept[k / kStartRows * kRows] = sum;
      if (k > i) sum = add(sum, das[k]);
    }
  }
  barrier();
  const Index at = call.head_chunk(rows.b, h, rows.c) * kChunk + i;
  call.dacs[at] = sums[i];
  call.decay[at] = exp_flushed(sub(sums[kRows - 1], sums[i]));
}

// The terms +0 * +0 of a leaf's missing rows turn -0 into +0 and change nothing else.
SAMBA_DEVICE float with_missing_rows(float leaf, int real, int leaf_end) {
  return real < leaf_end ? leaf + 0.0F : leaf;
}

// Step 7: the chunk's own state, a block 64 of its 128 columns. own(b, c, h): where it goes.
struct OwnStates {
  float* chunk_states;  // (batch, C, H, 64, 128), or null:
  float* later;         // of chunk c in the place of chunk c + 1
  float* last;          // (batch, H, 64, 128) for the last chunk
  SAMBA_DEVICE float* at(const Mamba2Call& call, Index b, Index c, Index h) const {
    if (chunk_states != nullptr) return chunk_states + call.chunk_head(b, c, h) * kCells;
    if (c + 1 < call.chunks()) return later + call.chunk_head(b, c + 1, h) * kCells;
    return last + (b * call.heads() + h) * kCells;
  }
};

SAMBA_KERNEL(kTileThreads)
own_states(Mamba2Call call, OwnStates own, Index chunks) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(int, smallest, 4);
  constexpr int kHalves = kStateColumns / kTile;
  // The first `chunks` chunks of every batch row.
  const Index index = static_cast<Index>(block_x()) / kHalves, h = block_y();
  const ChunkRows rows = chunk_rows(call, index / chunks * call.chunks() + index % chunks);
  const int first_n = static_cast<int>(block_x() % kHalves) * kTile;
  const float* decay = call.decay + call.head_chunk(rows.b, h, rows.c) * kChunk;
  TileProduct product(left, right, smallest, kTile, kTile);
  float leaves[2][kThreadCells];
  SAMBA_UNROLL
  for (int leaf = 0; leaf < 2; ++leaf) {
    product.begin();
    for (int tile = 2 * leaf; tile < 2 * leaf + 2; ++tile) {
      const int length = tile_rows(rows, tile), first = tile * kTile;
      if (length == 0) break;
      const int of_left =
          fill_panel<false>(left, length, kTile, [&](int d, int p) { return rows.x_d(call, h, first + d, p); });
      const int of_right = fill_panel<false>(right, length, kTile, [&](int d, int n) {
        return mul(rows.key(call, first + d, first_n + n), decay[first + d]);
      });
      product.take<Terms::all>(length, of_left, of_right);
    }
    SAMBA_UNROLL
    for (int q = 0; q < kThreadCells; ++q) {
      leaves[leaf][q] = with_missing_rows(product.acc[q], rows.real, (leaf + 1) * kLeafRows);
    }
  }
  float* to = own.at(call, rows.b, rows.c, h);
  product.for_cells(
      [&](int q, int p, int n) { to[p * kStateSize + first_n + n] = flush(leaves[0][q] + leaves[1][q]); });
}

// Step 8, one cell of a head's state over all chunks.
struct PassStates {
  Mamba2Call call;
  OwnStates own;
  Index own_chunks;  // that own_states has made
  SAMBA_DEVICE void operator()(Index i) const {
    const Index cell = i % kCells, h = i / kCells % call.heads(), b = i / kCells / call.heads();
    const bool last_is_complete = real_rows(call, call.chunks() - 1) == kChunk;
    float state = call.h != nullptr ? call.h[i] : 0.0F;
    for (Index c = 0; c < call.chunks(); ++c) {
      // The place of chunk c holds what chunk c - 1 brought, read one round before.
      if (call.pass_states != nullptr) call.pass_states[call.chunk_head(b, c, h) * kCells + cell] = state;
      if (c >= own_chunks) return;
      const float carry = exp_flushed(call.dacs[call.head_chunk(b, h, c) * kChunk + kRows - 1]);
      state = mad(carry, state, own.at(call, b, c, h)[cell]);
      const bool last = c + 1 == call.chunks();
      if (call.h != nullptr && (last ? last_is_complete : c + 2 == call.chunks())) call.h[i] = state;
      if (last && call.h_last != nullptr) call.h_last[i] = state;
    }
  }
};

}  // namespace

}  // namespace samba::SAMBA_GPU
