// The pieces attention kernels of the cpu executor are made of, compiled once per target.
//
// A row block is kBlockRows rows (queries of one KV head) in the lanes of two vectors. Its tiles are [key][kBlockRows],
// its panels [depth][kBlockRows]. Three register kernels do the work; each output is one unbroken chain:
//   product_panel    tile[key][row] = NT over depth of panel[.][row] and row `key`        (scores, d_weights)
//   chain_panel      out[d][row] = chain over visible keys of tile[key][row] * key row[d]  (context, dQ)
//   accumulate_runs  out[j][d] += chain over t of coefficient[j][t] * row t[d]             (decode context, dK, dV)
// They run under DAZ, so tiles may hold subnormals that count as zeros; what leaves a kernel passes flush_store.
#if defined(SAMBA_CPU_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_ATTENTION_INL_H_
#undef SAMBA_CPU_ATTENTION_INL_H_
#else
#define SAMBA_CPU_ATTENTION_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "samba/backends/cpu/vectors-inl.h"
#include "samba/kernels/attention.h"
#include "samba/numerics/elementary.h"
#include "samba/numerics/float32.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::attention {

using Lanes = hn::ScalableTag<float>;
using Vector = hn::Vec<Lanes>;

constexpr Index kLanes = static_cast<Index>(hn::MaxLanes(Lanes()));
constexpr Index kBlockRows = 2 * kLanes;
constexpr int kTile = kLanes >= 16 ? 8 : 4;        // kTile x 2 accumulators of the panel kernels
constexpr int kRunVectors = kLanes >= 16 ? 4 : 2;  // kRunRows x kRunVectors accumulators of the run kernel
constexpr int kRunRows = 4;

constexpr Index round_up(Index count, Index unit) { return (count + unit - 1) / unit * unit; }

HWY_INLINE Vector mad(Vector a, Vector b, Vector c) { return flush_operand(Lanes(), fused(Lanes(), a, b, c)); }
HWY_INLINE Vector load(const float* from) { return flush_operand(Lanes(), hn::LoadU(Lanes(), from)); }
HWY_INLINE Vector splat(float value) { return flush_operand(Lanes(), hn::Set(Lanes(), value)); }
HWY_INLINE void keep(Vector v, float* to) { hn::StoreU(v, Lanes(), to); }

// Rows of head_dim floats by number. From row `wrap` on a ring has begun anew.
struct Rows {
  const float* base = nullptr;
  Index stride = 0;
  Index wrap = INT64_MAX;
  Index back = 0;
  const float* operator[](Index row) const { return base + row * stride - (row >= wrap ? back : 0); }
  Rows at_column(Index column) const { return {base + column, stride, wrap, back}; }
  Rows from_row(Index row) const {
    return {(*this)[row], stride, row >= wrap || wrap == INT64_MAX ? INT64_MAX : wrap - row, back};
  }
};

// The keys' (or values') rows of the span, in span order.
inline Rows span_rows(const AttentionShape& shape, const KeyValueView& view, const float* from, Index batch_row,
                      Index kv_head) {
  Rows rows{from + view.row(batch_row, kv_head, shape.first_key()), view.slot_stride, INT64_MAX, 0};
  if (view.ring > 0) {
    rows.wrap = view.ring - shape.first_key() % view.ring;
    rows.back = view.ring * view.slot_stride;
  }
  return rows;
}

// The largest magnitude of `count` floats as bits; infinities and NaN are above all others.
inline std::uint32_t peak(const float* values, Index count, std::uint32_t so_far) {
  for (Index i = 0; i < count; ++i) so_far = std::max(so_far, to_bits(values[i]) & ~kSignBit);
  return so_far;
}

// Spec 20 section 4's cheap test: no masked key can be the maximum of a row.
inline bool masked_keys_are_harmless(Index head_dim, std::uint32_t query_peak, std::uint32_t key_peak) {
  if (query_peak >= kExponentMask || key_peak >= kExponentMask) return false;
  const double bound = static_cast<double>(head_dim) * static_cast<double>(from_bits(query_peak)) *
                       static_cast<double>(from_bits(key_peak));
  return bound < 0x1p126;
}

