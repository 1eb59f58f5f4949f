// context[t, h] = softmax(q[t, h] . keys / sqrt(head_dim)) values over the visible keys (spec 20 section 3 steps 7 to
// 13).
//
// Rows of one (batch row, KV head) are numbered row = query * group + head of the group, so that a block's positions
// ascend and its keys and values are read once for all heads that share them. Many rows: row blocks, rows in lanes. Few
// rows (decode): keys in lanes for scores and softmax, depth in lanes for the context.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/attention_forward.cpp"
#include <hwy/foreach_target.h>  // first of all, it includes this file again for every target

#include <hwy/cache_control.h>

#include "samba/backends/cpu/attention_codes-inl.h"
#include "samba/backends/cpu/attention_softmax-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace attention {

constexpr Index kFewRows = kLanes > 2 ? kLanes / 2 : 1;
constexpr Index kValueChunk = 128;  // values that stay in the first-level cache while all rows use them

// Where row `row` of (batch_row, kv_head) lies.
struct RowMap {
  const AttentionShape& shape;
  Index batch_row, kv_head;

  Index group() const { return shape.n_heads / shape.n_kv_heads; }
  Index query(Index row) const { return row / group(); }
  Index head(Index row) const { return kv_head * group() + row % group(); }
  Index position(Index row) const { return shape.first_position + query(row); }
  Index offset(Index row) const {  // into q and context
    return ((batch_row * shape.queries + query(row)) * shape.n_heads + head(row)) * shape.head_dim;
  }
  Index stage_row(Index row) const { return (batch_row * shape.n_heads + head(row)) * shape.queries + query(row); }
};

// Fetches the rows [first, first + count) that lie in the span. In a decode step the products of a layer have driven
// them out of the caches, and a panel is filled from many rows at once, which no hardware foresees.
HWY_INLINE void fetch_rows(const Rows& rows, Index first, Index count, Index span, Index depth) {
  constexpr Index kLineFloats = 16;
  for (Index row = first; row < std::min(first + count, span); ++row) {
    for (Index i = 0; i < depth; i += kLineFloats) hwy::Prefetch(rows[row] + i);
  }
}

// The scores of few rows, cells[row][padded], tile by tile of kBlockRows keys.
void score_few(const AttentionShape& shape, const RowMap& map, const float* q, const KeyValueView& view,
               Index first_row, Index rows, float* panel, float* cells, Index padded) {
  struct Queries {
    const RowMap& map;
    const float* q;
    Index first_row;
    const float* operator[](Index row) const { return q + map.offset(first_row + row); }
  };
  const Rows keys = span_rows(shape, view, view.keys, map.batch_row, map.kv_head);
  const float scale = samba::elementary::rsqrt(static_cast<float>(shape.head_dim));
  const Index span = shape.keys();
  fetch_rows(keys, 0, kBlockRows, span, shape.head_dim);
  for (Index key = 0; key < span; key += kBlockRows) {
    fetch_rows(keys, key + kBlockRows, kBlockRows, span, shape.head_dim);
    const float* pointers[static_cast<std::size_t>(kBlockRows)];
    for (Index i = 0; i < kBlockRows; ++i) pointers[i] = keys[std::min(key + i, span - 1)];
    fill_panel(pointers, shape.head_dim, panel);
    product_panel(panel, Queries{map, q, first_row}, shape.head_dim, scale, 0, rows, cells + key, padded);
  }
}

