// What the Mamba-2 kernels share, once per target: the rows of a chunk, step sizes, segment sums, triangular products.
#if defined(SAMBA_CPU_MAMBA2_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_MAMBA2_INL_H_
#undef SAMBA_CPU_MAMBA2_INL_H_
#else
#define SAMBA_CPU_MAMBA2_INL_H_
#endif

#include "samba/backends/cpu/tiles-inl.h"
#include "samba/kernels/mamba2.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::mamba2_lanes {

using namespace tiles;

inline constexpr Index P = mamba2::kHeadDim;
inline constexpr Index N = mamba2::kStateSize;
inline constexpr Index Q = mamba2::kChunk;
inline constexpr Index kCells = P * N;

// One chunk of one batch row, and the head that is worked on.
struct ChunkOf {
  const Mamba2Call* call;
  Index b, c, h;
  Index real;       // working rows of the chunk
  Index first_new;  // the rows before are buffered: no output for them

  ChunkOf(const Mamba2Call& of, Index batch, Index chunk, Index head)
      : call(&of), b(batch), c(chunk), h(head), real(of.real_rows(chunk)), first_new(of.first_new(chunk)) {}

  Index token(Index i) const { return call->token(b, c, i); }
  Index cell(Index i) const { return token(i) * call->heads() + h; }  // of [M, H]
  Index head_chunk() const { return call->head_chunk(b, h, c); }
  Index chunk_head() const { return call->chunk_head(b, c, h); }
  bool is_last() const { return c + 1 == call->chunks(); }
  // Row i of xBC: x of all heads, then B at column inner() and C at inner() + N.
  const float* xbc(Index i) const {
    return i < first_new ? call->buffer_xbc + (b * Q + i) * call->channels() : call->x_bc + token(i) * call->channels();
  }
  const float* x(Index i) const { return xbc(i) + h * P; }
  const float* keys(Index i) const { return xbc(i) + call->inner(); }
  // C of the new rows.
  Strided queries() const {
    return {call->x_bc + token(first_new) * call->channels() + call->inner() + N, call->channels(), 1, first_new};
  }
  float dt(Index i) const { return call->dt[(b * call->working_rows() + c * Q + i) * call->heads() + h]; }
};

// Units of work (batch, chunk, head) in row-major order.
HWY_INLINE ChunkOf chunk_unit(const Mamba2Call& call, Index unit) {
  const Index heads = call.heads();
  return {call, unit / heads / call.chunks(), unit / heads % call.chunks(), unit % heads};
}

// clamp of spec 10 section 2.10: the total order of the bits, first up to low, then down to high; NaN is apart.
HWY_INLINE V clamp_step(V x, float low, float high) {
  const SimdLanes<D> l = lanes();
  if (is_nan(low) || is_nan(high)) return constant(kQuietNan);
  const auto key = [&](V v) { return order_key(l, l.as_int(v)); };
  const V lo = constant(flush(low)), hi = constant(flush(high));
  V v = flush_store(D(), x);
  v = select(l.igt(key(lo), key(v)), lo, v);
  v = select(l.igt(key(v), key(hi)), hi, v);
  return select(l.nan(x), constant(kQuietNan), v);
}

// S8: dt of the working rows [first, last) of all batch rows.
HWY_INLINE void step_sizes(const Mamba2Call& call, Index first, Index last) {
  const SimdLanes<D> l = lanes();
  const Index heads = call.heads(), working = call.working_rows();
  for (Index row = first; row < last; ++row) {
    const Index b = row / working, t = row % working;
    const float* raw = t < call.buffered ? call.buffer_dt + (b * Q + t) * heads
                                         : call.in_proj + (b * call.tokens + t - call.buffered) * call.width() +
                                               mamba2::dt_column(call.d_model);
    over_vectors(D(), 0, heads, [&](auto io, Index h) {
      const V biased = add(flush_operand(D(), io.load(raw + h)), flush_operand(D(), io.load(call.dt_bias + h)));
      const V step = flush_operand(D(), elementary::softplus(l, biased));
      io.store(clamp_step(step, call.dt_low, call.dt_high), call.dt + row * heads + h);
    });
  }
}

// S18, S19 of the cells of row i from column x of the head on, y being the scan's.
HWY_INLINE void write_output(const ChunkOf& c, Index i, Index x, V y) {
  const Mamba2Call& call = *c.call;
  const Index out = c.cell(i) * P + x;
  const V skip = add(y, mul(load(c.x(i) + x), broadcast(call.d + c.h)));
  store(skip, call.skip + out);
  store(mul(skip, silu(load(call.in_proj + c.token(i) * call.width() + c.h * P + x))), call.gate + out);
}