// Which keys (span indices) the rows of a block see. Lanes without a row repeat the last row.
struct RowBlock {
  Index rows = 0;
  Index first = 0, end = 0;              // some row sees these
  Index inner_first = 0, inner_end = 0;  // every row sees these; empty: inner_first == inner_end == end
  alignas(64) std::int32_t before[static_cast<std::size_t>(kBlockRows)];  // a row sees the keys between, exclusive
  alignas(64) std::int32_t after[static_cast<std::size_t>(kBlockRows)];

  bool sees(Index row, Index key) const { return before[row] < key && key < after[row]; }

  // Absolute positions of the rows, ascending.
  template <class Position>
  void set(const AttentionShape& shape, Index row_count, Position&& position) {
    rows = row_count;
    for (Index r = 0; r < kBlockRows; ++r) {
      const Index p = position(std::min(r, rows - 1));
      before[r] = static_cast<std::int32_t>(shape.first_visible(p) - shape.first_key() - 1);
      after[r] = static_cast<std::int32_t>(p - shape.first_key() + 1);
    }
    first = before[0] + 1;
    end = after[rows - 1];
    inner_first = before[rows - 1] + 1;
    inner_end = after[0];
    if (inner_first >= inner_end) inner_first = inner_end = end;
  }
};

HWY_INLINE hn::Mask<Lanes> visible(const RowBlock& block, Index lane, Index key) {
  const hn::RebindToSigned<Lanes> di;
  const auto k = hn::Set(di, static_cast<std::int32_t>(key));
  return hn::RebindMask(
      Lanes(), hn::And(hn::Gt(k, hn::LoadU(di, block.before + lane)), hn::Gt(hn::LoadU(di, block.after + lane), k)));
}

// panel[i][r] = rows[r][i] for r < kBlockRows, i < depth.
inline void fill_panel(const float* const* rows, Index depth, float* panel) {
  Index i = 0;
#if HWY_TARGET != HWY_SCALAR
  for (; i + 4 <= depth; i += 4) {
    for (Index lane = 0; lane < kBlockRows; lane += kLanes) {
      Vector columns[4];
      load_transposed(
          Lanes(), [&](Index l) { return rows[lane + l] + i; }, columns);
      for (Index c = 0; c < 4; ++c) keep(flush_operand(Lanes(), columns[c]), panel + (i + c) * kBlockRows + lane);
    }
  }
#endif
  for (; i < depth; ++i) {
    for (Index r = 0; r < kBlockRows; ++r) panel[i * kBlockRows + r] = flush(rows[r][i]);
  }
}

// out(r)[d] = flushed panel[d][r] for r < rows, d < depth. The panel has round_up(depth, kLanes) readable rows.
template <class Out>
inline void store_panel(const float* panel, Index rows, Index depth, Out&& out) {
  Index column = 0;
#if HWY_TARGET != HWY_SCALAR
  const Lanes d;
  for (; column + kLanes <= depth; column += kLanes) {
    for (Index r = 0; r < rows; r += 4) {
      Vector lines[4];
      load_transposed(
          Lanes(), [&](Index l) { return panel + (column + l) * kBlockRows + r; }, lines);
      const Index count = std::min<Index>(4, rows - r);
      for (Index i = 0; i < count; ++i) hn::StoreU(flush_store(d, lines[i]), d, out(r + i) + column);
    }
  }
#endif
  for (; column < depth; ++column) {
    for (Index r = 0; r < rows; ++r) out(r)[column] = flush(panel[column * kBlockRows + r]);
  }
}

// One leaf: acc[c] = chain over i of panel[i] * rows[c][i], from +0.
template <int kCount>
HWY_INLINE void product_leaf(const float* panel, const float* const* rows, Index first, Index end,
                             Vector (&acc)[kCount][2]) {
#pragma GCC unroll 8
  for (int c = 0; c < kCount; ++c) acc[c][0] = acc[c][1] = hn::Zero(Lanes());
  for (Index i = first; i < end; ++i) {
    const Vector low = hn::LoadU(Lanes(), panel + i * kBlockRows);
    const Vector high = hn::LoadU(Lanes(), panel + i * kBlockRows + kLanes);
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) {
      const Vector factor = splat(rows[c][i]);
      acc[c][0] = mad(low, factor, acc[c][0]);
      acc[c][1] = mad(high, factor, acc[c][1]);
    }
  }
}

// TreeFold (samba/numerics/fold.h) of whole register tiles.
template <int kCount>
struct TileTree {
  alignas(64) float stack[kMaxTreeDepth + 1][static_cast<std::size_t>(kCount * kBlockRows)];
  int depth = 0;
  Index pushed = 0;