// The same from codes; `codes` has room for the rows of the queries.
void score_few_codes(const AttentionShape& shape, const RowMap& map, const float* q, const KeyValueView& view,
                     Index first_row, Index rows, float* panel, std::int16_t* codes, float* cells, Index padded) {
  struct Queries {
    const std::int16_t* codes;
    Index head_dim;
    std::int32_t exponents[static_cast<std::size_t>(kFewRows)];
    const std::int16_t* operator[](Index row) const { return codes + row * head_dim; }
    std::int32_t exponent(Index row) const { return exponents[row]; }
  };
  Queries queries{codes, shape.head_dim, {}};
  for (Index row = 0; row < rows; ++row) {
    queries.exponents[row] =
        fixed15::quantize_row(q + map.offset(first_row + row), shape.head_dim, codes + row * shape.head_dim);
  }
  const CodeRows keys = span_codes(shape, view, map.batch_row, map.kv_head);
  const float scale = samba::elementary::rsqrt(static_cast<float>(shape.head_dim));
  const Index span = shape.keys();
  CodePanel key_panel{reinterpret_cast<std::int32_t*>(panel), {}};
  for (Index key = 0; key < span; key += kBlockRows) {
    const std::int16_t* pointers[static_cast<std::size_t>(kBlockRows)];
    for (Index i = 0; i < kBlockRows; ++i) {
      const Index at = std::min(key + i, span - 1);
      pointers[i] = keys[at];
      key_panel.exponents[i] = keys.exponent(at);
    }
    key_panel.fill(pointers, shape.head_dim);
    code_panel(key_panel, queries, shape.head_dim, scale, 0, rows, cells + key, padded);
  }
}

// cells[i] += 0 for keys in [first, end), -FLT_MAX elsewhere; returns the maximum of all. Cells behind the span repeat
// its last key as a masked one, which is never above that key itself.
float mask_row(float* cells, Index padded, Index first, Index end) {
  const Lanes d;
  const hn::RebindToSigned<Lanes> di;
  Maximum maximum;
  for (Index key = 0; key < padded; key += kLanes) {
    const auto k = hn::Iota(di, static_cast<std::int32_t>(key));
    const auto sees = hn::And(hn::Gt(k, hn::Set(di, static_cast<std::int32_t>(first - 1))),
                              hn::Gt(hn::Set(di, static_cast<std::int32_t>(end)), k));
    const Vector bias = hn::IfThenElse(hn::RebindMask(d, sees), hn::Zero(d), hn::Set(d, kMaskedBias));
    const Vector masked = flush_operand(d, hn::Add(hn::LoadU(d, cells + key), bias));
    maximum.take(masked);
    keep(masked, cells + key);
  }
  alignas(64) float lanes[static_cast<std::size_t>(kLanes)];
  keep(maximum.result(), lanes);
  float result = lanes[0];
  for (Index i = 1; i < kLanes; ++i) result = samba::max(result, lanes[i]);
  return result;
}

void record_few(float* stage, Index row, const float* cells, Index span, Index first, Index end) {
  if (stage == nullptr) return;
  for (Index key = 0; key < span; ++key) {
    stage[row * span + key] = key >= first && key < end ? flush(cells[key]) : 0.0F;
  }
}

// Scores to weights, one row of few. Keys [first, end) are visible.
void softmax_few(const AttentionShape& shape, float* cells, Index padded, Index first, Index end, Index stage_row,
                 const AttentionStages& stages) {
  const Lanes d;
  const Functions l;
  const Index span = shape.keys();
  if (shape.softcap) {
    const Vector cap = splat(*shape.softcap);
    for (Index i = 0; i < padded; i += kLanes) keep(soft_cap(hn::LoadU(d, cells + i), cap), cells + i);
  }
  record_few(stages.scores, stage_row, cells, span, 0, span);
  const float maximum = mask_row(cells, padded, first, end);
  record_few(stages.masked, stage_row, cells, span, 0, span);
  if (stages.maximum != nullptr) stages.maximum[stage_row] = maximum;

  const Vector shift = hn::Set(d, maximum);
  for (Index i = first / kLanes * kLanes; i < end; i += kLanes) {
    keep(elementary::exp(l, flush_operand(d, hn::Sub(hn::LoadU(d, cells + i), shift))), cells + i);
  }
  float sum = 0.0F;
  for (Index i = first; i < end; ++i) sum += cells[i];  // no subnormal among exponentials
  record_few(stages.exponentials, stage_row, cells, span, first, end);
  if (stages.denominators != nullptr) stages.denominators[stage_row] = sum;

  const Vector denominator = hn::Set(d, sum);
  for (Index i = first / kLanes * kLanes; i < end; i += kLanes) {
    keep(flush_operand(d, hn::Div(hn::LoadU(d, cells + i), denominator)), cells + i);
  }
  record_few(stages.weights, stage_row, cells, span, first, end);
}

