// Mamba-2: a few new rows, as decoding has them. A block takes one new row, and a head of it.
#pragma once

#include "samba/backends/gpu/mamba2_scan.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr Index kFewTokens = 8;

// New row m: its chunk, and its place there.
struct NewRow {
  ChunkRows rows;
  int i;
};

SAMBA_DEVICE NewRow new_row(const Mamba2Call& call, Index m) {
  const Index t = m % call.tokens + call.buffered, c = t / kChunk;
  return {{m / call.tokens, c, static_cast<int>(real_rows(call, c))}, static_cast<int>(t % kChunk)};
}

// G of new row x and the columns of tile y: a thread a column, the keys through shared memory.
SAMBA_KERNEL(kTileThreads)
row_scores(Mamba2Call call) {
  constexpr int kPitch = kStateColumns + 1;
  SAMBA_SHARED(float, keys, kTile* kPitch);
  SAMBA_SHARED(float, query, kStateColumns);
  const NewRow row = new_row(call, block_x());
  const int first = static_cast<int>(block_y()) * kTile, thread = static_cast<int>(thread_index());
  if (first > row.i) return;
  const int count = row.i - first + 1 < kTile ? row.i - first + 1 : kTile;
  for (int e = thread; e < count * kStateColumns; e += kTileThreads) {
    const int j = e / kStateColumns, n = e % kStateColumns;
    keys[j * kPitch + n] = flush(row.rows.key(call, first + j, n));
  }
  if (thread < kStateColumns) query[thread] = flush(row.rows.query(call, row.i, thread));
  barrier();
  if (thread >= count) return;
  float sum = 0.0F;
  for (int n = 0; n < kStateColumns; ++n) sum = flush(fma(query[n], keys[thread * kPitch + n], sum));
  call.scores[static_cast<Index>(block_x()) * kChunk + first + thread] = sum;
}

// Outputs of new row x and head y.
SAMBA_KERNEL(kTileThreads)
row_outputs(Mamba2Call call) {
  SAMBA_SHARED(float, das, kRows);
  SAMBA_SHARED(float, weights, kRows);
  SAMBA_SHARED(float, sums, 3 * kTile);  // the leaves of Y_diag, and G2
  const Index m = block_x(), h = block_y();
  const NewRow row = new_row(call, m);
  const ChunkRows& rows = row.rows;
  const int thread = static_cast<int>(thread_index()), part = thread / kTile, p = thread % kTile;
  das[thread] = thread <= row.i ? rows.da(call, h, thread) : 0.0F;
  barrier();
  float weight = 0.0F;
  if (thread <= row.i) {
    float sum = 0.0F;
    for (int i = thread + 1; i <= row.i; ++i) sum = add(sum, das[i]);
    weight = mul(call.scores[m * kChunk + thread], exp_flushed(sum));
  }
  weights[thread] = weight;
  barrier();
  if (part < 2) {
    const int end = (part + 1) * kLeafRows;
    float sum = 0.0F;
    for (int j = part * kLeafRows; j < end && j < rows.real; ++j) {
      sum = flush(fma(weights[j], rows.x_d(call, h, j, p), sum));
    }
    sums[thread] = with_missing_rows(sum, rows.real, end);
  } else if (part == 2) {
    const float* state = entering_state(call, rows, h);
    float sum = 0.0F;
    for (int n = 0; n < kStateColumns; ++n) {
      sum = mad(rows.query(call, row.i, n), state != nullptr ? state[p * kStateSize + n] : 0.0F, sum);
    }
    sums[thread] = sum;
  }
  barrier();
  if (part > 0) return;
  const float reach = exp_flushed(call.dacs[call.head_chunk(rows.b, h, rows.c) * kChunk + row.i]);
  const float y_diag = flush(sums[p] + sums[kTile + p]);
  write_output(call, {m, h, p, rows.x_d(call, h, row.i, p), y_diag, mul(sums[2 * kTile + p], reach)});
}

}  // namespace

}  // namespace samba::SAMBA_GPU
