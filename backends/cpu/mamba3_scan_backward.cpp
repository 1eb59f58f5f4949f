// The backward of the chunked scan (spec 41 sections 3.4 to 3.8, d_adt of 3.11). Work is cut into (batch, head, chunk):
//
//   1. direct_part: the chunk's own part of the state gradient        3.6, into state_gradients
//   2. carry_part:  state_gradients, chunks descending                 3.6, [b, c, h, 64, 128]: G
//   3. chunk_part:  everything of the chunk but the tail chain         3.4, 3.5, 3.7 (1) to (4), 3.8
//   4. tail_part:   the serial chains of 3.7 (5), one chunk a lane     mamba3_tail_chain.cpp; not of samba.fp32.v2
//   5. decay_part:  d_dacs, d_adt_dacs, d_adt                          3.8, 3.11
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_scan_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3_chunk-inl.h"
#include "samba/backends/cpu/mamba3_chunk_products-inl.h"
#include "samba/backends/cpu/mamba3_scan_backward.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

// direct[p][n] = chain over the real rows of mad(dY[i][p], q_i[n] * exp(da_i), .)
void direct_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last, float* scratch) {
  for (Index unit = first; unit < last; ++unit) {
    const Chunk c = make_chunk(call, g, unit);
    HWY_ALIGN float read[Q];
    each_vector(Q, [&](Index i) { store(exp(load(c.dacs() + i)), read + i); });
    for (Index i = 0; i < c.real; ++i) {
      const V factor = broadcast(read + i);
      const float* q = c.q() + i * c.row_n();
      each_vector(N, [&](Index n) { store(mul(load(q + n), factor), scratch + i * N + n); });
    }
    float* out = g.state_gradients + c.state_piece(0);
    product(0, P, Strided{c.d_y(), 1, c.row_p()}, scratch, N, N, c.real,
            [&](Index p, Index n, V sum) { store(sum, out + p * N + n); });
  }
}

// G_c = direct + carry * exp(da_63), two roundings, for the sequences [first, last) of (batch, head).
void carry_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last) {
  const Index heads = call.heads(), chunks = call.chunks();
  for (Index sequence = first; sequence < last; ++sequence) {
    for (Index chunk = chunks - 1; chunk >= 0; --chunk) {
      const Chunk c = make_chunk(call, g, sequence * chunks + chunk);
      const V factor = exp(broadcast(c.dacs() + Q - 1));
      float* out = g.state_gradients + c.state_piece(0);
      const float* carry = out + heads * P * N;
      const bool last_chunk = c.is_last();
      each_vector(P * N, [&](Index i) {
        const V from = last_chunk ? zero() : load(carry + i);
        store(add(load(out + i), mul(from, factor)), out + i);
      });
    }
  }
}

// scaled[j][n] = rows[j][n] * factor(j) for j < count
template <class Factor>
HWY_INLINE void scale_rows(Index count, const float* rows, Index stride, Factor&& factor, float* scaled) {
  for (Index j = 0; j < count; ++j) {
    const V by = broadcast(factor(j));
    each_vector(N, [&](Index n) { store(mul(load(rows + j * stride + n), by), scaled + j * N + n); });
  }
}

// kVectors chains of 64 * rows steps (see PairChain): p outer, j inner. `left` and `right` are the factors of the fused
// step and of the product.
template <bool kQuerySide>
HWY_INLINE void pair_chain(Index rows, const float* HWY_RESTRICT scaled, const float* HWY_RESTRICT inner,
                           const float* HWY_RESTRICT outer, Index outer_stride, float* HWY_RESTRICT out) {
  // Eight chains cover the latency of the fused step; two operands and a product beside them fit 16 registers.
  constexpr Index kVectors = 8;
  for (Index first = 0; first < N; first += kVectors * kLanes) {
    V acc[kVectors];
    HWY_UNROLL(8)
    for (Index x = 0; x < kVectors; ++x) acc[x] = zero();
    for (Index p = 0; p < P; ++p) {
      const V fixed = broadcast(outer + p * outer_stride);
      const float* HWY_RESTRICT row = scaled + first;
      const float* HWY_RESTRICT moving = inner + p * Q;
      for (Index j = 0; j < rows; ++j, row += N) {
        const V other = broadcast(moving + j);
        HWY_UNROLL(8)
        for (Index x = 0; x < kVectors; ++x) {
          const V product = mul(load(row + x * kLanes), kQuerySide ? other : fixed);
          acc[x] = mad(kQuerySide ? fixed : other, product, acc[x]);
        }
      }
    }
    HWY_UNROLL(8)
    for (Index x = 0; x < kVectors; ++x) store(acc[x], out + first + x * kLanes);
  }
}