// out[row][width] = the value sums of few rows, their weights in cells[row][padded].
void sum_values_few(const AttentionShape& shape, const RowMap& map, const KeyValueView& view, Index first_row,
                    Index rows, const float* cells, Index padded, float* chunk, float* out, Index width) {
  const Rows values = span_rows(shape, view, view.values, map.batch_row, map.kv_head);
  const Index span = shape.keys();
  std::fill(out, out + rows * width, 0.0F);
  for (Index key = 0; key < span; key += kValueChunk) {
    const Index count = std::min(kValueChunk, span - key);
    Rows lines = values.from_row(key);
    if (width != shape.head_dim) {
      for (Index i = 0; i < count; ++i) {
        std::copy(lines[i], lines[i] + shape.head_dim, chunk + i * width);
        std::fill(chunk + i * width + shape.head_dim, chunk + (i + 1) * width, 0.0F);
      }
      lines = Rows{chunk, width, INT64_MAX, 0};
    }
    const auto inside = [&](Index absolute) { return std::clamp<Index>(absolute - shape.first_key() - key, 0, count); };
    accumulate_runs(
        Runs{out, width, cells + key, padded, lines}, 0, rows,
        [&](Index row) { return inside(shape.first_visible(map.position(first_row + row))); },
        [&](Index row) { return inside(map.position(first_row + row) + 1); });
  }
}

// The largest magnitude of the keys of one KV head, as bits.
std::uint32_t attention_key_peak(const AttentionShape& shape, const KeyValueView& view, Index batch_row,
                                 Index kv_head) {
  const Rows keys = span_rows(shape, view, view.keys, batch_row, kv_head);
  std::uint32_t found = 0;
  for (Index key = 0; key < shape.keys(); ++key) found = peak(keys[key], shape.head_dim, found);
  return found;
}

Index attention_few_rows() { return kFewRows; }
Index attention_block_rows() { return kBlockRows; }

Index attention_few_scratch(const AttentionShape& shape, Index rows) {
  const Index width = round_up(shape.head_dim, kLanes);
  return shape.head_dim * kBlockRows + rows * (round_up(shape.keys(), kBlockRows) + width) + kValueChunk * width;
}

void attention_few(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                   const AttentionStages& stages, Index batch_row, Index kv_head, Index first_row, Index rows,
                   float* scratch) {
  const RowMap map{shape, batch_row, kv_head};
  const Index padded = round_up(shape.keys(), kBlockRows);
  const Index width = round_up(shape.head_dim, kLanes);
  float* panel = scratch;
  float* cells = panel + shape.head_dim * kBlockRows;
  float* out = cells + rows * padded;
  float* chunk = out + rows * width;
  if (view.key_codes != nullptr) {  // the codes of the queries stand where their context comes later
    score_few_codes(shape, map, q, view, first_row, rows, panel, reinterpret_cast<std::int16_t*>(out), cells, padded);
  } else {
    score_few(shape, map, q, view, first_row, rows, panel, cells, padded);
  }
  for (Index r = 0; r < rows; ++r) {
    const Index p = map.position(first_row + r);
    softmax_few(shape, cells + r * padded, padded, shape.first_visible(p) - shape.first_key(),
                p + 1 - shape.first_key(), map.stage_row(first_row + r), stages);
  }
  sum_values_few(shape, map, view, first_row, rows, cells, padded, chunk, out, width);
  for (Index r = 0; r < rows; ++r) {
    float* to = context + map.offset(first_row + r);
    for (Index i = 0; i < shape.head_dim; ++i) to[i] = flush(out[r * width + i]);
  }
}

