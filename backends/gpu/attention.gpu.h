// Causal attention in three passes over the keys, without a buffer of L x L scores: maxima, denominators, and the sum
// of the values; the scores of a tile are computed again in each (spec 20 section 3 steps 7 to 13).
//
// A block takes kQueries queries of one head and goes over the keys of their span kKeys at a time. The products of a
// tile lie in shared memory; the chains over the keys of a query (denominator, values) run in ascending order, many
// queries and depths side by side.
#pragma once

#include "samba/backends/gpu/families.h"
#include "samba/numerics/fixed15.h"

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
  float* context;  // null: the weights alone are wanted
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

// dots[i] = q row my_query() . keys row of cell first_cell + my_cell(i), the fold of the matrix product. keys(s): the
// row of cell s. slices: (kQueries + kKeys) * kSlicePitch floats of shared memory.
template <class Keys>
SAMBA_DEVICE void tile_dots(const Attention& g, const float* q, const QueryTile& tile, Index first_cell, float* slices,
                            Keys&& keys, float* dots) {
  float* q_slice = slices;
  float* k_slice = slices + kQueries * kSlicePitch;
  const Index leaf = leaf_length(g.head_dim);
  TreeFold trees[kTileCells];
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
    for (int i = 0; i < kTileCells; ++i) trees[i].push(acc[i]);
  }
  for (int i = 0; i < kTileCells; ++i) dots[i] = trees[i].finish();
}

// The same from codes: the sums are exact.
SAMBA_DEVICE void tile_code_dots(const Attention& g, const QueryTile& tile, Index first_cell, float* dots) {
  for (int i = 0; i < kTileCells; ++i) {
    const Index s = first_cell + my_cell(i);
    dots[i] = 0.0F;
    if (my_query() >= tile.count || s >= g.keys) continue;
    const Index row = query_row(g, tile, my_query());
    const Index key = g.view.row(tile.b, tile.kv_head, g.first_key + s);
    std::int64_t sum = 0;
    for (Index d = 0; d < g.head_dim; ++d) {
      sum += static_cast<std::int32_t>(g.q_codes[row * g.head_dim + d]) *
             static_cast<std::int32_t>(g.view.key_codes[key + d]);
    }
    dots[i] = fixed15_cell(sum, g.q_exponents[row], g.view.key_exponents[key / g.head_dim]);
  }
}

