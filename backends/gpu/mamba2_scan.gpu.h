// Mamba-2: the scores and the outputs of the chunks in tiles of 64 rows (spec 31 S18, S19 and section 3 steps 3 to 5, 9
// and 10). Terms beyond the tile of the diagonal are zeros that section 4 lets us leave out, but for the sign of a zero
// and where an X_d is not finite.
#pragma once

#include "samba/backends/gpu/mamba2_decays.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

// G[i, j] of the new rows; x: (chunk, tile of rows, tile of columns).
SAMBA_KERNEL(kTileThreads)
chunk_scores(Mamba2Call call) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(int, smallest, 4);
  const ChunkRows rows = chunk_rows(call, block_x() / (kTiles * kTiles));
  const int i_tile = static_cast<int>(block_x() % (kTiles * kTiles)) / kTiles;
  const int j_tile = static_cast<int>(block_x()) % kTiles;
  const int first_new = static_cast<int>(call.first_new(rows.c));
  const int row_count = tile_rows(rows, i_tile), column_count = tile_rows(rows, j_tile);
  if (j_tile > i_tile || row_count == 0 || (i_tile + 1) * kTile <= first_new) return;
  TileProduct product(left, right, smallest, row_count, column_count);
  for (int n = 0; n < kStateColumns; n += kTile) {
    const int of_left = fill_panel<true>(left, kTile, row_count,
                                         [&](int d, int x) { return rows.query(call, i_tile * kTile + x, n + d); });
    const int of_right = fill_panel<true>(right, kTile, column_count,
                                          [&](int d, int x) { return rows.key(call, j_tile * kTile + x, n + d); });
    product.take<Terms::all>(kTile, of_left, of_right);
  }
  product.for_cells([&](int q, int row, int column) {
    const int i = i_tile * kTile + row, j = j_tile * kTile + column;
    if (j > i || i < first_new || i >= rows.real) return;
    call.scores[call.token(rows.b, rows.c, i) * kChunk + j] = product.acc[q];
  });
}

// Where zeros may not be left out: flags[(b, H, C)] becomes 1 where an X_d of the chunk is not finite, the flag behind
// them where a B or C of the call is not. Element (b, t, column) of the working rows.
struct FindNonFinite {
  Mamba2Call call;
  int* flags;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index column = i % call.channels(), row = i / call.channels();
    const Index b = row / call.working_rows(), t = row % call.working_rows();
    const ChunkRows rows{b, t / kChunk, 0};
    const int place = static_cast<int>(t % kChunk);
    float value = rows.xbc(call, place)[column];
    Index flag = call.batch * call.heads() * call.chunks();
    if (column < call.inner()) {
      const Index h = column / kHeadDim;
      value = rows.x_d(call, h, place, static_cast<int>(column % kHeadDim));
      flag = call.head_chunk(b, h, rows.c);
    }
    if (!is_finite(value)) atomic_max(flags + flag, 1);
  }
};

struct ClearFlags {
  int* flags;
  SAMBA_DEVICE void operator()(Index i) const { flags[i] = 0; }
};

const int* find_non_finite(Context& context, const Mamba2Call& call) {
  const Index count = call.batch * call.heads() * call.chunks() + 1;
  int* flags = context.workspace().ints(count);
  for_each(context, count, ClearFlags{flags});
  for_each(context, call.batch * call.working_rows() * call.channels(), FindNonFinite{call, flags});
  return flags;
}

// A leaf of Y_diag whose terms before row `done` were taken. The others are zeros times X_d: they turn -0 into +0 where
// one of them is +0, as that of a missing row is.
SAMBA_DEVICE float settle_zero(const Mamba2Call& call, const ChunkRows& rows, Index h, int p, int done, int leaf_end,
                               float leaf) {
  if (to_bits(leaf) != kSignBit || done >= leaf_end) return leaf;
  if (rows.real < leaf_end) return 0.0F;
  for (int j = done; j < leaf_end; ++j) {
    if ((to_bits(rows.x_d(call, h, j, p)) & kSignBit) == 0) return 0.0F;
  }
  return leaf;
}

// Step 10, S18 and S19 of one cell.
struct OutputCell {
  Index m, h;
  int p;
  float x_d, y_diag, y_off;
};