Index attention_block_scratch(const AttentionShape& shape) { return (shape.head_dim + shape.keys()) * kBlockRows; }

void attention_block(const AttentionShape& shape, const float* q, const KeyValueView& view, float* context,
                     const AttentionStages& stages, Index batch_row, Index kv_head, Index first_row,
                     std::uint32_t key_peak, float* scratch) {
  const RowMap map{shape, batch_row, kv_head};
  const Index rows = std::min(kBlockRows, shape.queries * map.group() - first_row);
  const float* pointers[static_cast<std::size_t>(kBlockRows)];
  Index stage_rows[static_cast<std::size_t>(kBlockRows)];
  std::uint32_t query_peak = 0;
  for (Index r = 0; r < kBlockRows; ++r) {
    const Index row = first_row + std::min(r, rows - 1);
    pointers[r] = q + map.offset(row);
    stage_rows[r] = map.stage_row(row);
    if (r < rows) query_peak = peak(pointers[r], shape.head_dim, query_peak);
  }
  RowBlock block;
  block.set(shape, rows, [&](Index r) { return map.position(first_row + r); });
  float* panel = scratch;
  float* tile = scratch + shape.head_dim * kBlockRows;
  const bool whole_span = wants_any(stages) || !masked_keys_are_harmless(shape.head_dim, query_peak, key_peak);
  const BlockCells cells{&block, tile, shape.keys(), stage_rows};
  if (view.key_codes != nullptr) {
    CodePanel codes{reinterpret_cast<std::int32_t*>(panel), {}};
    auto* rows_of_codes = reinterpret_cast<std::int16_t*>(panel + shape.head_dim / 2 * kBlockRows);
    const std::int16_t* code_pointers[static_cast<std::size_t>(kBlockRows)];
    for (Index r = 0; r < kBlockRows; ++r) {
      std::int16_t* row = rows_of_codes + r * shape.head_dim;
      codes.exponents[r] = fixed15::quantize_row(pointers[r], shape.head_dim, row);
      code_pointers[r] = row;
    }
    codes.fill(code_pointers, shape.head_dim);
    const auto score = [&](float scale, Index first, Index end) HWY_ATTR {
      code_panel(codes, span_codes(shape, view, batch_row, kv_head), shape.head_dim, scale, first, end, tile);
    };
    softmax_block(shape, score, whole_span, cells, stages);
  } else {
    fill_panel(pointers, shape.head_dim, panel);
    const auto score = [&](float scale, Index first, Index end) HWY_ATTR {
      const Rows keys = span_rows(shape, view, view.keys, batch_row, kv_head);
      product_panel(panel, keys, shape.head_dim, scale, first, end, tile);
    };
    softmax_block(shape, score, whole_span, cells, stages);
  }
  chain_panel(block, tile, span_rows(shape, view, view.values, batch_row, kv_head), shape.head_dim, panel);
  store_panel(panel, rows, shape.head_dim, [&](Index r) { return context + map.offset(first_row + r); });
}

}  // namespace attention

using attention::attention_block;
using attention::attention_block_rows;
using attention::attention_block_scratch;
using attention::attention_few;
using attention::attention_few_rows;
using attention::attention_few_scratch;
using attention::attention_key_peak;

}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <bit>
#include <cstring>

#include "samba/backends/cpu/attention.h"