// masked[i] = steps 7 to 9 for this thread's cells of the tile.
SAMBA_DEVICE void masked_scores(const Attention& g, const QueryTile& tile, const Visible& visible, Index first_cell,
                                float* slices, float* masked, float* raw) {
  if (g.view.key_codes != nullptr) {
    tile_code_dots(g, tile, first_cell, raw);
  } else {
    tile_dots(
        g, g.q, tile, first_cell, slices,
        [&](Index s) { return g.view.keys + g.view.row(tile.b, tile.kv_head, g.first_key + s); }, raw);
  }
  for (int i = 0; i < kTileCells; ++i) {
    raw[i] = mul(raw[i], g.scale);
    if (g.has_softcap) {
      const float cap = flush(g.softcap);
      raw[i] = mul(flush(elementary::tanh(div(raw[i], cap))), cap);
    }
    masked[i] = add(raw[i], visible.sees(first_cell + my_cell(i)) ? 0.0F : kMaskedBias);
  }
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

template <int kDepths>
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
  float masked[kTileCells], raw[kTileCells];

  // Masked keys take part in the maximum.
  float maximum = 0.0F;
  for (Index first = 0; first < g.keys; first += kKeys) {
    masked_scores(g, tile, visible, first, slices, masked, raw);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      cells[my_query() * kTilePitch + my_cell(i)] = masked[i];
      const Index at = stage_row(g, tile, my_query()) * g.keys + s;
      if (g.stages.scores != nullptr) g.stages.scores[at] = raw[i];
      if (g.stages.masked != nullptr) g.stages.masked[at] = masked[i];
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
    masked_scores(g, tile, visible, first, slices, masked, raw);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      if (visible.sees(s)) raw[i] = flush(elementary::exp(sub(masked[i], maxima[my_query()])));
    });
  };
  float denominator = 0.0F;
  for (Index first = span.first; first < span.end; first += kKeys) {
    exponentials(first);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      if (!visible.sees(s)) return;
      cells[my_query() * kTilePitch + my_cell(i)] = raw[i];
      if (g.stages.exponentials != nullptr) {
        g.stages.exponentials[stage_row(g, tile, my_query()) * g.keys + s] = raw[i];
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
  barrier();

  for (Index depth = 0; depth < g.head_dim; depth += kDepths) {
    float sums[kDepths / kQueryThreads];
    for (int i = 0; i < kDepths / kQueryThreads; ++i) sums[i] = 0.0F;
    for (Index first = span.first; first < span.end; first += kKeys) {
      exponentials(first);
      for_tile_cells(g, tile, first, [&](int i, Index s) {
        if (!visible.sees(s)) return;
        const float weight = div(raw[i], denominators[my_query()]);
        cells[my_query() * kTilePitch + my_cell(i)] = weight;
        if (g.stages.weights != nullptr) g.stages.weights[stage_row(g, tile, my_query()) * g.keys + s] = weight;
      });
      if (g.context == nullptr) continue;
      add_values<kDepths>(
          g, tile, visible, first, depth, cells, slices,
          [&](Index s) { return g.view.values + g.view.row(tile.b, tile.kv_head, g.first_key + s); }, sums);
    }
    if (g.context == nullptr) return;
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

// The gradients of one batch row (spec 21 section 5 steps 9 to 14). weights and d_scores: [n_heads, L, L].
struct AttentionGradient {
  Attention g;  // q: d_context, view.keys: the values; for tile_dots
  const float *q, *k;
  const float* weights;
  float *d_scores, *dq;
  AttentionBackwardStages stages;
};

template <int kDepths>
SAMBA_KERNEL(kAttentionThreads)
attention_query_gradients(AttentionGradient r) {
  SAMBA_SHARED(float, slices, Slices<kDepths>::kFloats);
  SAMBA_SHARED(float, cells, kQueries* kTilePitch);
  SAMBA_SHARED(float, z_dots, kQueries);
  const Attention& g = r.g;
  const QueryTile tile = query_tile(g);
  const Visible visible = visible_cells(g, tile, my_query() < tile.count ? my_query() : 0);
  const Visible span = tile_span(g, tile);
  const auto thread = static_cast<int>(thread_index());
  float d_weights[kTileCells];
  const auto gradients = [&](Index first) {
    tile_dots(
        g, g.q, tile, first, slices, [&](Index s) { return g.view.keys + g.view.row(tile.b, tile.kv_head, s); },
        d_weights);
  };

  float z = 0.0F;
  for (Index first = span.first; first < span.end; first += kKeys) {
    gradients(first);
    for_tile_cells(g, tile, first, [&](int i, Index s) {
      if (!visible.sees(s)) return;
      cells[my_query() * kTilePitch + my_cell(i)] = d_weights[i];
      if (r.stages.d_weights != nullptr) {
        r.stages.d_weights[stage_row(g, tile, my_query()) * g.keys + s] = d_weights[i];
      }
    });
    barrier();
    if (owns_query(tile)) {
      const Visible mine = visible_cells(g, tile, thread);
      const float* weights = r.weights + stage_row(g, tile, thread) * g.keys;
      for (int k = 0; k < kKeys; ++k) {
        if (mine.sees(first + k)) z = mad(cells[thread * kTilePitch + k], weights[first + k], z);
      }
    }  // the barriers of the next tile_dots stand before anyone writes cells again
  }
  if (owns_query(tile)) {
    z_dots[thread] = z;
    if (r.stages.z_dot != nullptr) r.stages.z_dot[stage_row(g, tile, thread)] = z;
  }  // and before anyone reads z_dots

  for (Index depth = 0; depth < g.head_dim; depth += kDepths) {
    float sums[kDepths / kQueryThreads];
    for (int i = 0; i < kDepths / kQueryThreads; ++i) sums[i] = 0.0F;
    for (Index first = span.first; first < span.end; first += kKeys) {
      gradients(first);
      for_tile_cells(g, tile, first, [&](int i, Index s) {
        if (!visible.sees(s)) return;
        const Index at = stage_row(g, tile, my_query()) * g.keys + s;
        const float d_masked = mul(r.weights[at], sub(d_weights[i], z_dots[my_query()]));
        const float d_score = mul(d_masked, g.scale);
        cells[my_query() * kTilePitch + my_cell(i)] = d_score;
        r.d_scores[at] = d_score;
        if (r.stages.d_masked != nullptr) r.stages.d_masked[at] = d_masked;
        if (r.stages.d_scores != nullptr) r.stages.d_scores[at] = d_score;
      });
      add_values<kDepths>(
          g, tile, visible, first, depth, cells, slices,
          [&](Index s) { return r.k + g.view.row(tile.b, tile.kv_head, s); }, sums);
    }
    if (my_query() < tile.count) {
      for (int i = 0; i < kDepths / kQueryThreads; ++i) {
        const Index d = depth + my_cell(i);
        if (d < g.head_dim) r.dq[query_row(g, tile, my_query()) * g.head_dim + d] = sums[i];
      }
    }
  }
}

// dk[s, d] and dv[s, d]: one chain over the heads of the group and the queries of each that see the key, ascending. A
// thread takes one key and depth.
struct KeyGradients {
  Attention g;
  const float *q, *d_context, *weights, *d_scores;
  float *dk, *dv;
  SAMBA_DEVICE void operator()(Index index) const {
    const Index kv_width = g.n_kv_heads * g.head_dim;
    const Index s = index / kv_width;
    const Index kv_head = index % kv_width / g.head_dim, d = index % g.head_dim;
    const Index group = g.n_heads / g.n_kv_heads;
    const Index end = g.window == 0 || s + g.window > g.queries ? g.queries : s + g.window;
    float key = 0.0F, value = 0.0F;
    for (Index head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (Index t = s; t < end; ++t) {
        const Index cell = (head * g.queries + t) * g.keys + s;
        const Index at = (t * g.n_heads + head) * g.head_dim + d;
        key = mad(d_scores[cell], q[at], key);
        value = mad(weights[cell], d_context[at], value);
      }
    }
    dk[index] = key;
    dv[index] = value;
  }
};

Attention attention_of(const AttentionShape& shape) {
  Attention g{};
  g.batch = shape.batch;
  g.queries = shape.queries;
  g.n_heads = shape.n_heads;
  g.n_kv_heads = shape.n_kv_heads;
  g.head_dim = shape.head_dim;
  g.first_position = shape.first_position;
  g.first_key = shape.first_key();
  g.keys = shape.keys();
  g.window = shape.window;
  g.has_softcap = shape.softcap.has_value();
  g.softcap = shape.softcap.value_or(0.0F);
  g.scale = elementary::rsqrt(static_cast<float>(shape.head_dim));
  return g;
}

Grid query_grid(const Attention& g) {
  return Grid{static_cast<unsigned>((g.queries + kQueries - 1) / kQueries), static_cast<unsigned>(g.n_heads),
              static_cast<unsigned>(g.batch)};
}

class AttentionGpu final : public AttentionKernels {
 public:
  explicit AttentionGpu(Context& context) : context_(context) {}

  void attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                         const AttentionStages& stages) override {
    const Workspace::Scope scope(context_.workspace());
    Attention g = attention_of(shape);
    g.q = q;
    g.view = view;
    g.context = context;
    g.stages = stages;
    if (view.key_codes != nullptr) {
      const Index rows = shape.batch * shape.queries * shape.n_heads;
      std::int16_t* codes = context_.workspace().codes(rows * shape.head_dim);
      std::int32_t* exponents = context_.workspace().ints(rows);
      launch_quantize(context_, rows, shape.head_dim, q, codes, exponents);
      g.q_codes = codes;
      g.q_exponents = exponents;
    }
    const Index cells = g.batch * g.n_heads * g.queries * g.keys;
    zero(stages.exponentials, cells);  // masked keys
    zero(stages.weights, cells);
    launch_queries(g);
  }

  void attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                          const float* d_context, float* dq, float* dk, float* dv,
                          const AttentionBackwardStages& stages) override {
    const Index rows = shape.queries;
    const Index cells = shape.n_heads * rows * rows;
    const Index width = shape.n_heads * shape.head_dim, kv_width = shape.n_kv_heads * shape.head_dim;
    const Workspace::Scope scope(context_.workspace());
    float* weights = context_.workspace().floats(cells);
    float* d_scores = context_.workspace().floats(cells);
    for (float* stage : {stages.d_weights, stages.d_masked, stages.d_scores}) zero(stage, shape.batch * cells);
    Attention g = attention_of(shape);
    g.batch = 1;
    for (Index b = 0; b < shape.batch; ++b) {
      const Index at = b * rows * width, kv_at = b * rows * kv_width;
      g.q = q + at;
      g.view = KeyValueView{k + kv_at, v + kv_at, rows * kv_width, shape.head_dim, kv_width, 0, 0};
      g.context = nullptr;
      g.stages = AttentionStages{};
      g.stages.weights = weights;
      launch_queries(g);
      g.stages.weights = nullptr;

      AttentionGradient r{g, q + at, k + kv_at, weights, d_scores, dq + at, stages};
      r.g.q = d_context + at;
      r.g.view.keys = v + kv_at;
      offset(r.stages.d_weights, b * cells);
      offset(r.stages.d_masked, b * cells);
      offset(r.stages.d_scores, b * cells);
      offset(r.stages.z_dot, b * shape.n_heads * rows);
      launch_gradients(r);
      for_each(context_, rows * kv_width,
               KeyGradients{g, q + at, d_context + at, weights, d_scores, dk + kv_at, dv + kv_at});
    }
  }

  void store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys, float* values,
                         const KeyValueView& layout) override {
    for_each(context_, shape.batch * shape.queries * shape.n_kv_heads * shape.head_dim,
             StoreKeysValues{shape, k, v, keys, values, layout});
  }

 private:
  static void offset(float*& stage, Index floats) {
    if (stage != nullptr) stage += floats;
  }
  void zero(float* stage, Index floats) {
    if (stage != nullptr) context_.memory().fill_zero(stage, static_cast<std::size_t>(floats) * sizeof(float));
  }
  void launch_queries(const Attention& g) {
    if (g.head_dim <= 64) return launch(context_, query_grid(g), kAttentionThreads, attention_queries<64>, g);
    launch(context_, query_grid(g), kAttentionThreads, attention_queries<128>, g);
  }
  void launch_gradients(const AttentionGradient& r) {
    if (r.g.head_dim <= 64) {
      return launch(context_, query_grid(r.g), kAttentionThreads, attention_query_gradients<64>, r);
    }
    launch(context_, query_grid(r.g), kAttentionThreads, attention_query_gradients<128>, r);
  }

  Context& context_;
};

}  // namespace

std::unique_ptr<AttentionKernels> make_attention(Context& context) { return std::make_unique<AttentionGpu>(context); }

}  // namespace samba::SAMBA_GPU
