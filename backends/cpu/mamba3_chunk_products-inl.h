// The gradients inside a chunk as matrix products: samba.fp32.v2 (docs/spec-extensions.md section 2), once per target.
#if defined(SAMBA_CPU_MAMBA3_CHUNK_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SAMBA_CPU_MAMBA3_CHUNK_PRODUCTS_INL_H_
#undef SAMBA_CPU_MAMBA3_CHUNK_PRODUCTS_INL_H_
#else
#define SAMBA_CPU_MAMBA3_CHUNK_PRODUCTS_INL_H_
#endif

#include "samba/backends/cpu/mamba3_chunk-inl.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE::mamba3_lanes {

// d_seg[i][j] = s_ij w and pairs[i][j] = w L_ij for j < i, w = chain over p of mad(dY[i][p], v_j[p], .); elsewhere +0.
inline void fill_pairs(const Chunk& c, const Pieces& s) {
  float* d_seg = c.g->d_seg + c.unit * Q * Q;
  std::fill_n(d_seg + c.real * Q, (Q - c.real) * Q, 0.0F);
  std::fill_n(s.pairs + c.real * Q, (Q - c.real) * Q, 0.0F);
  product(0, c.real, Strided{c.d_y(), c.row_p(), 1}, s.v_t, Q, Q, P, [&](Index i, Index j, V w) HWY_ATTR {
    const M below = hn::Lt(iota(j), constant(static_cast<float>(i)));
    const Index at = i * Q + j;
    w = flush_operand(D(), w);
    store(select(below, mul(load(c.scores() + at), w), zero()), d_seg + at);
    store(select(below, mul(w, load(c.decay() + at)), zero()), s.pairs + at);
  });
  transpose(
      Q, Q, [&](Index i) { return s.pairs + i * Q; }, s.pairs_t, Q);
}

// Rows [row, row + kRows) of out(i, n) = chain over k < i of mad(a(i, k), b[k][n], .): together over the terms they
// share, then each over the few that are left.
template <int kRows>
HWY_INLINE void rows_below(Strided a, Index row, const float* b, Index b_stride, const Chunk& c, float* out) {
  const auto keep = [&](Index i, Index n, V sum) HWY_ATTR { store(sum, out + c.row(i) * N + n); };
  const auto so_far = [&](Index i, Index n) HWY_ATTR { return load(out + c.row(i) * N + n); };
  product_rows<kRows>(a, row, b, b_stride, N, 0, row, keep);
  for (Index i = row + 1; i < row + kRows; ++i) {
    product_rows_from<1>(a, i, b, b_stride, N, row, i, so_far, keep);
  }
}

// The same over k > i, k < real: each row over its own terms, then together.
template <int kRows>
HWY_INLINE void rows_above(Strided a, Index row, const float* b, Index b_stride, const Chunk& c, float* out) {
  const auto keep = [&](Index i, Index n, V sum) HWY_ATTR { store(sum, out + c.row(i) * N + n); };
  const auto so_far = [&](Index i, Index n) HWY_ATTR { return load(out + c.row(i) * N + n); };
  for (Index i = row; i < row + kRows; ++i) product_rows<1>(a, i, b, b_stride, N, i + 1, row + kRows, keep);
  product_rows_from<kRows>(a, row, b, b_stride, N, row + kRows, c.real, so_far, keep);
}

// dq16 and dk16.
inline void pair_products(const Chunk& c, const Pieces& s) {
  const Strided queries{s.pairs, Q, 1}, keys{s.pairs_t, Q, 1};
  Index i = 0;
  for (; i + 4 <= c.real; i += 4) {
    rows_below<4>(queries, i, c.keys(), c.row_n(), c, c.g->d_q16);
    rows_above<4>(keys, i, c.q(), c.row_n(), c, c.g->d_k16);
  }
  for (; i < c.real; ++i) {
    rows_below<1>(queries, i, c.keys(), c.row_n(), c, c.g->d_q16);
    rows_above<1>(keys, i, c.q(), c.row_n(), c, c.g->d_k16);
  }
}

// d_adt_seg[s]: serial sums of d_seg[i][j] L[i][j] over j < s in each row i, and of these over i from s on.
inline void decay_sums_of_rows(const Chunk& c, const Pieces& s) {
  const float* d_seg = c.g->d_seg + c.unit * Q * Q;
  float* const terms = s.scaled;  // [64 j][64 i]
  each_vector(Q * Q, [&](Index at) HWY_ATTR { store(mul(load(d_seg + at), load(c.decay() + at)), s.sums + at); });
  transpose(
      Q, Q, [&](Index i) { return s.sums + i * Q; }, terms, Q);
  each_vector(Q, [&](Index i) HWY_ATTR {  // terms[s] = the sum over j < s
    V sum = zero();
    for (Index j = 0; j < Q; ++j) {
      const V term = load(terms + j * Q + i);
      store(sum, terms + j * Q + i);
      sum = add(sum, term);
    }
  });
  transpose(
      Q, Q, [&](Index j) { return terms + j * Q; }, s.sums, Q);
  HWY_ALIGN float result[Q];
  each_vector(Q, [&](Index at) HWY_ATTR {
    V sum = zero();
    for (Index i = at; i < c.real; ++i) {
      const M started = hn::Le(iota(at), constant(static_cast<float>(i)));
      sum = select(started, add(sum, load(s.sums + i * Q + at)), sum);
    }
    store(sum, result + at);
  });
  for (Index i = 0; i < c.real; ++i) c.g->d_adt_seg[c.row(i)] = result[i];
}

// What the rows' own parts of d_dacs_rec add up to and the state that was carried over the chunk, added to the last
// row.
inline void add_tail_of_rows(const Chunk& c, const Pieces& s) {
  const float* state = c.call->pass_states + c.state_piece(0);
  const float* e = c.is_last() ? s.no_state : c.g->state_gradients + c.state_piece(1);
  float sum = 0.0F, carried = 0.0F;
  for (Index j = 0; j < c.real; ++j) sum = samba::add(sum, -c.g->d_dacs_rec[c.row(j)]);
  HWY_ALIGN float rows[P];
  row_dots(P, N, e, N, state, N, [&](Index p, float dot) { rows[p] = dot; });
  for (Index p = 0; p < P; ++p) carried = samba::add(carried, rows[p]);
  float& end = c.g->d_dacs_rec[c.row(c.real - 1)];
  end = samba::add(end, samba::add(sum, samba::mul(carried, s.read[Q - 1])));
}

}  // namespace samba::cpu::HWY_NAMESPACE::mamba3_lanes
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