SAMBA_DEVICE void write_output(const Mamba2Call& call, const OutputCell& cell) {
  const Index column = cell.h * kHeadDim + cell.p, at = cell.m * call.inner() + column;
  const float y = add(cell.y_diag, cell.y_off);
  const float skip = add(y, mul(call.x_bc[cell.m * call.channels() + column], call.d[cell.h]));
  call.skip[at] = skip;
  call.gate[at] = mul(skip, flush(elementary::silu(flush(call.in_proj[cell.m * call.width() + column]))));
  if (call.y != nullptr) call.y[at] = y;
  if (call.x_d != nullptr) call.x_d[at] = cell.x_d;
  if (call.y_diag != nullptr) call.y_diag[at] = cell.y_diag;
  if (call.y_off != nullptr) call.y_off[at] = cell.y_off;
}

// The state that enters a chunk: pass_states, or in a call of one chunk the state itself; null: +0.
SAMBA_DEVICE const float* entering_state(const Mamba2Call& call, const ChunkRows& rows, Index h) {
  if (call.pass_states != nullptr) return call.pass_states + call.chunk_head(rows.b, rows.c, h) * kCells;
  return call.h != nullptr ? call.h + (rows.b * call.heads() + h) * kCells : nullptr;
}

SAMBA_KERNEL(kTileThreads)
chunk_outputs(Mamba2Call call, const float* starts, const int* flags) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(float, das, kTile);
  SAMBA_SHARED(int, smallest, 4);
  const ChunkRows rows = chunk_rows(call, block_x() / kTiles);
  const int tile = static_cast<int>(block_x() % kTiles), first = tile * kTile;
  const Index h = block_y();
  const int first_new = static_cast<int>(call.first_new(rows.c)), count = tile_rows(rows, tile);
  if (count == 0 || first + kTile <= first_new) return;
  const Index unit = call.head_chunk(rows.b, h, rows.c);
  const bool literal = flags[unit] != 0;
  const bool no_state = call.h == nullptr && rows.c == 0 && flags[call.batch * call.heads() * call.chunks()] == 0;
  load_das(call, rows, h, tile, das);
  TileProduct product(left, right, smallest, count, kTile);

  float leaves[2][kThreadCells];
  SAMBA_UNROLL
  for (int leaf = 0; leaf < 2; ++leaf) {
    product.begin();
    int done = leaf * kLeafRows;
    for (int j_tile = 2 * leaf; j_tile < 2 * leaf + 2; ++j_tile) {
      const int length = tile_rows(rows, j_tile);
      if (length == 0 || (j_tile > tile && !literal)) break;
      // Each thread clears the cells that it fills.
      const int thread = static_cast<int>(thread_index());
      for (int x = thread / kTile * kStartRows; x < (thread / kTile + 1) * kStartRows; ++x) {
        left[thread % kTile * kTilePitch + x] = 0.0F;
      }
      int of_left = kNoExponent;
      for_segments(starts_of(call, starts, rows, h), das, tile, j_tile, rows.real, [&](int i, int j, float decay) {
        if (i < first_new) return;
        const float weight = mul(call.scores[call.token(rows.b, rows.c, i) * kChunk + j], decay);
        left[j % kTile * kTilePitch + i % kTile] = weight;
        of_left = smaller_exponent(of_left, weight);
      });
      const int of_right = fill_panel<false>(right, length, kTile,
                                             [&](int d, int p) { return rows.x_d(call, h, j_tile * kTile + d, p); });
      product.take<Terms::all>(length, of_left, of_right);
      done = (j_tile + 1) * kTile;
    }
    product.for_cells([&](int q, int, int p) {
      leaves[leaf][q] =
          settle_zero(call, rows, h, p, rows.real < done ? rows.real : done, (leaf + 1) * kLeafRows, product.acc[q]);
    });
  }

  product.begin();
  const float* state = entering_state(call, rows, h);
  for (int n = 0; n < kStateColumns && !no_state; n += kTile) {
    const int of_left =
        fill_panel<true>(left, kTile, count, [&](int d, int x) { return rows.query(call, first + x, n + d); });
    const int of_right = fill_panel<true>(
        right, kTile, kTile, [&](int d, int p) { return state != nullptr ? state[p * kStateSize + n + d] : 0.0F; });
    product.take<Terms::all>(kTile, of_left, of_right);
  }
  float reach[kCellRows];
  SAMBA_UNROLL
  for (int r = 0; r < kCellRows; ++r) reach[r] = exp_flushed(call.dacs[unit * kChunk + first + product.row + r]);
  product.for_cells([&](int q, int row, int p) {
    const int i = first + row;
    if (i < first_new || i >= rows.real) return;
    const float y_diag = flush(leaves[0][q] + leaves[1][q]);
    const float y_off = mul(product.acc[q], reach[q / kCellRows]);
    write_output(call, {call.token(rows.b, rows.c, i), h, p, rows.x_d(call, h, i, p), y_diag, y_off});
  });
}

}  // namespace

}  // namespace samba::SAMBA_GPU