// dq16 of row i: the keys of the rows before it.
void query_chain(const Chunk& c, const Pieces& s, Index i, float* out) {
  scale_rows(
      i, c.keys(), c.row_n(), [&](Index j) { return c.decay() + i * Q + j; }, s.scaled);
  pair_chain<true>(i, s.scaled, s.v_t, s.d_y_t + i, Q, out);
}

// dk16 of row i: the queries of the rows after it.
void key_chain(const Chunk& c, const Pieces& s, Index i, float* out) {
  const Index after = i + 1;
  scale_rows(
      c.real - after, c.q() + after * c.row_n(), c.row_n(), [&](Index j) { return c.decay() + (after + j) * Q + i; },
      s.scaled);
  pair_chain<false>(c.real - after, s.scaled, s.d_y_t + after, s.v_t + i, Q, out);
}

// dv16[i0][p] = chain over the rows i after i0 of mad(dY[i][p], M[i][i0], .), and dv_skip + dv16.
template <int kRows>
void value_rows(const Chunk& c, const Pieces& s, Index i0) {
  // The rows of a block start together: M is +0 up to each row's own diagonal, and +0 * dY leaves a +0 as it is.
  product_rows<kRows>(Strided{s.weights, 1, Q}, i0, c.d_y(), c.row_p(), P, i0 + 1, c.real,
                      [&](Index i, Index p, V sum) {
                        const Index at = c.row(i) * P + p;
                        store(sum, c.g->d_v16 + at);
                        store(add(load(c.g->d_v_skip + at), sum), s.d_value + i * P + p);
                      });
}

void value_gradients(const Chunk& c, const Pieces& s) {
  bool finite = true;
  for (Index i = 0; i < c.real && finite; ++i) finite = all_finite(c.d_y() + i * c.row_p(), P);
  Index i = 0;
  for (; finite && i + 4 <= c.real; i += 4) value_rows<4>(c, s, i);
  for (; i < c.real; ++i) value_rows<1>(c, s, i);
}

// d_seg[i][j] = chain over p of mad(dY[i][p], s_ij * v_j[p], .) for j < i.
void decay_gradients(const Chunk& c, const Pieces& s) {
  constexpr Index kVectors = 4;
  constexpr Index kStep = kVectors * kLanes;
  float* d_seg = c.g->d_seg + c.unit * Q * Q;
  std::fill_n(d_seg, Q * Q, 0.0F);
  for (Index i = 1; i < c.real; ++i) {
    for (Index first = 0; first < i; first += kStep) {
      V acc[kVectors], score[kVectors];
      for (Index x = 0; x < kVectors; ++x) {
        acc[x] = zero();
        score[x] = load(c.scores() + i * Q + first + x * kLanes);
      }
      for (Index p = 0; p < P; ++p) {
        const V d_y = broadcast(s.d_y_t + p * Q + i);
        HWY_UNROLL(4)
        for (Index x = 0; x < kVectors; ++x) {
          acc[x] = mad(d_y, mul(score[x], load(s.v_t + p * Q + first + x * kLanes)), acc[x]);
        }
      }
      for (Index x = 0; x < kVectors; ++x) {
        const Index j = first + x * kLanes;
        const M below = hn::Lt(iota(j), constant(static_cast<float>(i)));
        store(select(below, acc[x], zero()), d_seg + i * Q + j);
      }
    }
  }
}