  void push(const Vector (&acc)[kCount][2]) {
    for (int c = 0; c < kCount; ++c) {
      keep(acc[c][0], stack[depth] + c * kBlockRows);
      keep(acc[c][1], stack[depth] + c * kBlockRows + kLanes);
    }
    ++depth;
    ++pushed;
    for (Index rest = pushed; (rest & 1) == 0; rest >>= 1) merge();
  }
  void finish(Vector (&acc)[kCount][2]) {
    while (depth > 1) merge();
    for (int c = 0; c < kCount; ++c) {
      acc[c][0] = load(stack[0] + c * kBlockRows);
      acc[c][1] = load(stack[0] + c * kBlockRows + kLanes);
    }
  }
  void merge() {
    float* lower = stack[depth - 2];
    const float* upper = stack[depth - 1];
    for (Index i = 0; i < kCount * kBlockRows; i += kLanes) {
      keep(flush_operand(Lanes(), hn::Add(load(lower + i), load(upper + i))), lower + i);
    }
    --depth;
  }
};

// out[c * out_stride + r] = NT over depth of panel[.][r] and rows[c], times `scale`.
template <int kCount>
HWY_INLINE void product_tile(const float* panel, const float* const* rows, Index depth, Vector scale, float* out,
                             Index out_stride) {
  Vector acc[kCount][2];
  const Index leaf = leaf_length(depth);
  if (depth == leaf) {
    product_leaf<kCount>(panel, rows, 0, depth, acc);
  } else {
    TileTree<kCount> tree;
    for (Index first = 0; first < depth; first += leaf) {
      product_leaf<kCount>(panel, rows, first, std::min(first + leaf, depth), acc);
      tree.push(acc);
    }
    tree.finish(acc);
  }
#pragma GCC unroll 8
  for (int c = 0; c < kCount; ++c) {
    keep(flush_operand(Lanes(), hn::Mul(acc[c][0], scale)), out + c * out_stride);
    keep(flush_operand(Lanes(), hn::Mul(acc[c][1], scale)), out + c * out_stride + kLanes);
  }
}

template <int kCount, class Source>
HWY_INLINE Index product_tiles(const float* panel, const Source& rows, Index depth, Vector scale, Index first,
                               Index end, float* out, Index out_stride) {
  for (; first + kCount <= end; first += kCount) {
    const float* pointers[kCount];
    for (int c = 0; c < kCount; ++c) pointers[c] = rows[first + c];
    product_tile<kCount>(panel, pointers, depth, scale, out + first * out_stride, out_stride);
  }
  return first;
}

// out[row * out_stride + r] for row in [first, end); rows[row] points to a row.
template <class Source>
inline void product_panel(const float* panel, const Source& rows, Index depth, float scale, Index first, Index end,
                          float* out, Index out_stride = kBlockRows) {
  const Vector factor = hn::Set(Lanes(), scale);
  first = product_tiles<kTile>(panel, rows, depth, factor, first, end, out, out_stride);
  first = product_tiles<kTile / 2>(panel, rows, depth, factor, first, end, out, out_stride);
  product_tiles<1>(panel, rows, depth, factor, first, end, out, out_stride);
}

template <int kCount, bool kMasked>
HWY_INLINE void chain_keys(const RowBlock& block, const float* tile, const Rows& rows, Index first, Index end,
                           Vector (&acc)[kCount][2]) {
  for (Index key = first; key < end; ++key) {
    const Vector low = hn::LoadU(Lanes(), tile + key * kBlockRows);
    const Vector high = hn::LoadU(Lanes(), tile + key * kBlockRows + kLanes);
    const float* row = rows[key];
    if constexpr (kMasked) {
      const auto see_low = visible(block, 0, key);
      const auto see_high = visible(block, kLanes, key);
#pragma GCC unroll 8
      for (int c = 0; c < kCount; ++c) {
        const Vector factor = splat(row[c]);
        acc[c][0] = hn::IfThenElse(see_low, mad(low, factor, acc[c][0]), acc[c][0]);
        acc[c][1] = hn::IfThenElse(see_high, mad(high, factor, acc[c][1]), acc[c][1]);
      }
    } else {
#pragma GCC unroll 8
      for (int c = 0; c < kCount; ++c) {
        const Vector factor = splat(row[c]);
        acc[c][0] = mad(low, factor, acc[c][0]);
        acc[c][1] = mad(high, factor, acc[c][1]);
      }
    }
  }
}

