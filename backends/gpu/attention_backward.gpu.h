// The gradients of attention (spec 21 section 5 steps 9 to 14; the softcap's: docs/spec-extensions.md section 1.5)
// without a buffer of L x L cells: weights and their gradients are computed again for every tile from the maxima and
// denominators of the forward. Queries by tiles of queries, keys and values by tiles of keys.
#pragma once

#include "samba/backends/gpu/attention_scores.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

struct AttentionGradient {
  Attention g;  // from an empty cache; view: keys and values of the call
  const float* d_context;
  const float *maxima, *denominators;  // [batch, n_heads, L]
  float* z_dots;                       // the same
  float *dq, *dk, *dv;
  AttentionBackwardStages stages;
};

// This thread's cells of a tile; those that the query does not see hold nothing.
struct GradientCells {
  Score scores[kTileCells];
  float weights[kTileCells], d_weights[kTileCells];
};

template <bool kOneLeaf>
SAMBA_DEVICE void gradient_cells(const AttentionGradient& r, const QueryTile& tile, const Visible& visible,
                                 Index first_cell, float* slices, GradientCells& cells) {
  const Attention& g = r.g;
  tile_scores<kOneLeaf>(g, tile, visible, first_cell, slices, cells.scores);
  tile_dots<kOneLeaf>(
      g, r.d_context, tile, first_cell, slices,
      [&](Index s) { return g.view.values + g.view.row(tile.b, tile.kv_head, s); }, cells.d_weights);
  for_tile_cells(g, tile, first_cell, [&](int i, Index s) {
    if (!visible.sees(s)) return;
    const Index row = stage_row(g, tile, my_query());
    const float exponential = flush(elementary::exp(sub(cells.scores[i].masked, r.maxima[row])));
    cells.weights[i] = div(exponential, r.denominators[row]);
  });
}

struct ScoreGradient {
  float d_masked, d_score;
};

SAMBA_DEVICE ScoreGradient score_gradient(const Attention& g, const GradientCells& cells, int i, float z) {
  ScoreGradient d;
  d.d_masked = mul(cells.weights[i], sub(cells.d_weights[i], z));
  const float squashed = cells.scores[i].squashed;
  const float uncapped = g.has_softcap ? mul(d.d_masked, sub(1.0F, mul(squashed, squashed))) : d.d_masked;
  d.d_score = mul(uncapped, g.scale);
  return d;
}

template <int kDepths, bool kOneLeaf>
SAMBA_KERNEL_BLOCKS(kAttentionThreads, kDepths <= 64 ? 6 : 5)
attention_query_gradients(AttentionGradient r) {
  SAMBA_SHARED(float, slices, Slices<kDepths>::kFloats);
  SAMBA_SHARED(float, weights, kQueries* kTilePitch);
  SAMBA_SHARED(float, products, kQueries* kTilePitch);  // gradients of the weights, then of the scores
  const Attention& g = r.g;
  const QueryTile tile = query_tile(g);
  const Visible visible = visible_cells(g, tile, my_query() < tile.count ? my_query() : 0);
  const Visible span = tile_span(g, tile);
  const auto thread = static_cast<int>(thread_index());
  GradientCells cells;

  float z = 0.0F;
  for (Index first = span.first; first < span.end; first += kKeys) {
    gradient_cells<kOneLeaf>(r, tile, visible, first, slices, cells);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      if (!visible.sees(s)) return;
      weights[my_query() * kTilePitch + my_cell(i)] = cells.weights[i];
      products[my_query() * kTilePitch + my_cell(i)] = cells.d_weights[i];
      if (r.stages.d_weights != nullptr) {
        r.stages.d_weights[stage_row(g, tile, my_query()) * g.keys + s] = cells.d_weights[i];
      }
    });
    barrier();
    if (owns_query(tile)) {
      const Visible mine = visible_cells(g, tile, thread);
      for (int k = 0; k < kKeys; ++k) {
        const int at = thread * kTilePitch + k;
        if (mine.sees(first + k)) z = mad(products[at], weights[at], z);
      }
    }  // the barriers of the next products stand before anyone writes these cells again
  }
  if (owns_query(tile)) {
    r.z_dots[stage_row(g, tile, thread)] = z;
    if (r.stages.z_dot != nullptr) r.stages.z_dot[stage_row(g, tile, thread)] = z;
  }  // and before anyone reads z_dots

  for (Index depth = 0; depth < g.head_dim; depth += kDepths) {
    float sums[kDepths / kQueryThreads];
    for (int i = 0; i < kDepths / kQueryThreads; ++i) sums[i] = 0.0F;
    for (Index first = span.first; first < span.end; first += kKeys) {
      gradient_cells<kOneLeaf>(r, tile, visible, first, slices, cells);
      for_tile_cells(g, tile, first, [&](int i, Index s) {
        if (!visible.sees(s)) return;
        const Index row = stage_row(g, tile, my_query());
        const ScoreGradient d = score_gradient(g, cells, i, r.z_dots[row]);
        products[my_query() * kTilePitch + my_cell(i)] = d.d_score;
        if (r.stages.d_masked != nullptr) r.stages.d_masked[row * g.keys + s] = d.d_masked;
        if (r.stages.d_scores != nullptr) r.stages.d_scores[row * g.keys + s] = d.d_score;
      });
      add_values<kDepths>(
          g, tile, visible, first, depth, products, slices,
          [&](Index s) { return g.view.keys + g.view.row(tile.b, tile.kv_head, s); }, sums);
    }
    if (my_query() < tile.count) {
      for (int i = 0; i < kDepths / kQueryThreads; ++i) {
        const Index d = depth + my_cell(i);
        if (d < g.head_dim) r.dq[query_row(g, tile, my_query()) * g.head_dim + d] = sums[i];
      }
    }
  }
}