// d_adt_seg[s] = one chain over i >= s, j < s of mad(d_seg[i][j], L[i][j], .): lanes over s, each in its own order.
void decay_sums(const Chunk& c) {
  const float* d_seg = c.g->d_seg + c.unit * Q * Q;
  for (Index first = 0; first < c.real; first += kLanes) {
    const V position = iota(first);
    V acc = zero();
    for (Index i = first; i < c.real; ++i) {
      const M started = hn::Le(position, constant(static_cast<float>(i)));
      const Index end = std::min(i, first + kLanes - 1);
      for (Index j = 0; j < end; ++j) {
        const M takes = hn::And(started, hn::Lt(constant(static_cast<float>(j)), position));
        const V next = mad(broadcast(d_seg + i * Q + j), broadcast(c.decay() + i * Q + j), acc);
        acc = select(takes, next, acc);
      }
    }
    HWY_ALIGN float sums[kLanes];
    store(acc, sums);
    for (Index i = first; i < std::min(c.real, first + kLanes); ++i) c.g->d_adt_seg[c.row(i)] = sums[i - first];
  }
}

// Section 3.7 (1): the query side of the state term, joined to dq16 which d_q16 holds.
void state_queries(const Chunk& c, const Pieces& s) {
  const float* state = c.call->pass_states + c.state_piece(0);
  product(0, c.real, Strided{c.d_y(), c.row_p(), 1}, state, N, N, P, [&](Index i, Index n, V u) {
    store(u, s.scaled + i * N + n);
    const Index at = c.row(i) * N + n;
    store(add(load(c.g->d_q16 + at), mul(u, broadcast(s.read + i))), c.g->d_q + at);
  });
  row_dots(c.real, N, c.q(), c.row_n(), s.scaled, N,
           [&](Index i, float dot) { c.g->d_dacs_read[c.row(i)] = samba::mul(dot, s.read[i]); });
}

// Section 3.7 (2) to (4): the key and value sides, E being the gradient of the state that leaves the chunk.
void state_keys_and_values(const Chunk& c, const Pieces& s) {
  const float* e = c.is_last() ? s.no_state : c.g->state_gradients + c.state_piece(1);
  product(0, c.real, Strided{s.v, P, 1}, e, N, N, P, [&](Index i, Index n, V u) {
    const Index at = c.row(i) * N + n;
    store(add(load(c.g->d_k16 + at), mul(u, broadcast(s.left + i))), c.g->d_k + at);
  });
  transpose(
      P, N, [&](Index p) { return e + p * N; }, s.state_t, P);
  product(0, c.real, Strided{c.keys(), c.row_n(), 1}, s.state_t, P, P, N, [&](Index i, Index p, V u) {
    const Index at = c.row(i) * P + p;
    const V d_v17 = mul(u, broadcast(s.left + i));
    store(d_v17, c.g->d_v17 + at);
    store(add(load(s.d_value + i * P + p), d_v17), c.g->d_v + at);
  });
  row_dots(c.real, P, c.g->d_v17 + c.first * P, c.row_p(), s.v, P,
           [&](Index i, float dot) { c.g->d_dacs_rec[c.row(i)] = -dot; });
}

// The bits of the largest magnitude of `count` values; those of a NaN are above all others.
std::uint32_t largest(const float* x, Index count, std::uint32_t so_far) {
  for (Index i = 0; i < count; ++i) so_far = std::max(so_far, to_bits(x[i]) & ~kSignBit);
  return so_far;
}