template <int kCount>
HWY_INLINE Index chain_columns(const RowBlock& block, const float* tile, const Rows& rows, Index first, Index end,
                               float* out) {
  for (; first + kCount <= end; first += kCount) {
    Vector acc[kCount][2];
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) acc[c][0] = acc[c][1] = hn::Zero(Lanes());
    const Rows at = rows.at_column(first);
    chain_keys<kCount, true>(block, tile, at, block.first, block.inner_first, acc);
    chain_keys<kCount, false>(block, tile, at, block.inner_first, block.inner_end, acc);
    chain_keys<kCount, true>(block, tile, at, block.inner_end, block.end, acc);
#pragma GCC unroll 8
    for (int c = 0; c < kCount; ++c) {
      keep(acc[c][0], out + (first + c) * kBlockRows);
      keep(acc[c][1], out + (first + c) * kBlockRows + kLanes);
    }
  }
  return first;
}

// out[d][r] = chain over the keys row r sees, ascending, of tile[key][r] * rows[key][d]; d < depth.
inline void chain_panel(const RowBlock& block, const float* tile, const Rows& rows, Index depth, float* out) {
  Index first = chain_columns<kTile>(block, tile, rows, 0, depth, out);
  first = chain_columns<kTile / 2>(block, tile, rows, first, depth, out);
  chain_columns<1>(block, tile, rows, first, depth, out);
}

// Chains that go on: out[j][d] = fma(coefficients[j][t], rows[t][d], out[j][d]) for t ascending.
struct Runs {
  float* out;  // [.][width], width a multiple of kLanes; the rows are as long
  Index width;
  const float* coefficients;
  Index coefficient_stride;
  Rows rows;
};

template <int kCount, int kVectors>
HWY_INLINE void run_tile(const Runs& runs, Index j, Index column, Index first, Index end) {
  Vector acc[kCount][kVectors];
  float* out = runs.out + j * runs.width + column;
  const float* coefficients = runs.coefficients + j * runs.coefficient_stride;
#pragma GCC unroll 4
  for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) acc[c][v] = hn::LoadU(Lanes(), out + c * runs.width + v * kLanes);
  }
  for (Index t = first; t < end; ++t) {
    const float* row = runs.rows[t] + column;
    Vector values[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) values[v] = load(row + v * kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < kCount; ++c) {
      const Vector factor = splat(coefficients[c * runs.coefficient_stride + t]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) acc[c][v] = mad(factor, values[v], acc[c][v]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kCount; ++c) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) keep(acc[c][v], out + c * runs.width + v * kLanes);
  }
}

template <int kCount>
inline void run_columns(const Runs& runs, Index j, Index first, Index end) {
  if (first >= end) return;
  Index column = 0;
  for (; column + kRunVectors * kLanes <= runs.width; column += kRunVectors * kLanes) {
    run_tile<kCount, kRunVectors>(runs, j, column, first, end);
  }
  for (; column < runs.width; column += kLanes) run_tile<kCount, 1>(runs, j, column, first, end);
}

// Rows j in [first_j, end_j); row j takes the t of [begin(j), end(j)). Both do not descend with j.
template <class Begin, class End>
inline void accumulate_runs(const Runs& runs, Index first_j, Index end_j, Begin&& begin, End&& end) {
  Index j = first_j;
  for (; j + kRunRows <= end_j; j += kRunRows) {
    const Index common_begin = begin(j + kRunRows - 1);
    const Index common_end = end(j);
    if (common_begin >= common_end) {
      for (Index i = j; i < j + kRunRows; ++i) run_columns<1>(runs, i, begin(i), end(i));
      continue;
    }
    for (Index i = j; i < j + kRunRows; ++i) run_columns<1>(runs, i, begin(i), common_begin);
    run_columns<kRunRows>(runs, j, common_begin, common_end);
    for (Index i = j; i < j + kRunRows; ++i) run_columns<1>(runs, i, common_end, end(i));
  }
  for (; j < end_j; ++j) run_columns<1>(runs, j, begin(j), end(j));
}

}  // namespace samba::cpu::HWY_NAMESPACE::attention
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
