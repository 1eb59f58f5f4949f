// Mamba-2, the gradient inside the chunks: pairs of rows j <= i (spec 32 section 4.5). dM and seg of some chunks at a
// time lie in device memory, [256, 256] a head each.
#pragma once

#include "samba/backends/gpu/mamba2_scan_backward.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr Index kPairFloats = kChunk * kChunk;
inline constexpr Index kMostPairFloats = 64 * 1024 * 1024;  // of both arrays, unless one chunk has more

// Chunks from `first` on; head h of the k-th of them.
struct Pairs {
  Index first;
  float *d_products, *segments;  // dM and seg
  SAMBA_DEVICE static Index at(const Mamba2Call& call, Index k, Index h) {
    return (k * call.heads() + h) * kPairFloats;
  }
};

// x: (chunk, tile of rows, tile of columns).
SAMBA_KERNEL(kTileThreads)
pair_products(Mamba2Call call, Mamba2Gradients g, Pairs pairs, const float* starts) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(float, das, kTile);
  SAMBA_SHARED(int, smallest, 4);
  const Index k = block_x() / (kTiles * kTiles), h = block_y();
  const ChunkRows rows = chunk_rows(call, pairs.first + k);
  const int i_tile = static_cast<int>(block_x() % (kTiles * kTiles)) / kTiles;
  const int j_tile = static_cast<int>(block_x()) % kTiles;
  const int row_count = tile_rows(rows, i_tile), column_count = tile_rows(rows, j_tile);
  if (j_tile > i_tile || row_count == 0) return;
  load_das(call, rows, h, i_tile, das);
  TileProduct product(left, right, smallest, row_count, column_count);
  const int of_left = fill_panel<true>(left, kTile, row_count,
                                       [&](int d, int x) { return upstream(call, g, rows, h, i_tile * kTile + x, d); });
  const int of_right = fill_panel<true>(right, kTile, column_count,
                                        [&](int d, int x) { return rows.x_d(call, h, j_tile * kTile + x, d); });
  product.take<Terms::all>(kTile, of_left, of_right);
  float* d_products = pairs.d_products + Pairs::at(call, k, h);
  float* segments = pairs.segments + Pairs::at(call, k, h);
  product.for_cells([&](int q, int row, int column) {
    const int i = i_tile * kTile + row, j = j_tile * kTile + column;
    if (j <= i && i < rows.real) d_products[i * kRows + j] = product.acc[q];
  });
  for_segments(starts_of(call, starts, rows, h), das, i_tile, j_tile, rows.real,
               [&](int i, int j, float decay) { segments[i * kRows + j] = decay; });
}

// dG, a chain over the heads; element (chunk, i, j).
struct ScoreGradient {
  Mamba2Call call;
  Mamba2Gradients g;
  Pairs pairs;
  SAMBA_DEVICE void operator()(Index element) const {
    const Index k = element / kPairFloats, pair = element % kPairFloats;
    const int i = static_cast<int>(pair / kChunk), j = static_cast<int>(pair % kChunk);
    const ChunkRows rows = chunk_rows(call, pairs.first + k);
    if (j > i || i >= rows.real) return;
    float sum = 0.0F;
    for (Index h = 0; h < call.heads(); ++h) {
      const Index at = Pairs::at(call, k, h) + pair;
      sum = flush(fma(pairs.d_products[at], pairs.segments[at], sum));
    }
    g.d_scores[call.token(rows.b, rows.c, i) * kChunk + j] = sum;
  }
};

// da_seg and d_da of a (chunk, head): the chain of row k takes the pairs j < k <= i, columns j outer; one thread a row.
SAMBA_KERNEL(kTileThreads)
segment_gradients(Mamba2Call call, Mamba2Gradients g, Pairs pairs) {
  constexpr int kColumns = 16, kPitch = kColumns + 1;
  SAMBA_SHARED(float, d_segments, kRows* kPitch);
  SAMBA_SHARED(float, segments, kRows* kPitch);
  const Index h = block_y(), from = Pairs::at(call, block_x(), h);
  const ChunkRows rows = chunk_rows(call, pairs.first + block_x());
  const int k = static_cast<int>(thread_index());
  float sum = 0.0F;
  for (int first = 0; first < rows.real; first += kColumns) {
    for (int e = k; e < rows.real * kColumns; e += kTileThreads) {
      const int i = e / kColumns, j = first + e % kColumns;
      if (j >= i) continue;
      segments[i * kPitch + e % kColumns] = pairs.segments[from + i * kRows + j];
      d_segments[i * kPitch + e % kColumns] =
          mul(pairs.d_products[from + i * kRows + j], call.scores[call.token(rows.b, rows.c, i) * kChunk + j]);
    }
    barrier();
    for (int j = 0; j < kColumns && first + j < k; ++j) {
      for (int i = k; i < rows.real; ++i) sum = flush(fma(d_segments[i * kPitch + j], segments[i * kPitch + j], sum));
    }
    barrier();
  }
  if (k >= rows.real) return;
  const Index at = call.token(rows.b, rows.c, k) * call.heads() + h;
  g.d_da_seg[at] = sum;
  g.d_da[at] = add(g.d_cumsum[at], sum);
}