// xd[i][p] = x_i dt_i and da[i] = dt_i A for the real rows.
HWY_INLINE void gather_inputs(const ChunkOf& c, float* HWY_RESTRICT xd, float* HWY_RESTRICT da) {
  for (Index i = 0; i < c.real; ++i) {
    const float dt = c.dt(i);
    const float* x = c.x(i);
    da[i] = samba::mul(dt, c.call->a[c.h]);
    const V factor = constant(dt);
    each_vector(P, [&](Index p) { store(mul(load(x + p), factor), xd + i * P + p); });
  }
}

// scaled[i][n] = rows(i)[n] * factor[i] for i < count
template <class Rows>
HWY_INLINE void scale_rows(Index count, Rows&& rows, const float* factor, float* scaled) {
  for (Index i = 0; i < count; ++i) {
    const float* row = rows(i);
    const V by = broadcast(factor + i);
    each_vector(N, [&](Index n) { store(mul(load(row + n), by), scaled + i * N + n); });
  }
}

// The segment sums of row i from those of row i - 1: sums[j] += da[i] for j < i, a new column +0. Cells after i hold
// anything.
HWY_INLINE void advance_sums(const float* da, Index i, float* HWY_RESTRICT sums) {
  const V step = broadcast(da + i);
  for (Index x = 0; x < i; x += kLanes) hn::StoreU(add(load(sums + x), step), D(), sums + x);
  sums[i] = 0.0F;
}

// The lanes from column x on that are at or before `row`.
HWY_INLINE M up_to(Index x, Index row) { return hn::Le(iota(x), constant(static_cast<float>(row))); }

// The real rows of B or C (`column`) transposed to [N][Q]; columns up to the next multiple of the lanes are +0.
HWY_INLINE void transpose_state_rows(const ChunkOf& c, Index column, Index rows, float* to) {
  transpose(
      rows, N, [&](Index i) { return c.xbc(i) + column; }, to, Q);
  for (Index n = 0; n < N && rows < round_up_to_lanes(rows); ++n) {
    std::fill(to + n * Q + rows, to + n * Q + round_up_to_lanes(rows), 0.0F);
  }
}

// body<4>(row) for whole groups of rows of [first, end), body<1>(row) for the others.
template <class Body>
HWY_INLINE void row_groups(Index first, Index end, Body&& body) {
  Index row = first;
  for (; row + 4 <= end; row += 4) body(std::integral_constant<int, 4>(), row);
  for (; row < end; ++row) body(std::integral_constant<int, 1>(), row);
}

// Sums of a group of rows between two parts of their chains.
struct PartialRows {
  HWY_ALIGN float at[4][N];

  HWY_INLINE void keep(Index row, Index x, V sum) { store(sum, at[row] + x); }
  HWY_INLINE V get(Index row, Index x) const { return load(at[row] + x); }
};

// Rows [row, row + kRows) of a product whose chain runs over k in [first, row's own index].
template <int kRows, class Finish>
HWY_INLINE void lower_rows(Strided a, Index row, const float* b, Index b_stride, Index width, Index first,
                           Finish&& finish) {
  PartialRows partial;
  product_rows<kRows>(a, row, b, b_stride, width, first, row + 1,
                      [&](Index i, Index x, V sum) { partial.keep(i - row, x, sum); });
  const auto start = [&](Index i, Index x) { return partial.get(i - row, x); };
  for (int r = 0; r < kRows; ++r) {
    product_rows_from<1>(a, row + r, b, b_stride, width, row + 1, row + r + 1, start, finish);
  }
}

// The same over k in [row's own index, end).
template <int kRows, class Finish>
HWY_INLINE void upper_rows(Strided a, Index row, const float* b, Index b_stride, Index width, Index end,
                           Finish&& finish) {
  if constexpr (kRows == 1) {
    product_rows<1>(a, row, b, b_stride, width, row, end, finish);
  } else {
    PartialRows partial;
    const auto keep = [&](Index i, Index x, V sum) { partial.keep(i - row, x, sum); };
    for (int r = 0; r < kRows; ++r) product_rows<1>(a, row + r, b, b_stride, width, row + r, row + kRows, keep);
    const auto start = [&](Index i, Index x) { return partial.get(i - row, x); };
    product_rows_from<kRows>(a, row, b, b_stride, width, row + kRows, end, start, finish);
  }
}

// True when `rows` rows of `width` values, `stride` apart, are finite.
HWY_INLINE bool rows_finite(const float* first, Index stride, Index rows, Index width) {
  for (Index i = 0; i < rows; ++i) {
    if (!all_finite(first + i * stride, width)) return false;
  }
  return true;
}

}  // namespace samba::cpu::HWY_NAMESPACE::mamba2_lanes
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
