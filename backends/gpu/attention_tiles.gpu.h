// What the kernels of attention and of its gradients share. A block takes kQueries queries of one head and goes over
// the keys of their span kKeys at a time. The products of a tile lie in shared memory; the chains over the keys of a
// query run in ascending order, many queries and depths side by side.
#pragma once

#include "samba/backends/gpu/families.h"

namespace samba::SAMBA_GPU {

namespace {

inline constexpr int kQueries = 16;
inline constexpr int kKeys = 32;
inline constexpr int kAttentionThreads = 128;
inline constexpr int kSliceDepth = static_cast<int>(kLeaf);  // of a leaf of the products over head_dim
inline constexpr int kSlicePitch = kSliceDepth + 1;
inline constexpr int kTilePitch = kKeys + 1;
inline constexpr int kQueryThreads = kAttentionThreads / kQueries;  // that share a query
inline constexpr int kTileCells = kKeys / kQueryThreads;            // of a tile, one thread
inline constexpr float kMaskedBias = from_bits(0xFF7FFFFFU);        // -FLT_MAX

// What kernels know of a call. Rows of q: [batch * queries, n_heads * head_dim].
struct Attention {
  Index batch, queries, n_heads, n_kv_heads, head_dim;
  Index first_position, first_key, keys, window;
  float softcap;
  bool has_softcap;
  float scale;
  const float* q;
  KeyValueView view;
  const std::int16_t* q_codes;  // of fixed15_v1, as q
  const std::int32_t* q_exponents;
  float* context;  // null: the maxima and denominators alone are wanted
  AttentionStages stages;
};

// The queries and the head of this block. Cells of a row are span indices s: key first_key + s.
struct QueryTile {
  Index b, head, kv_head, first;  // of its queries
  int count;
};

SAMBA_DEVICE QueryTile query_tile(const Attention& g) {
  QueryTile tile;
  tile.b = block_z();
  tile.head = block_y();
  tile.kv_head = tile.head / (g.n_heads / g.n_kv_heads);
  tile.first = static_cast<Index>(block_x()) * kQueries;
  tile.count = g.queries - tile.first < kQueries ? static_cast<int>(g.queries - tile.first) : kQueries;
  return tile;
}

SAMBA_DEVICE Index query_row(const Attention& g, const QueryTile& tile, int r) {
  return (tile.b * g.queries + tile.first + r) * g.n_heads + tile.head;
}

// The visible cells of query r: [first, end).
struct Visible {
  Index first, end;
  SAMBA_DEVICE bool sees(Index s) const { return s >= first && s < end; }
};

SAMBA_DEVICE Visible visible_cells(const Attention& g, const QueryTile& tile, int r) {
  const Index position = g.first_position + tile.first + r;
  const Index first = g.window == 0 || position < g.window ? 0 : position - g.window + 1;
  return {first - g.first_key, position + 1 - g.first_key};
}

SAMBA_DEVICE int my_query() { return static_cast<int>(thread_index()) / kQueryThreads; }
SAMBA_DEVICE int my_cell(int i) { return static_cast<int>(thread_index()) % kQueryThreads + i * kQueryThreads; }

// The trees of this thread's cells of a tile, whose leaves end together: TreeFold for each, with one count.
template <bool kOneLeaf>
class TileTrees {
 public:
  SAMBA_DEVICE void push(const float* partials) {
    for (int i = 0; i < kTileCells; ++i) stack_[depth_][i] = partials[i];
    ++depth_;
    ++pushed_;
    for (int rest = pushed_; (rest & 1) == 0; rest >>= 1) merge();
  }
  SAMBA_DEVICE void finish(float* sums) {
    while (depth_ > 1) merge();
    for (int i = 0; i < kTileCells; ++i) sums[i] = stack_[0][i];
  }

 private:
  SAMBA_DEVICE void merge() {
    for (int i = 0; i < kTileCells; ++i) {
      stack_[depth_ - 2][i] = flush(stack_[depth_ - 2][i] + stack_[depth_ - 1][i]);
    }
    --depth_;
  }
  float stack_[kMaxTreeDepth + 1][kTileCells] = {};
  int depth_ = 0;
  int pushed_ = 0;
};

// A tree of one leaf is that leaf: nothing is stacked.
template <>
class TileTrees<true> {
 public:
  SAMBA_DEVICE void push(const float* partials) {
    for (int i = 0; i < kTileCells; ++i) sums_[i] = partials[i];
  }
  SAMBA_DEVICE void finish(float* sums) {
    for (int i = 0; i < kTileCells; ++i) sums[i] = sums_[i];
  }

