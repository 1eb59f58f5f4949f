// Gradients of attention from an empty cache (spec 21 section 5 steps 9 to 14, section 11).
//
// A slot is the work of one block of consecutive queries of one head: its weights are rebuilt, then d_weights, z,
// d_scores and dQ follow, rows in lanes. dK and dV of a KV head are chains over (head of its group, query) ascending:
// the slots are added to them in that order, depth in lanes.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>  // first of all, it includes this file again for every target

#include "samba/backends/cpu/attention_softmax-inl.h"

#ifndef SAMBA_CPU_ATTENTION_BACKWARD_ARGUMENTS
#define SAMBA_CPU_ATTENTION_BACKWARD_ARGUMENTS
namespace samba::cpu {

struct AttentionGradient {
  AttentionShape shape;
  const float *q, *k, *v, *d_context;
  float *dq, *dk, *dv;
  AttentionBackwardStages stages;
};

struct AttentionBlockPlace {
  Index batch_row, head, first_query;
};

}  // namespace samba::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace attention {

// The parts of a slot's scratch memory.
struct Slot {
  Slot(const AttentionShape& shape, float* scratch)
      : width(round_up(shape.head_dim, kLanes)),
        panel(scratch),
        weights(panel + width * kBlockRows),
        d_scores(weights + shape.queries * kBlockRows),
        padded_q(d_scores + shape.queries * kBlockRows),
        padded_d_context(padded_q + kBlockRows * width),
        squashed(shape.softcap ? padded_d_context + kBlockRows * width : nullptr) {}

  Index width;                         // head_dim in whole vectors
  float* panel;                        // [width][kBlockRows]
  float *weights, *d_scores;           // tiles [key][kBlockRows]
  float *padded_q, *padded_d_context;  // [kBlockRows][width], where head_dim is no whole number of vectors
  float* squashed;                     // tile of the scores' tanh under a softcap
};

// Offsets and strides of one head in the arrays of a gradient.
struct HeadMap {
  HeadMap(const AttentionShape& shape, Index batch_row, Index head)
      : stride(shape.n_heads * shape.head_dim),
        kv_stride(shape.n_kv_heads * shape.head_dim),
        column(batch_row * shape.queries * stride + head * shape.head_dim),
        kv_column(batch_row * shape.queries * kv_stride + head / (shape.n_heads / shape.n_kv_heads) * shape.head_dim) {}
  Index stride, kv_stride, column, kv_column;
};

// z[row] = chain over the visible keys of d_weights * weights (step 10).
void z_chains(const RowBlock& block, const float* weights, const float* d_weights, float* z) {
  const Lanes d;
  Vector sum[2] = {hn::Zero(d), hn::Zero(d)};
  for (Index key = block.first; key < block.end; ++key) {
    const bool edge = key < block.inner_first || key >= block.inner_end;
    for (Index v = 0; v < 2; ++v) {
      const Index cell = key * kBlockRows + v * kLanes;
      const Vector next = mad(hn::LoadU(d, d_weights + cell), hn::LoadU(d, weights + cell), sum[v]);
      sum[v] = edge ? hn::IfThenElse(visible(block, v * kLanes, key), next, sum[v]) : next;
    }
  }
  keep(sum[0], z);
  keep(sum[1], z + kLanes);
}

// d_weights becomes d_masked = weight * (d_weight - z), then d_scores = d_masked * scale (step 11); under a softcap the
// slope 1 - t * t of the cap comes between.
void scores_gradient(const BlockCells& cells, const float* weights, const float* z, float scale,
                     const AttentionBackwardStages& stages) {
  const Lanes d;
  const RowBlock& block = *cells.block;
  const Vector shift[2] = {hn::LoadU(d, z), hn::LoadU(d, z + kLanes)};
  for (Index i = block.first * kBlockRows; i < block.end * kBlockRows; i += kLanes) {
    const Vector centred = flush_operand(d, hn::Sub(hn::LoadU(d, cells.tile + i), shift[i / kLanes % 2]));
    keep(flush_operand(d, hn::Mul(hn::LoadU(d, weights + i), centred)), cells.tile + i);
  }
  cells.record(stages.d_masked, false);
  if (cells.squashed != nullptr) {
    for (Index i = block.first * kBlockRows; i < block.end * kBlockRows; i += kLanes) {
      const Vector t = hn::LoadU(d, cells.squashed + i);
      const Vector slope = flush_operand(d, hn::Sub(hn::Set(d, 1.0F), flush_operand(d, hn::Mul(t, t))));
      keep(flush_operand(d, hn::Mul(hn::LoadU(d, cells.tile + i), slope)), cells.tile + i);
    }
  }
  const Vector factor = hn::Set(d, scale);
  for (Index i = block.first * kBlockRows; i < block.end * kBlockRows; i += kLanes) {
    keep(flush_operand(d, hn::Mul(hn::LoadU(d, cells.tile + i), factor)), cells.tile + i);
  }
  cells.record(stages.d_scores, false);
}

