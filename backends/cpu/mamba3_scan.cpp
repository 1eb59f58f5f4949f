// The chunked scan of Mamba-3 (spec 40 sections 3.9 to 3.12): one (batch, head) after the other through its chunks.
//
// Per chunk of up to 64 rows, state S[p][n] entering it, all operands flushed:
//   L[i][j] = exp(adt[j+1] + ... + adt[i])          M[i][j] = (q_i . ks_j) * L[i][j] for j < i, else +0
//   y[i] = (q_i . S) * exp(da_i) + M[i] V + (D + qkdot_i) v_i                g[i] = y[i] * silu(z_i)
//   S = exp(da_63) * S + (V * exp(da_63 - da))^T KS
//
// A step has kernels of its own (mamba3_step.cpp).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba3_scan.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba3-inl.h"
#include "samba/backends/cpu/mamba3.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba3_lanes;

// Scratch of one thread, and where the current (batch, head, chunk) lies.
struct Chunk {
  const Mamba3Call* call;
  Index batch, head, chunk;
  Index real;       // working rows of the chunk
  Index first_new;  // the rows before are buffered: no output for them
  bool finite_v;

  float* v;            // [64][64], zero rows from `real` on
  float* v_decayed;    // [64][64]
  float* k_t;          // [128][64] scaled keys, transposed; then some of their columns
  float* state_t;      // [128][64]
  float* decay;        // [64][64] L
  float* weights;      // [64][64] M; written for j < the next multiple of the lanes after i
  float* y_intra;      // [64][64]
  float* adt;          // [64]
  float* da;           // [64]
  float* exp_da;       // [64]
  float* skip_weight;  // [64] D + qkdot

  Index first_row() const { return chunk * Q; }  // as a working row
  Index new_token(Index i) const { return batch * call->tokens + first_row() + i - call->buffered; }
  Index output(Index i) const { return (new_token(i) * call->heads() + head) * P; }
  // The rotated queries of the new rows.
  Strided queries() const {
    return {call->current.q + (new_token(first_new) * call->heads() + head) * N, k_stride(), 1, first_new};
  }
  // Scaled keys of the chunk's rows, k_stride() apart.
  const float* keys() const {
    return call->k_scaled + ((batch * call->working_rows() + first_row()) * call->heads() + head) * N;
  }
  Index k_stride() const { return call->heads() * N; }
  Index unit() const { return (batch * call->heads() + head) * call->chunks() + chunk; }
};

constexpr Index kScratch = 5 * Q * P + 3 * N * Q + 4 * Q;

Index scan_scratch() { return kScratch; }

// The chunk's v and adt, and the cumulative sums of adt (section 3.9).
void gather_rows(Chunk& c) {
  const Mamba3Call& call = *c.call;
  const Index heads = call.heads();
  float sum = 0.0F;
  for (Index i = 0; i < Q; ++i) {
    float* v = c.v + i * P;
    if (i >= c.real) {
      std::fill_n(v, P, 0.0F);
      c.adt[i] = 0.0F;
      c.da[i] = sum;
      continue;
    }
    const bool buffered = i < c.first_new;
    const Mamba3Rows& rows = buffered ? call.buffer : call.current;
    const Index row = c.batch * rows.rows + c.first_row() + i - (buffered ? 0 : call.buffered);
    std::copy_n(rows.v + row * rows.v_stride + c.head * P, P, v);
    c.adt[i] = flush(rows.adt[row * heads + c.head]);
    sum = i == 0 ? c.adt[0] : samba::add(sum, c.adt[i]);
    c.da[i] = sum;
  }
  c.finite_v = all_finite(c.v, Q * P);
  each_vector(Q, [&](Index i) { store(exp(load(c.da + i)), c.exp_da + i); });
  if (call.dacs != nullptr) std::copy_n(c.da, Q, call.dacs + c.unit() * Q);
}

// Rows [first, last) of L. Every column's sum walks the rows from its own diagonal; rows from `real` on repeat it.
void fill_decay(const Chunk& c, Index first, Index last) {
  for (Index x = 0; x < Q; x += kLanes) {
    const V column = iota(x);
    V sum = zero();
    for (Index i = 0; i < last; ++i) {
      if (x >= i) {
        if (i >= first) store(zero(), c.decay + i * Q + x);
        continue;
      }
      const M below = hn::Lt(column, constant(static_cast<float>(i)));
      if (i < c.real) sum = select(below, add(sum, broadcast(c.adt + i)), zero());
      if (i >= first) store(select(below, exp(sum), zero()), c.decay + i * Q + x);
    }
  }
}

