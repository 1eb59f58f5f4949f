// The softmax of a row block, from its rows to its weights (spec 20 section 3 steps 7 to 12), compiled once per target.
#if defined(SAMBA_CPU_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_ATTENTION_SOFTMAX_INL_H_
#undef SAMBA_CPU_ATTENTION_SOFTMAX_INL_H_
#else
#define SAMBA_CPU_ATTENTION_SOFTMAX_INL_H_
#endif

#include "samba/backends/cpu/attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::attention {

using Functions = SimdLanes<Lanes>;
constexpr float kMaskedBias = from_bits(0xFF7FFFFFU);  // -FLT_MAX

HWY_INLINE Vector squash(Vector score, Vector cap) {
  const Functions l;
  return l.flush(elementary::tanh(l, elementary::divide(l, score, cap)));
}

// The running maximum of spec 10 section 2.10 where no value is -0: NaN is set apart.
struct Maximum {
  Vector value;
  hn::Mask<Lanes> has_nan;

  HWY_INLINE Maximum() : value(hn::Set(Lanes(), -kInfinity)), has_nan(hn::IsNaN(hn::Zero(Lanes()))) {}
  HWY_INLINE void take(Vector v) {
    has_nan = hn::Or(has_nan, hn::IsNaN(v));
    value = hn::Max(value, v);
  }
  HWY_INLINE Vector result() const { return hn::IfThenElse(has_nan, hn::Set(Lanes(), kQuietNan), value); }
};

// s -> tanh(s / cap) * cap
HWY_INLINE Vector soft_cap(Vector score, Vector cap) {
  return flush_operand(Lanes(), hn::Mul(squash(score, cap), cap));
}

// A block's cells and where the stages of its rows go.
struct BlockCells {
  const RowBlock* block;
  float* tile;                // [key][kBlockRows]
  Index span;                 // S
  const Index* rows;          // (batch row, head, query) of each block row as one number
  float* squashed = nullptr;  // under a softcap, where the tanh of each cell is wanted: a tile

  // stage[row][key]; where not `everything`, keys a row does not see hold +0.
  void record(float* stage, bool everything) const {
    if (stage == nullptr) return;
    for (Index r = 0; r < block->rows; ++r) {
      for (Index key = 0; key < span; ++key) {
        const bool held = everything || block->sees(r, key);
        stage[rows[r] * span + key] = held ? flush(tile[key * kBlockRows + r]) : 0.0F;
      }
    }
  }
  void record_rows(float* stage, const float* values) const {
    if (stage == nullptr) return;
    for (Index r = 0; r < block->rows; ++r) stage[rows[r]] = flush(values[r]);
  }
};

// tile[key] = the masked scores of the keys [first, end); returns their maxima in maxima[kBlockRows].
inline void mask_scores(const RowBlock& block, float* tile, Index first, Index end, float* maxima) {
  const Lanes d;
  for (Index lane = 0; lane < kBlockRows; lane += kLanes) {
    Maximum maximum;
    for (Index key = first; key < end; ++key) {
      float* cell = tile + key * kBlockRows + lane;
      Vector bias = hn::Zero(d);
      if (key < block.inner_first || key >= block.inner_end) {
        bias = hn::IfThenElse(visible(block, lane, key), bias, hn::Set(d, kMaskedBias));
      }
      const Vector masked = flush_operand(d, hn::Add(hn::LoadU(d, cell), bias));
      maximum.take(masked);
      keep(masked, cell);
    }
    keep(maximum.result(), maxima + lane);
  }
}

// tile[key] = exp(masked - maximum), +0 where a row does not see the key; the denominators are chains over the keys.
inline void take_exponentials(const RowBlock& block, float* tile, const float* maxima, float* denominators) {
  const Lanes d;
  const Functions l;
  const Vector maximum[2] = {hn::LoadU(d, maxima), hn::LoadU(d, maxima + kLanes)};
  Vector sum[2] = {hn::Zero(d), hn::Zero(d)};
  for (Index key = block.first; key < block.end; ++key) {
    const bool edge = key < block.inner_first || key >= block.inner_end;
    for (Index v = 0; v < 2; ++v) {
      float* cell = tile + key * kBlockRows + v * kLanes;
      Vector e = elementary::exp(l, flush_operand(d, hn::Sub(hn::LoadU(d, cell), maximum[v])));
      if (edge) e = hn::IfThenElseZero(visible(block, v * kLanes, key), e);
      keep(e, cell);
      sum[v] = flush_operand(d, hn::Add(sum[v], e));  // adding the +0 of a masked key changes no sum
    }
  }
  keep(sum[0], denominators);
  keep(sum[1], denominators + kLanes);
}

// tile[key] = exponential / denominator. Cells of keys a row does not see mean nothing.
inline void take_weights(const RowBlock& block, float* tile, const float* denominators) {
  const Lanes d;
  const Vector sum[2] = {hn::LoadU(d, denominators), hn::LoadU(d, denominators + kLanes)};
  for (Index key = block.first; key < block.end; ++key) {
    for (Index v = 0; v < 2; ++v) {
      float* cell = tile + key * kBlockRows + v * kLanes;
      keep(flush_operand(d, hn::Div(hn::LoadU(d, cell), sum[v])), cell);
    }
  }
}

// The weights of a block in cells.tile; score(scale, first, end) writes its scaled products with the keys [first, end)
// there. With `whole_span` the masked keys are scored as well: stages want them, and so does a row whose maximum they
// may be.
template <class Score>
inline void softmax_block(const AttentionShape& shape, Score&& score, bool whole_span, const BlockCells& cells,
                          const AttentionStages& stages) {
  const RowBlock& block = *cells.block;
  const Index first = whole_span ? 0 : block.first;
  const Index end = whole_span ? cells.span : block.end;
  const float scale = samba::elementary::rsqrt(static_cast<float>(shape.head_dim));
  score(scale, first, end);
  if (shape.softcap) {
    const Vector cap = splat(*shape.softcap);
    for (Index i = first * kBlockRows; i < end * kBlockRows; i += kLanes) {
      const Vector t = squash(hn::LoadU(Lanes(), cells.tile + i), cap);
      if (cells.squashed != nullptr) keep(t, cells.squashed + i);
      keep(flush_operand(Lanes(), hn::Mul(t, cap)), cells.tile + i);
    }
  }
  cells.record(stages.scores, true);
  alignas(64) float maxima[static_cast<std::size_t>(kBlockRows)];
  alignas(64) float denominators[static_cast<std::size_t>(kBlockRows)];
  mask_scores(block, cells.tile, first, end, maxima);
  cells.record(stages.masked, true);
  cells.record_rows(stages.maximum, maxima);
  take_exponentials(block, cells.tile, maxima, denominators);
  cells.record(stages.exponentials, false);
  cells.record_rows(stages.denominators, denominators);
  take_weights(block, cells.tile, denominators);
  cells.record(stages.weights, false);
}

inline bool wants_any(const AttentionStages& stages) {
  return stages.scores != nullptr || stages.masked != nullptr || stages.maximum != nullptr ||
         stages.exponentials != nullptr || stages.denominators != nullptr || stages.weights != nullptr;
}

}  // namespace samba::cpu::HWY_NAMESPACE::attention
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