void pad_rows(const float* const* rows, Index count, Index head_dim, Index width, float* padded) {
  for (Index r = 0; r < count; ++r) {
    std::copy(rows[r], rows[r] + head_dim, padded + r * width);
    std::fill(padded + r * width + head_dim, padded + (r + 1) * width, 0.0F);
  }
}

// Fills the slot of a block and writes its rows of dq.
void attention_backward_block(const AttentionGradient& gradient, const AttentionBlockPlace& place,
                              std::uint32_t key_peak, float* scratch) {
  const AttentionShape& shape = gradient.shape;
  const HeadMap map(shape, place.batch_row, place.head);
  const Slot slot(shape, scratch);
  const Index rows = std::min(kBlockRows, shape.queries - place.first_query);
  const float* queries[static_cast<std::size_t>(kBlockRows)];
  const float* d_contexts[static_cast<std::size_t>(kBlockRows)];
  Index stage_rows[static_cast<std::size_t>(kBlockRows)];
  std::uint32_t query_peak = 0;
  for (Index r = 0; r < kBlockRows; ++r) {
    const Index query = place.first_query + std::min(r, rows - 1);
    queries[r] = gradient.q + map.column + query * map.stride;
    d_contexts[r] = gradient.d_context + map.column + query * map.stride;
    stage_rows[r] = (place.batch_row * shape.n_heads + place.head) * shape.queries + query;
    if (r < rows) query_peak = peak(queries[r], shape.head_dim, query_peak);
  }
  RowBlock block;
  block.set(shape, rows, [&](Index r) { return place.first_query + r; });
  const Rows keys{gradient.k + map.kv_column, map.kv_stride, INT64_MAX, 0};
  const Rows values{gradient.v + map.kv_column, map.kv_stride, INT64_MAX, 0};

  fill_panel(queries, shape.head_dim, slot.panel);
  const auto score = [&](float scale, Index first, Index end)
                         HWY_ATTR { product_panel(slot.panel, keys, shape.head_dim, scale, first, end, slot.weights); };
  softmax_block(shape, score, !masked_keys_are_harmless(shape.head_dim, query_peak, key_peak),
                BlockCells{&block, slot.weights, shape.queries, stage_rows, slot.squashed}, AttentionStages{});

  const BlockCells cells{&block, slot.d_scores, shape.queries, stage_rows, slot.squashed};
  fill_panel(d_contexts, shape.head_dim, slot.panel);
  product_panel(slot.panel, values, shape.head_dim, 1.0F, block.first, block.end, slot.d_scores);
  cells.record(gradient.stages.d_weights, false);
  alignas(64) float z[static_cast<std::size_t>(kBlockRows)];
  z_chains(block, slot.weights, slot.d_scores, z);
  cells.record_rows(gradient.stages.z_dot, z);
  scores_gradient(cells, slot.weights, z, samba::elementary::rsqrt(static_cast<float>(shape.head_dim)),
                  gradient.stages);

  chain_panel(block, slot.d_scores, keys, shape.head_dim, slot.panel);
  store_panel(slot.panel, rows, shape.head_dim,
              [&](Index r) { return gradient.dq + map.column + (place.first_query + r) * map.stride; });
  if (slot.width != shape.head_dim) {
    pad_rows(queries, rows, shape.head_dim, slot.width, slot.padded_q);
    pad_rows(d_contexts, rows, shape.head_dim, slot.width, slot.padded_d_context);
  }
}