// Scores and M of the rows [i, i + kRows).
template <int kRows>
void score_rows(const Chunk& c, Index i) {
  float* scores = c.call->scores == nullptr ? nullptr : c.call->scores + c.unit() * Q * Q;
  const Strided q = c.queries();
  const Index width = round_up_to_lanes(i + kRows);
  product_rows<kRows>(q, i, c.k_t, Q, width, 0, N, [&](Index row, Index x, V score) {
    if (scores != nullptr) store(score, scores + row * Q + x);
    const M below = hn::Lt(iota(x), constant(static_cast<float>(row)));
    const V weight = mul(flush_operand(D(), score), load(c.decay + row * Q + x));
    store(select(below, weight, zero()), c.weights + row * Q + x);
  });
}

// The full chain of 64 terms of one vector of y_intra, M = +0 from the diagonal on included (section 4).
V full_intra(const Chunk& c, Index row, Index x) {
  V sum = zero();
  for (Index j = 0; j < Q; ++j) {
    sum = mad(j < row ? broadcast(c.weights + row * Q + j) : zero(), load(c.v + j * P + x), sum);
  }
  return sum;
}

template <int kRows>
void intra_rows(const Chunk& c, Index i) {
  const Strided weights{c.weights, Q, 1};
  product_rows<kRows>(weights, i, c.v, P, P, 0, i + kRows, [&](Index row, Index x, V sum) {
    // The skipped terms are +0 * v: they only matter to a -0.0, or when v is not finite.
    if (!c.finite_v || has_negative_zero(flush_store(D(), sum))) sum = full_intra(c, row, x);
    store(sum, c.y_intra + row * P + x);
    if (c.call->y_intra != nullptr) store(sum, c.call->y_intra + c.output(row) + x);
  });
}

// Outputs of the rows [i, i + kRows).
template <int kRows>
void output_rows(const Chunk& c, Index i) {
  const Mamba3Call& call = *c.call;
  const Index width = mamba3::projection_width(call.d_model);
  const Strided q = c.queries();
  product_rows<kRows>(q, i, c.state_t, P, P, 0, N, [&](Index row, Index x, V sum) {
    const Index out = c.output(row) + x;
    const V from_state = mul(sum, broadcast(c.exp_da + row));
    if (call.y_state != nullptr) store(from_state, call.y_state + out);
    const V y0 = add(from_state, load(c.y_intra + row * P + x));
    const V y1 = add(y0, mul(broadcast(c.skip_weight + row), load(c.v + row * P + x)));
    store(y1, call.skip + out);
    const V z = load(call.in_proj + c.new_token(row) * width + mamba3::columns(call.d_model).z + c.head * P + x);
    store(mul(y1, silu(z)), call.gate + out);
  });
}

// Outputs of the chunk's new rows (section 3.12), from the state entering it.
void chunk_outputs(const Chunk& c, const float* state) {
  const Mamba3Call& call = *c.call;
  const Index heads = call.heads();
  const bool keep = call.decay != nullptr;
  fill_decay(c, keep ? 0 : c.first_new, keep ? Q : c.real);
  const float* keys = c.keys();
  const Index stride = c.k_stride();
  transpose(
      c.real, N, [&](Index j) { return keys + j * stride; }, c.k_t, Q);
  transpose(
      P, N, [&](Index p) { return state + p * N; }, c.state_t, P);
  for (Index i = c.first_new; i < c.real; ++i) {
    const Index row = c.new_token(i) * heads + c.head;
    const float gamma = call.gamma[(c.batch * call.working_rows() + c.first_row() + i) * heads + c.head];
    const float qkdot = samba::mul(call.qk_chain[row], gamma);
    if (call.qkdot != nullptr) call.qkdot[row] = qkdot;
    c.skip_weight[i] = samba::add(call.d[c.head], qkdot);
  }
  Index i = c.first_new;
  for (; i + 4 <= c.real; i += 4) {
    score_rows<4>(c, i);
    intra_rows<4>(c, i);
    output_rows<4>(c, i);
  }
  for (; i < c.real; ++i) {
    score_rows<1>(c, i);
    intra_rows<1>(c, i);
    output_rows<1>(c, i);
  }
}