// Section 3.7 (5) in the last chunk, where E is +0: the chain is +0 unless a product of it is not finite.
float last_tail(const Chunk& c, const Pieces& s) {
  const float* state = c.call->pass_states + c.state_piece(0);
  std::uint32_t keys = 0;
  for (Index j = 0; j < c.real; ++j) keys = largest(c.keys() + j * c.row_n(), N, keys);
  const std::uint32_t values = largest(s.v, c.real * P, 0);
  const std::uint32_t states = largest(state, P * N, 0);
  // The exponents are at most 0, so that the other factors are at most 1.
  if (is_finite(from_bits(values) * from_bits(keys)) && states < kExponentMask && is_finite(c.dacs()[Q - 1]))
    return 0.0F;
  float sum = 0.0F;
  for (Index j = 0; j < c.real; ++j) {
    for (Index p = 0; p < P; ++p) {
      for (Index n = 0; n < N; ++n) {
        const float key = c.keys()[j * c.row_n() + n];
        sum = samba::mad(0.0F, samba::mul(samba::mul(s.v[j * P + p], key), s.left[j]), sum);
      }
    }
  }
  const float carry = s.read[Q - 1];
  for (Index i = 0; i < P * N; ++i) sum = samba::mad(0.0F, samba::mul(state[i], carry), sum);
  return sum;
}

Index backward_scratch() { return kPiecesFloats; }

// `products`: samba.fp32.v2.
void chunk_part(const Mamba3Call& call, const Mamba3Gradients& g, bool products, Index first, Index last,
                float* scratch) {
  const Pieces s = make_pieces(scratch);
  for (Index unit = first; unit < last; ++unit) {
    const Chunk c = make_chunk(call, g, unit);
    gather(c, s);
    if (products) {
      fill_pairs(c, s);
      pair_products(c, s);
      decay_sums_of_rows(c, s);
    } else {
      for (Index i = 0; i < c.real; ++i) {
        query_chain(c, s, i, g.d_q16 + c.row(i) * N);
        key_chain(c, s, i, g.d_k16 + c.row(i) * N);
      }
      decay_gradients(c, s);
      decay_sums(c);
    }
    value_gradients(c, s);
    state_queries(c, s);
    state_keys_and_values(c, s);
    if (products) {
      add_tail_of_rows(c, s);
    } else if (c.is_last()) {
      float& end = g.d_dacs_rec[c.row(c.real - 1)];
      end = samba::add(end, last_tail(c, s));
    }
  }
}

// d_dacs, its suffix sums inside the chunk, and d_adt.
void decay_part(const Mamba3Call& call, const Mamba3Gradients& g, Index first, Index last) {
  for (Index unit = first; unit < last; ++unit) {
    const Chunk c = make_chunk(call, g, unit);
    float run = 0.0F;
    for (Index i = c.real - 1; i >= 0; --i) {
      const Index row = c.row(i);
      g.d_dacs[row] = samba::add(g.d_dacs_read[row], g.d_dacs_rec[row]);
      run = samba::add(run, g.d_dacs[row]);
      g.d_adt_dacs[row] = run;
      g.d_adt[row] = samba::add(g.d_adt_seg[row], run);
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(direct_part);
HWY_EXPORT(carry_part);
HWY_EXPORT(backward_scratch);
HWY_EXPORT(chunk_part);
HWY_EXPORT(decay_part);
}  // namespace

namespace {

void scan_backward_of(Context& context, const Mamba3Call& call, const Mamba3Gradients& gradients, bool products) {
  const Index sequences = call.batch * call.heads();
  const Index units = sequences * call.chunks();
  const Index floats = SAMBA_CPU_KERNEL(context, backward_scratch)();
  context.parallel(units, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context, direct_part)(call, gradients, first, last, context.scratch(thread, floats));
  });
  context.parallel(sequences, 1, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context, carry_part)(call, gradients, first, last);
  });
  context.parallel(units, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context, chunk_part)(call, gradients, products, first, last, context.scratch(thread, floats));
  });
  if (!products) mamba3_tail_chains(context, call, gradients);
  context.parallel(units, 1, [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context, decay_part)(call, gradients, first, last);
  });
}

}  // namespace

void Mamba3Cpu::scan_backward(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  scan_backward_of(context_, call, gradients, false);
}

void Mamba3Cpu::scan_backward_products(const Mamba3Call& call, const Mamba3Gradients& gradients) {
  scan_backward_of(context_, call, gradients, true);
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