// Adds a filled slot to the rows [first_key, end_key) of dk_sum and dv_sum [L][width].
void attention_backward_add(const AttentionGradient& gradient, const AttentionBlockPlace& place, float* scratch,
                            Index first_key, Index end_key, float* dk_sum, float* dv_sum) {
  const AttentionShape& shape = gradient.shape;
  const HeadMap map(shape, place.batch_row, place.head);
  const Slot slot(shape, scratch);
  const Index rows = std::min(kBlockRows, shape.queries - place.first_query);
  const Index from = map.column + place.first_query * map.stride;
  const bool padded = slot.width != shape.head_dim;
  const Rows queries =
      padded ? Rows{slot.padded_q, slot.width, INT64_MAX, 0} : Rows{gradient.q + from, map.stride, INT64_MAX, 0};
  const Rows d_contexts = padded ? Rows{slot.padded_d_context, slot.width, INT64_MAX, 0}
                                 : Rows{gradient.d_context + from, map.stride, INT64_MAX, 0};
  first_key = std::max(first_key, shape.first_visible(place.first_query));
  end_key = std::min(end_key, place.first_query + rows);
  // Queries [key, key + window) see a key.
  const auto begin = [&](Index key) { return std::max<Index>(key - place.first_query, 0); };
  const auto end = [&](Index key) {
    return shape.window == 0 ? rows : std::min(rows, key + shape.window - place.first_query);
  };
  accumulate_runs(Runs{dk_sum, slot.width, slot.d_scores, kBlockRows, queries}, first_key, end_key, begin, end);
  accumulate_runs(Runs{dv_sum, slot.width, slot.weights, kBlockRows, d_contexts}, first_key, end_key, begin, end);
}

// Writes finished rows [first_key, end_key) of the sums of the KV head of `head`.
void attention_backward_store(const AttentionGradient& gradient, Index batch_row, Index head, Index first_key,
                              Index end_key, const float* dk_sum, const float* dv_sum) {
  const AttentionShape& shape = gradient.shape;
  const HeadMap map(shape, batch_row, head);
  const Index width = round_up(shape.head_dim, kLanes);
  for (Index key = first_key; key < end_key; ++key) {
    float* dk = gradient.dk + map.kv_column + key * map.kv_stride;
    float* dv = gradient.dv + map.kv_column + key * map.kv_stride;
    for (Index d = 0; d < shape.head_dim; ++d) {
      dk[d] = flush(dk_sum[key * width + d]);
      dv[d] = flush(dv_sum[key * width + d]);
    }
  }
}

Index attention_backward_block_rows() { return kBlockRows; }

Index attention_backward_slot_floats(const AttentionShape& shape) {
  return (3 * round_up(shape.head_dim, kLanes) + (shape.softcap ? 3 : 2) * shape.queries) * kBlockRows;
}

Index attention_backward_sum_floats(const AttentionShape& shape) {  // of dk_sum alone
  return round_up(shape.queries * round_up(shape.head_dim, kLanes), kBlockRows);
}

}  // namespace attention

using attention::attention_backward_add;
using attention::attention_backward_block;
using attention::attention_backward_block_rows;
using attention::attention_backward_slot_floats;
using attention::attention_backward_store;
using attention::attention_backward_sum_floats;

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "samba/backends/cpu/attention.h"

namespace samba::cpu {

HWY_EXPORT(attention_backward_add);
HWY_EXPORT(attention_backward_block);
HWY_EXPORT(attention_backward_block_rows);
HWY_EXPORT(attention_backward_slot_floats);
HWY_EXPORT(attention_backward_store);
HWY_EXPORT(attention_backward_sum_floats);

namespace {

// The blocks of one KV head in the order of its chains: head of the group, then queries.
struct BlockOrder {
  const AttentionShape& shape;
  Index block_rows;