// dxd, dx and d_dt of a tile of rows; x: (chunk, tile).
SAMBA_KERNEL(kTileThreads)
input_gradients(Mamba2Call call, Mamba2Gradients g, Pairs pairs, const int* large) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(int, smallest, 4);
  const Index k = block_x() / kTiles, h = block_y();
  const ChunkRows rows = chunk_rows(call, pairs.first + k);
  const int tile = static_cast<int>(block_x() % kTiles), first = tile * kTile, count = tile_rows(rows, tile);
  if (count == 0) return;
  const float* segments = pairs.segments + Pairs::at(call, k, h);
  TileProduct product(left, right, smallest, count, kTile);
  for (int i_tile = tile; i_tile < kTiles; ++i_tile) {
    const int length = tile_rows(rows, i_tile);
    if (length == 0) break;
    const int of_left = fill_panel<false>(left, length, count, [&](int d, int x) {
      const int i = i_tile * kTile + d, j = first + x;
      return j > i ? 0.0F : mul(call.scores[call.token(rows.b, rows.c, i) * kChunk + j], segments[i * kRows + j]);
    });
    const int of_right = fill_panel<false>(
        right, length, kTile, [&](int d, int p) { return upstream(call, g, rows, h, i_tile * kTile + d, p); });
    if (i_tile == tile) {
      product.take<Terms::from_row>(length, of_left, of_right);
    } else {
      product.take<Terms::all>(length, of_left, of_right);
    }
  }
  float inside[kThreadCells];
  SAMBA_UNROLL
  for (int q = 0; q < kThreadCells; ++q) inside[q] = product.acc[q];

  product.begin();
  const float* decay = call.decay + call.head_chunk(rows.b, h, rows.c) * kChunk + first;
  const float* d_state = leaving(call, g, rows, h);
  for (int n = 0; n < kStateColumns && !no_leaving(call, rows, large); n += kTile) {
    const int of_left = fill_panel<true>(left, kTile, count,
                                         [&](int d, int x) { return mul(rows.key(call, first + x, n + d), decay[x]); });
    const int of_right =
        fill_panel<true>(right, kTile, kTile, [&](int d, int p) { return d_state[p * kStateSize + n + d]; });
    product.take<Terms::all>(kTile, of_left, of_right);
  }
  product.for_cells([&](int q, int row, int p) {
    if (row >= count) return;
    const float d_xd = add(inside[q], product.acc[q]);
    const Index t = call.token(rows.b, rows.c, first + row), at = t * call.heads() + h;
    const Index x_at = t * call.channels() + h * kHeadDim + p;
    g.d_xd[at * kHeadDim + p] = d_xd;
    g.d_xbc[x_at] = add(mul(upstream(call, g, rows, h, first + row, p), call.d[h]), mul(d_xd, call.dt[at]));
    left[row * kHeadPitch + p] = flush(call.x_bc[x_at]);
    right[row * kHeadPitch + p] = d_xd;
  });
  barrier();
  const int thread = static_cast<int>(thread_index());
  if (thread >= count) return;
  const Index at = call.token(rows.b, rows.c, first + thread) * call.heads() + h;
  g.d_dt[at] = add(mul(g.d_da[at], call.a[h]), head_chain(left, right, thread));
}