 private:
  float sums_[kTileCells] = {};
};

// dots[i] = q row my_query() . keys row of cell first_cell + my_cell(i), the fold of the matrix product. keys(s): the
// row of cell s. slices: (kQueries + kKeys) * kSlicePitch floats of shared memory. kOneLeaf: head_dim is at most kLeaf.
template <bool kOneLeaf, class Keys>
SAMBA_DEVICE void tile_dots(const Attention& g, const float* q, const QueryTile& tile, Index first_cell, float* slices,
                            Keys&& keys, float* dots) {
  float* q_slice = slices;
  float* k_slice = slices + kQueries * kSlicePitch;
  const Index leaf = kOneLeaf ? g.head_dim : leaf_length(g.head_dim);
  TileTrees<kOneLeaf> trees;
  for (Index first = 0; first < g.head_dim; first += leaf) {
    float acc[kTileCells];
    for (int i = 0; i < kTileCells; ++i) acc[i] = 0.0F;
    const Index leaf_end = first + leaf < g.head_dim ? first + leaf : g.head_dim;
    for (Index p = first; p < leaf_end; p += kSliceDepth) {
      const int length = leaf_end - p < kSliceDepth ? static_cast<int>(leaf_end - p) : kSliceDepth;
      for (int e = static_cast<int>(thread_index()); e < (kQueries + kKeys) * length; e += kAttentionThreads) {
        const int row = e / length, d = e % length;
        if (row < kQueries) {
          if (row < tile.count) {
            q_slice[row * kSlicePitch + d] = flush(q[query_row(g, tile, row) * g.head_dim + p + d]);
          }
        } else if (first_cell + row - kQueries < g.keys) {
          k_slice[(row - kQueries) * kSlicePitch + d] = flush(keys(first_cell + row - kQueries)[p + d]);
        }
      }
      barrier();
      const float* mine = q_slice + my_query() * kSlicePitch;
      if (my_query() < tile.count) {
        for (int d = 0; d < length; ++d) {
          SAMBA_UNROLL
          for (int i = 0; i < kTileCells; ++i) {
            acc[i] = flush(fma(mine[d], k_slice[my_cell(i) * kSlicePitch + d], acc[i]));
          }
        }
      }
      barrier();
    }
    trees.push(acc);
  }
  trees.finish(dots);
}

// One thread a query: kQueries threads hold the maximum and the denominator of a query each.
SAMBA_DEVICE bool owns_query(const QueryTile& tile) { return static_cast<int>(thread_index()) < tile.count; }

// The cells that any query of the tile sees.
SAMBA_DEVICE Visible tile_span(const Attention& g, const QueryTile& tile) {
  return {visible_cells(g, tile, 0).first / kKeys * kKeys, visible_cells(g, tile, tile.count - 1).end};
}

template <class Store>
SAMBA_DEVICE void for_tile_cells(const Attention& g, const QueryTile& tile, Index first_cell, Store&& store) {
  if (my_query() >= tile.count) return;
  for (int i = 0; i < kTileCells; ++i) {
    const Index s = first_cell + my_cell(i);
    if (s < g.keys) store(i, s);
  }
}

// Floats of a stage [batch, n_heads, queries, keys] before the row of query r.
SAMBA_DEVICE Index stage_row(const Attention& g, const QueryTile& tile, int r) {
  return (tile.b * g.n_heads + tile.head) * g.queries + tile.first + r;
}

// Step 13 for the depths [first_depth, first_depth + kDepths): one chain over the visible keys a depth; values(s) is
// the row of cell s. `weights` of the tile in shared memory, `value_slice`: kKeys * (kDepths + 1) floats of it.
template <int kDepths, class Values>
SAMBA_DEVICE void add_values(const Attention& g, const QueryTile& tile, const Visible& visible, Index first_cell,
                             Index first_depth, const float* weights, float* value_slice, Values&& values,
                             float* sums) {
  constexpr int kCells = kDepths / kQueryThreads;
  constexpr int kPitch = kDepths + 1;
  const int depths = g.head_dim - first_depth < kDepths ? static_cast<int>(g.head_dim - first_depth) : kDepths;
  const int keys = g.keys - first_cell < kKeys ? static_cast<int>(g.keys - first_cell) : kKeys;
  for (int e = static_cast<int>(thread_index()); e < keys * depths; e += kAttentionThreads) {
    value_slice[e / depths * kPitch + e % depths] = flush(values(first_cell + e / depths)[first_depth + e % depths]);
  }
  barrier();
  if (my_query() < tile.count) {
    for (int k = 0; k < keys; ++k) {
      if (!visible.sees(first_cell + k)) continue;
      const float weight = weights[my_query() * kTilePitch + k];
      SAMBA_UNROLL
      for (int i = 0; i < kCells; ++i) {
        sums[i] = flush(fma(weight, value_slice[k * kPitch + my_cell(i)], sums[i]));
      }
    }
  }
  barrier();
}

// Floats of shared memory that the slices of products and of values share.
template <int kDepths>
struct Slices {
  static constexpr int kProducts = (kQueries + kKeys) * kSlicePitch;
  static constexpr int kValues = kKeys * (kDepths + 1);
  static constexpr int kFloats = kProducts > kValues ? kProducts : kValues;
};

}  // namespace

}  // namespace samba::SAMBA_GPU