  Index group() const { return shape.n_heads / shape.n_kv_heads; }
  Index per_head() const { return (shape.queries + block_rows - 1) / block_rows; }
  Index count() const { return group() * per_head(); }
  AttentionBlockPlace place(Index kv, Index i) const {
    return {kv / shape.n_kv_heads, kv % shape.n_kv_heads * group() + i / per_head(), i % per_head() * block_rows};
  }
};

}  // namespace

void AttentionCpu::attention_backward(const AttentionShape& shape, const float* q, const float* k, const float* v,
                                      const float* d_context, float* dq, float* dk, float* dv,
                                      const AttentionBackwardStages& stages) {
  const Index kv_stride = shape.n_kv_heads * shape.head_dim;
  find_key_peaks(shape, KeyValueView{k, v, shape.queries * kv_stride, shape.head_dim, kv_stride, 0, 0});
  const AttentionGradient gradient{shape, q, k, v, d_context, dq, dk, dv, stages};
  const BlockOrder order{shape, SAMBA_CPU_KERNEL(context_, attention_backward_block_rows)()};
  const auto fill = SAMBA_CPU_KERNEL(context_, attention_backward_block);
  const auto add = SAMBA_CPU_KERNEL(context_, attention_backward_add);
  const auto store = SAMBA_CPU_KERNEL(context_, attention_backward_store);
  const Index slot_floats = SAMBA_CPU_KERNEL(context_, attention_backward_slot_floats)(shape);
  const Index sum_floats = SAMBA_CPU_KERNEL(context_, attention_backward_sum_floats)(shape);
  const Index heads = shape.batch * shape.n_kv_heads;
  const Index threads = context_.threads();

  const Index grain = attention_grain(3 * order.group() * shape.queries * shape.queries * shape.head_dim);
  if (heads % threads == 0 || heads >= 4 * threads || grain > 1) {  // a thread takes whole KV heads
    context_.parallel(heads, grain, [&](Index first, Index last, int thread) {
      float* slot = context_.scratch(thread, slot_floats + 2 * sum_floats);
      float* dk_sum = slot + slot_floats;
      float* dv_sum = dk_sum + sum_floats;
      for (Index kv = first; kv < last; ++kv) {
        std::fill(dk_sum, dv_sum + sum_floats, 0.0F);
        for (Index i = 0; i < order.count(); ++i) {
          fill(gradient, order.place(kv, i), key_peaks_[static_cast<std::size_t>(kv)], slot);
          add(gradient, order.place(kv, i), slot, 0, shape.queries, dk_sum, dv_sum);
        }
        const AttentionBlockPlace place = order.place(kv, 0);
        store(gradient, place.batch_row, place.head, 0, shape.queries, dk_sum, dv_sum);
      }
    });
    return;
  }

  // Few KV heads: every thread fills a slot, then all add the slots, in order, to their own keys.
  slots_.resize(static_cast<std::size_t>(threads));
  for (Index i = 0; i < threads; ++i) {
    slots_[static_cast<std::size_t>(i)] = context_.scratch(static_cast<int>(i), slot_floats + 2 * sum_floats);
  }
  float* dk_sum = slots_[0] + slot_floats;
  float* dv_sum = dk_sum + sum_floats;
  for (Index kv = 0; kv < heads; ++kv) {
    std::fill(dk_sum, dv_sum + sum_floats, 0.0F);
    for (Index wave = 0; wave < order.count(); wave += threads) {
      const Index count = std::min(threads, order.count() - wave);
      context_.parallel(count, 1, [&](Index first, Index last, int) {
        for (Index i = first; i < last; ++i) {
          fill(gradient, order.place(kv, wave + i), key_peaks_[static_cast<std::size_t>(kv)],
               slots_[static_cast<std::size_t>(i)]);
        }
      });
      context_.parallel(shape.queries, 8, [&](Index first, Index last, int) {
        for (Index i = 0; i < count; ++i) {
          add(gradient, order.place(kv, wave + i), slots_[static_cast<std::size_t>(i)], first, last, dk_sum, dv_sum);
        }
      });
    }
    const AttentionBlockPlace place = order.place(kv, 0);
    context_.parallel(shape.queries, 8, [&](Index first, Index last, int) {
      store(gradient, place.batch_row, place.head, first, last, dk_sum, dv_sum);
    });
  }
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