inline constexpr int kKeyThreads = kAttentionThreads / kKeys;  // that share a key

// The gradients of kKeys keys and values of one KV head: one chain over the heads of the group and the queries of each
// that see the key, ascending, for every depth. Blocks: tiles of keys, KV heads, batch rows.
template <int kDepths, bool kOneLeaf>
SAMBA_KERNEL_BLOCKS(kAttentionThreads, kDepths <= 64 ? 3 : 2)
attention_key_gradients(AttentionGradient r) {
  constexpr int kCells = kDepths / kKeyThreads;
  constexpr int kPitch = kDepths + 1;
  SAMBA_SHARED(float, slices, Slices<kDepths>::kFloats);  // of the products, then rows of q and of d_context
  SAMBA_SHARED(float, weights, kQueries* kTilePitch);
  SAMBA_SHARED(float, d_scores, kQueries* kTilePitch);
  static_assert(2 * kQueries * kPitch <= Slices<kDepths>::kFloats);
  const Attention& g = r.g;
  const auto thread = static_cast<int>(thread_index());
  const Index first = static_cast<Index>(block_x()) * kKeys;
  const int key = thread / kKeyThreads, part = thread % kKeyThreads;
  const Index group = g.n_heads / g.n_kv_heads;
  const Index last = first + kKeys < g.keys ? first + kKeys : g.keys;
  const Index end = g.window == 0 || last - 1 + g.window > g.queries ? g.queries : last - 1 + g.window;
  GradientCells cells;
  for (Index depth = 0; depth < g.head_dim; depth += kDepths) {
    const int depths = g.head_dim - depth < kDepths ? static_cast<int>(g.head_dim - depth) : kDepths;
    float dk[kCells], dv[kCells];
    for (int i = 0; i < kCells; ++i) dk[i] = dv[i] = 0.0F;
    for (Index head = block_y() * group; head < (block_y() + 1) * group; ++head) {
      for (Index q = first / kQueries * kQueries; q < end; q += kQueries) {
        const int count = g.queries - q < kQueries ? static_cast<int>(g.queries - q) : kQueries;
        const QueryTile tile{static_cast<Index>(block_z()), head, static_cast<Index>(block_y()), q, count};
        const Visible visible = visible_cells(g, tile, my_query() < count ? my_query() : 0);
        gradient_cells<kOneLeaf>(r, tile, visible, first, slices, cells);
        for_tile_cells(g, tile, first, [&](int i, Index s) {
          if (!visible.sees(s)) return;
          const float z = r.z_dots[stage_row(g, tile, my_query())];
          weights[my_query() * kTilePitch + my_cell(i)] = cells.weights[i];
          d_scores[my_query() * kTilePitch + my_cell(i)] = score_gradient(g, cells, i, z).d_score;
        });
        float* q_rows = slices;
        float* d_rows = slices + kQueries * kPitch;
        for (int e = thread; e < count * depths; e += kAttentionThreads) {
          const int row = e / depths, d = e % depths;
          const Index at = query_row(g, tile, row) * g.head_dim + depth + d;
          q_rows[row * kPitch + d] = flush(g.q[at]);
          d_rows[row * kPitch + d] = flush(r.d_context[at]);
        }
        barrier();
        for (int row = 0; row < count; ++row) {
          if (first + key >= g.keys || !visible_cells(g, tile, row).sees(first + key)) continue;
          const float d_score = d_scores[row * kTilePitch + key], weight = weights[row * kTilePitch + key];
          SAMBA_UNROLL
          for (int i = 0; i < kCells; ++i) {
            const int at = row * kPitch + part + i * kKeyThreads;
            dk[i] = flush(fma(d_score, q_rows[at], dk[i]));
            dv[i] = flush(fma(weight, d_rows[at], dv[i]));
          }
        }
        barrier();
      }
    }
    if (first + key >= g.keys) continue;
    const Index row = g.view.row(block_z(), block_y(), first + key);
    for (int i = 0; i < kCells; ++i) {
      const Index d = depth + part + i * kKeyThreads;
      if (d >= g.head_dim) continue;
      r.dk[row + d] = dk[i];
      r.dv[row + d] = dv[i];
    }
  }
}

}  // namespace

}  // namespace samba::SAMBA_GPU
