// Causal attention in three passes over the keys, without a buffer of L x L scores: maxima, denominators, and the sum
// of the values; the scores of a tile are computed again in each (spec 20 section 3 steps 7 to 13).
#pragma once

#include "samba/backends/gpu/attention_scores.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

template <int kDepths, bool kOneLeaf>
SAMBA_KERNEL(kAttentionThreads)
attention_queries(Attention g) {
  SAMBA_SHARED(float, slices, Slices<kDepths>::kFloats);
  SAMBA_SHARED(float, cells, kQueries* kTilePitch);
  SAMBA_SHARED(float, maxima, kQueries);
  SAMBA_SHARED(float, denominators, kQueries);
  const QueryTile tile = query_tile(g);
  const Visible visible = visible_cells(g, tile, my_query() < tile.count ? my_query() : 0);
  const Visible span = tile_span(g, tile);
  const auto thread = static_cast<int>(thread_index());
  Score scores[kTileCells];
  float values[kTileCells];

  // Masked keys take part in the maximum.
  float maximum = 0.0F;
  for (Index first = 0; first < g.keys; first += kKeys) {
    tile_scores<kOneLeaf>(g, tile, visible, first, slices, scores);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      cells[my_query() * kTilePitch + my_cell(i)] = scores[i].masked;
      const Index at = stage_row(g, tile, my_query()) * g.keys + s;
      if (g.stages.scores != nullptr) g.stages.scores[at] = scores[i].score;
      if (g.stages.masked != nullptr) g.stages.masked[at] = scores[i].masked;
    });
    barrier();
    if (owns_query(tile)) {
      const float* row = cells + thread * kTilePitch;
      if (first == 0) maximum = samba::max(row[0], row[0]);
      for (int k = 0; k < kKeys && first + k < g.keys; ++k) maximum = samba::max(maximum, row[k]);
    }
    barrier();
  }
  if (owns_query(tile)) {
    maxima[thread] = maximum;
    if (g.stages.maximum != nullptr) g.stages.maximum[stage_row(g, tile, thread)] = maximum;
  }
  barrier();

  const auto exponentials = [&](Index first) {
    tile_scores<kOneLeaf>(g, tile, visible, first, slices, scores);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      if (visible.sees(s)) values[i] = flush(elementary::exp(sub(scores[i].masked, maxima[my_query()])));
    });
  };
  float denominator = 0.0F;
  for (Index first = span.first; first < span.end; first += kKeys) {
    exponentials(first);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      if (!visible.sees(s)) return;
      cells[my_query() * kTilePitch + my_cell(i)] = values[i];
      if (g.stages.exponentials != nullptr) {
        g.stages.exponentials[stage_row(g, tile, my_query()) * g.keys + s] = values[i];
      }
    });
    barrier();
    if (owns_query(tile)) {
      const Visible mine = visible_cells(g, tile, thread);
      for (int k = 0; k < kKeys; ++k) {
        if (mine.sees(first + k)) denominator = add(denominator, cells[thread * kTilePitch + k]);
      }
    }
    barrier();
  }
  if (owns_query(tile)) {
    denominators[thread] = denominator;
    if (g.stages.denominators != nullptr) g.stages.denominators[stage_row(g, tile, thread)] = denominator;
  }
  if (g.context == nullptr) return;
  barrier();

  for (Index depth = 0; depth < g.head_dim; depth += kDepths) {
    float sums[kDepths / kQueryThreads];
    for (int i = 0; i < kDepths / kQueryThreads; ++i) sums[i] = 0.0F;
    for (Index first = span.first; first < span.end; first += kKeys) {
      exponentials(first);
      for_tile_cells(g, tile, first, [&](int i, Index s) {
        if (!visible.sees(s)) return;
        const float weight = div(values[i], denominators[my_query()]);
        cells[my_query() * kTilePitch + my_cell(i)] = weight;
        if (g.stages.weights != nullptr) g.stages.weights[stage_row(g, tile, my_query()) * g.keys + s] = weight;
      });
      add_values<kDepths>(
          g, tile, visible, first, depth, cells, slices,
          [&](Index s) { return g.view.values + g.view.row(tile.b, tile.kv_head, g.first_key + s); }, sums);
    }
    if (my_query() < tile.count) {
      for (int i = 0; i < kDepths / kQueryThreads; ++i) {
        const Index d = depth + my_cell(i);
        if (d < g.head_dim) g.context[query_row(g, tile, my_query()) * g.head_dim + d] = sums[i];
      }
    }
  }
}

struct StoreKeysValues {
  AttentionShape shape;
  const float *k, *v;
  float *keys, *values;
  KeyValueView layout;
  SAMBA_DEVICE void operator()(Index i) const {
    const Index d = i % shape.head_dim;
    const Index row = i / shape.head_dim;
    const Index g = row % shape.n_kv_heads;
    const Index token = row / shape.n_kv_heads;
    const Index b = token / shape.queries, t = token % shape.queries;
    // A ring keeps the last token of a slot.
    if (layout.ring > 0 && t + layout.ring < shape.queries) return;
    const Index to = layout.row(b, g, shape.first_position + t) + d;
    keys[to] = k[i];
    values[to] = v[i];
  }
};

}  // namespace

}  // namespace samba::SAMBA_GPU
