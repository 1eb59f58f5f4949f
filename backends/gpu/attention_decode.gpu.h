// Attention of few queries over a long cache (a decode step), in three launches with blocks over keys, heads and
// depths: masked scores, the softmax of each row, the sums of the values. What a fold orders stays one chain: a row's
// denominator and the sum of a depth; everything else is done side by side.
#pragma once

#include "samba/backends/gpu/attention_scores.gpu.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr Index kFewQueries = 4;
inline constexpr int kScoreKeys = 128;  // of a block, one a thread
inline constexpr int kScoreDepths = 32;
inline constexpr int kScorePitch = kScoreDepths + 1;
inline constexpr int kSoftmaxThreads = 256;
inline constexpr int kMeetingLanes = 32;
inline constexpr int kValueThreads = 128;
inline constexpr int kValueKeys = 64;
inline constexpr int kValueDepths = 32;

// The query of this block as a tile of one: block_y its head, block_z its batch row and token.
SAMBA_DEVICE QueryTile single_query(const Attention& g) {
  QueryTile tile;
  tile.b = block_z() / g.queries;
  tile.head = block_y();
  tile.kv_head = tile.head / (g.n_heads / g.n_kv_heads);
  tile.first = block_z() % g.queries;
  tile.count = 1;
  return tile;
}

// masked[row, s], rows as stages have them. Blocks: kScoreKeys cells, heads, queries.
template <bool kOneLeaf>
SAMBA_KERNEL_BLOCKS(kScoreKeys, 10)
decode_scores(Attention g, float* masked) {
  SAMBA_SHARED(float, key_slice, kScoreKeys* kScorePitch);
  SAMBA_SHARED(float, q_slice, kScoreDepths);
  const QueryTile tile = single_query(g);
  const auto thread = static_cast<int>(thread_index());
  const Index first = static_cast<Index>(block_x()) * kScoreKeys;
  const int count = g.keys - first < kScoreKeys ? static_cast<int>(g.keys - first) : kScoreKeys;
  const auto key = [&](Index s) { return g.view.row(tile.b, tile.kv_head, g.first_key + s); };
  const Index query = query_row(g, tile, 0);
  float product = 0.0F;
  if (g.view.key_codes != nullptr) {
    if (thread < count) product = code_dot(g, query, key(first + thread));
  } else {
    const Index leaf = kOneLeaf ? g.head_dim : leaf_length(g.head_dim);
    TreeFold tree;  // of one leaf: that leaf
    for (Index start = 0; start < g.head_dim; start += leaf) {
      const Index end = start + leaf < g.head_dim ? start + leaf : g.head_dim;
      float acc = 0.0F;
      for (Index p = start; p < end; p += kScoreDepths) {
        const int length = end - p < kScoreDepths ? static_cast<int>(end - p) : kScoreDepths;
        const int d = thread % kScoreDepths;
        if (d < length) {
          for (int row = thread / kScoreDepths; row < count; row += kScoreKeys / kScoreDepths) {
            key_slice[row * kScorePitch + d] = flush(g.view.keys[key(first + row) + p + d]);
          }
        }
        if (thread < length) q_slice[thread] = flush(g.q[query * g.head_dim + p + thread]);
        barrier();
        if (thread < count) {
          for (int i = 0; i < length; ++i) acc = flush(fma(q_slice[i], key_slice[thread * kScorePitch + i], acc));
        }
        barrier();
      }
      if constexpr (kOneLeaf) {
        product = acc;
      } else {
        tree.push(acc);
      }
    }
    if constexpr (!kOneLeaf) product = tree.finish();
  }
  if (thread >= count) return;
  const bool visible = visible_cells(g, tile, 0).sees(first + thread);
  masked[stage_row(g, tile, 0) * g.keys + first + thread] = score_of(g, product, visible).masked;
}