// dB (z 0) and dC (z 1) of a tile of rows and half of the columns, once dG is whole; x: (chunk, tile), y: the half.
SAMBA_KERNEL(kTileThreads)
key_gradients(Mamba2Call call, Mamba2Gradients g, Pairs pairs, const int* large) {
  SAMBA_SHARED(float, left, kPanelFloats);
  SAMBA_SHARED(float, right, kPanelFloats);
  SAMBA_SHARED(float, scales, kTile);
  SAMBA_SHARED(int, smallest, 4);
  const ChunkRows rows = chunk_rows(call, pairs.first + block_x() / kTiles);
  const int tile = static_cast<int>(block_x() % kTiles), first = tile * kTile, count = tile_rows(rows, tile);
  const bool queries = block_z() == 1;
  const int first_n = static_cast<int>(block_y()) * kTile, thread = static_cast<int>(thread_index());
  if (count == 0) return;
  TileProduct product(left, right, smallest, count, kTile);
  // Through the state: one chain over the heads and their columns.
  const bool no_state = queries ? no_entering(rows, large) : no_leaving(call, rows, large);
  for (Index h = 0; h < call.heads() && !no_state; ++h) {
    if (thread < count) {
      const Index at = call.head_chunk(rows.b, h, rows.c) * kChunk + first + thread;
      scales[thread] = queries ? exp_flushed(call.dacs[at]) : call.decay[at];
    }
    barrier();
    const float* state = queries ? entering(call, rows, h) : leaving(call, g, rows, h);
    const int of_left = fill_panel<true>(left, kTile, count, [&](int d, int x) {
      return mul(queries ? upstream(call, g, rows, h, first + x, d) : rows.x_d(call, h, first + x, d), scales[x]);
    });
    const int of_right =
        fill_panel<false>(right, kTile, kTile, [&](int d, int n) { return state[d * kStateSize + first_n + n]; });
    product.take<Terms::all>(kTile, of_left, of_right);
  }
  float through_state[kThreadCells];
  SAMBA_UNROLL
  for (int q = 0; q < kThreadCells; ++q) through_state[q] = product.acc[q];

  // Through the scores: rows j take the pairs with i >= j, rows i those with j <= i.
  product.begin();
  const int first_other = queries ? 0 : tile, end_other = queries ? tile + 1 : kTiles;
  for (int other = first_other; other < end_other; ++other) {
    const int length = tile_rows(rows, other), from = other * kTile;
    if (length == 0) break;
    const auto d_score = [&](int i, int j) {
      return j > i ? 0.0F : g.d_scores[call.token(rows.b, rows.c, i) * kChunk + j];
    };
    const int of_left =
        queries ? fill_panel<true>(left, length, count, [&](int d, int x) { return d_score(first + x, from + d); })
                : fill_panel<false>(left, length, count, [&](int d, int x) { return d_score(from + d, first + x); });
    const int of_right = fill_panel<false>(right, length, kTile, [&](int d, int n) {
      return queries ? rows.key(call, from + d, first_n + n) : rows.query(call, from + d, first_n + n);
    });
    if (other != tile) {
      product.take<Terms::all>(length, of_left, of_right);
    } else if (queries) {
      product.take<Terms::to_row>(length, of_left, of_right);
    } else {
      product.take<Terms::from_row>(length, of_left, of_right);
    }
  }
  product.for_cells([&](int q, int row, int n) {
    if (row >= count) return;
    const Index t = call.token(rows.b, rows.c, first + row);
    g.d_xbc[t * call.channels() + call.inner() + (queries ? kStateSize : 0) + first_n + n] =
        add(through_state[q], product.acc[q]);
  });
}

// After the gradients between the chunks. starts: of chunk_decays; large: of find_large.
void launch_pair_gradients(Context& context, const Mamba2Call& call, const Mamba2Gradients& g, const float* starts,
                           const int* large) {
  const Workspace::Scope scope(context.workspace());
  const Index all = call.batch * call.chunks(), heads = call.heads();
  const Index fitting = kMostPairFloats / (2 * heads * kPairFloats);
  const Index most = fitting < 1 ? 1 : fitting < all ? fitting : all;
  float* d_products = context.workspace().floats(most * heads * kPairFloats);
  Pairs pairs{0, d_products, context.workspace().floats(most * heads * kPairFloats)};
  for (; pairs.first < all; pairs.first += most) {
    const Index chunks = all - pairs.first < most ? all - pairs.first : most;
    launch(context, chunk_grid(chunks, kTiles * kTiles, heads), kTileThreads, pair_products, call, g, pairs, starts);
    for_each(context, chunks * kPairFloats, ScoreGradient{call, g, pairs});
    launch(context, chunk_grid(chunks, 1, heads), kTileThreads, segment_gradients, call, g, pairs);
    launch(context, chunk_grid(chunks, kTiles, heads), kTileThreads, input_gradients, call, g, pairs, large);
    Grid halves = chunk_grid(chunks, kTiles, kStateColumns / kTile);
    halves.z = 2;
    launch(context, halves, kTileThreads, key_gradients, call, g, pairs, large);
  }
}

}  // namespace

}  // namespace samba::SAMBA_GPU