// The state leaving the chunk (section 3.11). `to` may be `state`.
void chunk_state(const Chunk& c, const float* state, float* to) {
  const V last = broadcast(c.da + Q - 1);
  HWY_ALIGN float left[Q];
  each_vector(Q, [&](Index i) { store(exp(sub(last, load(c.da + i))), left + i); });
  for (Index i = 0; i < c.real; ++i) {
    const V factor = broadcast(left + i);
    each_vector(P, [&](Index p) { store(mul(load(c.v + i * P + p), factor), c.v_decayed + i * P + p); });
  }
  const V carry = broadcast(c.exp_da + Q - 1);
  const float* keys = c.keys();
  const auto key = [&](Index i, Index n) { return load(keys + i * c.k_stride() + n); };
  // The terms of the rows that are missing are +0 * +0: they turn a -0.0 into +0.0.
  const bool missing_rows = c.real < Q;
  packed_product(P, Strided{c.v_decayed, 1, P}, N, c.real, key, c.k_t, [&](Index p, Index n, V sum) {
    if (missing_rows) sum = add(sum, zero());
    store(mad(carry, load(state + p * N + n), sum), to + p * N + n);
  });
}

// Section 3.10: the input states enter h before the first chunk.
void apply_pending(const Mamba3Call& call, Index batch, Index head, float* h) {
  const Index sequence = batch * call.heads() + head;
  const Index first = batch * call.current.rows * call.heads() + head;
  const V factor = constant(samba::mul(call.current.dt[first], samba::sub(1.0F, call.current.sigma[first])));
  for (Index p = 0; p < P; ++p) {
    const V v = broadcast(call.pending_v + sequence * P + p);
    each_vector(N, [&](Index n) {
      const V product = mul(mul(v, load(call.pending_k + sequence * N + n)), factor);
      store(add(load(h + p * N + n), product), h + p * N + n);
    });
  }
}

Chunk chunk_scratch(const Mamba3Call& call, float* scratch) {
  Chunk c{};
  c.call = &call;
  float** const squares[] = {&c.v, &c.v_decayed, &c.decay, &c.weights, &c.y_intra};
  for (float** piece : squares) {
    *piece = scratch;
    scratch += Q * P;
  }
  float** const states[] = {&c.k_t, &c.state_t};
  for (float** piece : states) {
    *piece = scratch;
    scratch += N * Q;
  }
  float** const columns[] = {&c.adt, &c.da, &c.exp_da, &c.skip_weight};
  for (float** piece : columns) {
    *piece = scratch;
    scratch += Q;
  }
  return c;
}

// Sequences [first, last) of (batch, head).
void scan_part(const Mamba3Call& call, Index first, Index last, float* scratch) {
  Chunk c = chunk_scratch(call, scratch);
  float* const fresh_state = scratch + kScratch - N * P;
  float* const own_decay = c.decay;
  const Index heads = call.heads(), chunks = call.chunks();
  for (Index sequence = first; sequence < last; ++sequence) {
    c.batch = sequence / heads;
    c.head = sequence % heads;
    float* state = call.h == nullptr ? fresh_state : call.h + sequence * P * N;
    if (call.h == nullptr) std::fill_n(state, P * N, 0.0F);
    if (call.pending_k != nullptr) apply_pending(call, c.batch, c.head, state);
    for (c.chunk = 0; c.chunk < chunks; ++c.chunk) {
      c.real = mamba3_real_rows(call, c.chunk);
      c.first_new = std::clamp<Index>(call.buffered - c.first_row(), 0, c.real);
      c.decay = call.decay == nullptr ? own_decay : call.decay + c.unit() * Q * Q;
      gather_rows(c);
      if (call.pass_states != nullptr) {
        float* pass = call.pass_states + ((c.batch * chunks + c.chunk) * heads + c.head) * P * N;
        each_vector(P * N, [&](Index i) { store(load(state + i), pass + i); });
      }
      if (c.first_new < c.real) chunk_outputs(c, state);
      if (c.chunk + 1 < chunks) {
        chunk_state(c, state, state);
      } else if (call.h_last != nullptr) {
        chunk_state(c, state, call.h_last + sequence * P * N);
      }
    }
  }
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(scan_scratch);
HWY_EXPORT(scan_part);
}  // namespace

void Mamba3Cpu::scan(const Mamba3Call& call) {
  if (is_step(call)) return step(call);
  const Index floats = SAMBA_CPU_KERNEL(context_, scan_scratch)();
  context_.parallel(call.batch * call.heads(), 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, scan_part)(call, first, last, context_.scratch(thread, floats));
  });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