namespace samba::cpu {

HWY_EXPORT(attention_block);
HWY_EXPORT(attention_block_rows);
HWY_EXPORT(attention_block_scratch);
HWY_EXPORT(attention_few);
HWY_EXPORT(attention_few_rows);
HWY_EXPORT(attention_few_scratch);
HWY_EXPORT(attention_key_peak);

namespace {

// Scratch that grows with the cache is asked for in powers of two, so that a decode step seldom allocates.
Index rounded_scratch(Index count) { return static_cast<Index>(std::bit_ceil(static_cast<std::size_t>(count))); }

// Blocks from both ends in turn: later ones have more keys, and every thread takes neighbours.
Index balanced(Index i, Index count) { return i % 2 == 0 ? i / 2 : count - 1 - i / 2; }

}  // namespace

void AttentionCpu::find_key_peaks(const AttentionShape& shape, const KeyValueView& view) {
  const Index heads = shape.batch * shape.n_kv_heads;
  key_peaks_.assign(static_cast<std::size_t>(heads), 0);
  context_.parallel(heads, attention_grain(shape.keys() * shape.head_dim / 8), [&](Index first, Index last, int) {
    for (Index i = first; i < last; ++i) {
      key_peaks_[static_cast<std::size_t>(i)] =
          SAMBA_CPU_KERNEL(context_, attention_key_peak)(shape, view, i / shape.n_kv_heads, i % shape.n_kv_heads);
    }
  });
}

void AttentionCpu::attention_forward(const AttentionShape& shape, const float* q, const KeyValueView& view,
                                     float* context, const AttentionStages& stages) {
  const Index heads = shape.batch * shape.n_kv_heads;
  const Index rows = shape.queries * (shape.n_heads / shape.n_kv_heads);
  if (rows <= SAMBA_CPU_KERNEL(context_, attention_few_rows)()) {
    const Index pieces = std::min(rows, (context_.threads() + heads - 1) / heads);
    const Index piece = (rows + pieces - 1) / pieces;
    const Index units = (rows + piece - 1) / piece;
    const Index scratch = rounded_scratch(SAMBA_CPU_KERNEL(context_, attention_few_scratch)(shape, piece));
    const Index grain = attention_grain(2 * piece * shape.keys() * shape.head_dim);
    context_.parallel(heads * units, grain, [&](Index first, Index last, int thread) {
      float* own = context_.scratch(thread, scratch);
      for (Index i = first; i < last; ++i) {
        const Index head = i / units, row = i % units * piece;
        SAMBA_CPU_KERNEL(context_, attention_few)
        (shape, q, view, context, stages, head / shape.n_kv_heads, head % shape.n_kv_heads, row,
         std::min(piece, rows - row), own);
      }
    });
    return;
  }
  find_key_peaks(shape, view);
  const Index block_rows = SAMBA_CPU_KERNEL(context_, attention_block_rows)();
  const Index blocks = (rows + block_rows - 1) / block_rows;
  const Index scratch = rounded_scratch(SAMBA_CPU_KERNEL(context_, attention_block_scratch)(shape));
  const Index grain = attention_grain(block_rows * shape.keys() * shape.head_dim);
  context_.parallel(heads * blocks, grain, [&](Index first, Index last, int thread) {
    float* own = context_.scratch(thread, scratch);
    for (Index i = first; i < last; ++i) {
      const Index head = i / blocks;
      SAMBA_CPU_KERNEL(context_, attention_block)
      (shape, q, view, context, stages, head / shape.n_kv_heads, head % shape.n_kv_heads,
       balanced(i % blocks, blocks) * block_rows, key_peaks_[static_cast<std::size_t>(head)], own);
    }
  });
}

void AttentionCpu::store_keys_values(const AttentionShape& shape, const float* k, const float* v, float* keys,
                                     float* values, const KeyValueView& layout) {
  const auto bytes = static_cast<std::size_t>(shape.head_dim) * sizeof(float);
  const Index heads = shape.batch * shape.n_kv_heads;
  context_.parallel(heads, attention_grain(shape.queries * shape.head_dim), [&](Index first, Index last, int) {
    for (Index i = first; i < last; ++i) {
      const Index b = i / shape.n_kv_heads, g = i % shape.n_kv_heads;
      for (Index t = 0; t < shape.queries; ++t) {
        const Index from = ((b * shape.queries + t) * shape.n_kv_heads + g) * shape.head_dim;
        const Index to = layout.row(b, g, shape.first_position + t);
        std::memcpy(keys + to, k + from, bytes);
        std::memcpy(values + to, v + from, bytes);
      }
    }
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
