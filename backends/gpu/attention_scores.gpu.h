// Scores: from the products of a query with its keys to what the softmax reads (spec 20 section 3 steps 7 to 9).
#pragma once

#include "samba/backends/gpu/attention_tiles.gpu.h"
#include "samba/numerics/fixed15.h"

namespace samba::SAMBA_GPU {

namespace {

struct Score {
  float score, masked;
  float squashed;  // under a softcap, tanh(scaled product / cap)
};

SAMBA_DEVICE Score score_of(const Attention& g, float dot, bool visible) {
  Score s{mul(dot, g.scale), 0.0F, 0.0F};
  if (g.has_softcap) {
    const float cap = flush(g.softcap);
    s.squashed = flush(elementary::tanh(div(s.score, cap)));
    s.score = mul(s.squashed, cap);
  }
  s.masked = add(s.score, visible ? 0.0F : kMaskedBias);
  return s;
}

// The product of a row of q with a key from their codes: the sum is exact. `key`: the offset of the key's first code.
SAMBA_DEVICE float code_dot(const Attention& g, Index query, Index key) {
  std::int64_t sum = 0;
  for (Index d = 0; d < g.head_dim; ++d) {
    sum += static_cast<std::int32_t>(g.q_codes[query * g.head_dim + d]) *
           static_cast<std::int32_t>(g.view.key_codes[key + d]);
  }
  return fixed15_cell(sum, g.q_exponents[query], g.view.key_exponents[key / g.head_dim]);
}

// The scores of this thread's cells of a tile.
template <bool kOneLeaf>
SAMBA_DEVICE void tile_scores(const Attention& g, const QueryTile& tile, const Visible& visible, Index first_cell,
                              float* slices, Score* scores) {
  float dots[kTileCells];
  if (g.view.key_codes != nullptr) {
    for (int i = 0; i < kTileCells; ++i) {
      const Index s = first_cell + my_cell(i);
      dots[i] = my_query() < tile.count && s < g.keys
                    ? code_dot(g, query_row(g, tile, my_query()), g.view.row(tile.b, tile.kv_head, g.first_key + s))
                    : 0.0F;
    }
  } else {
    tile_dots<kOneLeaf>(
        g, g.q, tile, first_cell, slices,
        [&](Index s) { return g.view.keys + g.view.row(tile.b, tile.kv_head, g.first_key + s); }, dots);
  }
  for (int i = 0; i < kTileCells; ++i) scores[i] = score_of(g, dots[i], visible.sees(first_cell + my_cell(i)));
}

}  // namespace

}  // namespace samba::SAMBA_GPU