// The masked scores of a row become its weights, where the query sees the key. Blocks: one, heads, queries.
SAMBA_KERNEL(kSoftmaxThreads)
decode_softmax(Attention g, float* masked) {
  SAMBA_SHARED(float, maxima, kSoftmaxThreads / kMeetingLanes);
  SAMBA_SHARED(float, tile_values, kSoftmaxThreads);
  SAMBA_SHARED(float, denominator, 1);
  const QueryTile tile = single_query(g);
  const auto thread = static_cast<int>(thread_index());
  float* row = masked + stage_row(g, tile, 0) * g.keys;
  // The maximum of any order is the same: it is the largest in a total order, or the one NaN.
  float maximum = -kInfinity;
  for (Index s = thread; s < g.keys; s += kSoftmaxThreads) maximum = samba::max(maximum, row[s]);
  for (int h = kMeetingLanes / 2; h >= 1; h /= 2) maximum = samba::max(maximum, shuffle_xor(maximum, h));
  if (thread % kMeetingLanes == 0) maxima[thread / kMeetingLanes] = maximum;
  barrier();
  for (int i = 0; i < kSoftmaxThreads / kMeetingLanes; ++i) maximum = samba::max(maximum, maxima[i]);

  const Visible visible = visible_cells(g, tile, 0);
  float sum = 0.0F;
  for (Index first = visible.first; first < visible.end; first += kSoftmaxThreads) {
    const Index s = first + thread;
    if (s < visible.end) {
      const float exponential = flush(elementary::exp(sub(row[s], maximum)));
      row[s] = exponential;
      tile_values[thread] = exponential;
    }
    barrier();
    if (thread == 0) {
      const int count = visible.end - first < kSoftmaxThreads ? static_cast<int>(visible.end - first) : kSoftmaxThreads;
      // Zeros and normal numbers of one sign: no sum of them is subnormal.
      for (int i = 0; i < count; ++i) sum = sum + tile_values[i];
    }
    barrier();
  }
  if (thread == 0) denominator[0] = sum;
  barrier();
  for (Index s = visible.first + thread; s < visible.end; s += kSoftmaxThreads) row[s] = div(row[s], denominator[0]);
}

// context[row, d] = one chain over the keys that the query sees. While a warp goes along a tile of values, the next
// tile is on its way to the registers of all. Blocks: kValueDepths depths, heads, queries.
SAMBA_KERNEL(kValueThreads)
decode_values(Attention g, const float* weights) {
  constexpr int kLoads = kValueKeys * kValueDepths / kValueThreads;
  SAMBA_SHARED(float, value_tile, kValueKeys* kValueDepths);
  SAMBA_SHARED(float, weight_tile, kValueKeys);
  const QueryTile tile = single_query(g);
  const auto thread = static_cast<int>(thread_index());
  const Index depth = static_cast<Index>(block_x()) * kValueDepths + thread % kValueDepths;
  const float* row = weights + stage_row(g, tile, 0) * g.keys;
  const Visible visible = visible_cells(g, tile, 0);
  float values[kLoads], weight = 0.0F;
  const auto fetch = [&](Index first) {
    SAMBA_UNROLL
    for (int i = 0; i < kLoads; ++i) {
      const Index s = first + (thread + i * kValueThreads) / kValueDepths;
      const bool there = s < visible.end && depth < g.head_dim;
      values[i] = there ? g.view.values[g.view.row(tile.b, tile.kv_head, g.first_key + s) + depth] : 0.0F;
    }
    if (thread < kValueKeys && first + thread < visible.end) weight = row[first + thread];
  };
  fetch(visible.first);
  float sum = 0.0F;
  for (Index first = visible.first; first < visible.end; first += kValueKeys) {
    SAMBA_UNROLL
    for (int i = 0; i < kLoads; ++i) value_tile[thread + i * kValueThreads] = flush(values[i]);
    if (thread < kValueKeys) weight_tile[thread] = weight;
    barrier();
    if (first + kValueKeys < visible.end) fetch(first + kValueKeys);
    if (thread < kValueDepths) {
      const int count = visible.end - first < kValueKeys ? static_cast<int>(visible.end - first) : kValueKeys;
      for (int k = 0; k < count; ++k) sum = flush(fma(weight_tile[k], value_tile[k * kValueDepths + thread], sum));
    }
    barrier();
  }
  if (thread < kValueDepths && depth < g.head_dim) g.context[query_row(g, tile, 0) * g.head_dim + depth] = sum;
}

// Whether the call is of the kind above; the grid has one block_z a query.
bool has_few_queries(const Attention& g) { return g.queries <= kFewQueries && g.batch * g.queries <= 65535; }

void launch_decode(Context& context, const Attention& g) {
  const Workspace::Scope scope(context.workspace());
  float* cells = context.workspace().floats(g.batch * g.n_heads * g.queries * g.keys);
  const auto heads = static_cast<unsigned>(g.n_heads), rows = static_cast<unsigned>(g.batch * g.queries);
  const auto tiles = static_cast<unsigned>((g.keys + kScoreKeys - 1) / kScoreKeys);
  const auto depths = static_cast<unsigned>((g.head_dim + kValueDepths - 1) / kValueDepths);
  const auto scores = g.head_dim <= kLeaf ? decode_scores<true> : decode_scores<false>;
  launch(context, Grid{tiles, heads, rows}, kScoreKeys, scores, g, cells);
  launch(context, Grid{1, heads, rows}, kSoftmaxThreads, decode_softmax, g, cells);
  launch(context, Grid{depths, heads, rows}, kValueThreads, decode_values, g, cells);
}

}  // namespace

}  // namespace samba::SAMBA_GPU
