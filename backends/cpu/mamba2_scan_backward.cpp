// The backward of Mamba-2 between the chunks (spec 32 section 4.4) and of the step sizes (4.6, 4.7):
//
//   1. direct_part: per (batch, chunk after the first, head) the chunk's own part of the state gradient, into d_states
//   2. carry_part:  d_states, chunks descending: dcs, the gradient of the state that leaves the chunk
//   3. state_part:  per (batch, chunk, head) off, ddec, dscale, d_dacs, d_cum; dxd_cs into d_xd
//   4. the pairs inside a chunk: mamba2_pair_backward.cpp
//   5. raw_step_part, step_sums: d_dtraw and the sums over tokens
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "samba/backends/cpu/mamba2_scan_backward.cpp"
#include <hwy/foreach_target.h>
// Highway wants its list of targets before anything else.
#include "samba/backends/cpu/mamba2-inl.h"
#include "samba/backends/cpu/mamba2.h"
#include "samba/backends/cpu/scratch_pieces.h"
#include "samba/backends/cpu/vectors-inl.h"
#include "samba/numerics/fold.h"

HWY_BEFORE_NAMESPACE();
namespace samba::cpu::HWY_NAMESPACE {
namespace {
using namespace mamba2_lanes;

const float* upstream(const ChunkOf& c, const Mamba2Gradients& g, Index i) { return g.d_skip + c.cell(i) * P; }

void read_reach(const ChunkOf& c, float* reach) {
  const float* dacs = c.call->dacs + c.head_chunk() * Q;
  each_vector(Q, [&](Index i) { store(exp(load(dacs + i)), reach + i); });
}

// direct[p][n] = two leaves over the rows of C_i[n] (dY_i[p] e_i), added always.
void direct_part(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index last, float* scratch) {
  HWY_ALIGN float reach[Q];
  const Index heads = call.heads(), later = call.chunks() - 1;
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c(call, unit / heads / later, unit / heads % later + 1, unit % heads);
    read_reach(c, reach);
    for (Index i = 0; i < c.real; ++i) {
      const V factor = broadcast(reach + i);
      const float* d_y = upstream(c, g, i);
      each_vector(P, [&](Index p) { store(mul(load(d_y + p), factor), scratch + i * P + p); });
    }
    float* out = g.d_states + c.chunk_head() * kCells;
    const Strided d_y{scratch, 1, P};
    const float* queries = c.queries().data;
    const Index stride = call.channels();
    product_part(0, P, d_y, queries, stride, N, 0, std::min(c.real, Q / 2),
                 [&](Index p, Index n, V sum) { store(sum, out + p * N + n); });
    product_part(0, P, d_y, queries, stride, N, Q / 2, std::max(c.real, Q / 2),
                 [&](Index p, Index n, V sum) { store(add(load(out + p * N + n), sum), out + p * N + n); });
  }
}

// dcs of the sequences [first, last) of (batch, head).
void carry_part(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index last, float* carry) {
  const Index heads = call.heads(), chunks = call.chunks();
  for (Index sequence = first; sequence < last; ++sequence) {
    const Index b = sequence / heads, h = sequence % heads;
    std::fill_n(carry, kCells, 0.0F);
    for (Index chunk = chunks - 1; chunk > 0; --chunk) {
      const ChunkOf c(call, b, chunk, h);
      const V e_last = exp(broadcast(call.dacs + c.head_chunk() * Q + Q - 1));
      float* out = g.d_states + c.chunk_head() * kCells;
      each_vector(kCells, [&](Index i) {
        const V before = load(carry + i);
        store(mad(e_last, before, load(out + i)), carry + i);
        store(before, out + i);
      });
    }
    std::copy_n(carry, kCells, g.d_states + call.chunk_head(b, 0, h) * kCells);
  }
}

// Scratch of one thread.
struct Pieces {
  float* xd;         // [256][64]
  float* xd_t;       // [64][256]
  float* keys_t;     // [128][256]
  float* decayed;    // [256][128] B decay
  float* state_t;    // [128][64] S
  float* d_state_t;  // [128][64] dcs
  float* y;          // [256][64] C S
  float* da;         // [256]
  float* reach;      // [256]
};
constexpr Index kScratch = 3 * Q * P + 2 * Q * N + 2 * kCells + 2 * Q;

Index state_scratch() { return kScratch; }

Pieces make_pieces(float* scratch) {
  Pieces s{};
  ScratchPieces take(scratch);
  s.xd = take(Q * P);
  s.xd_t = take(Q * P);
  s.keys_t = take(Q * N);
  s.decayed = take(Q * N);
  s.state_t = take(kCells);
  s.d_state_t = take(kCells);
  s.y = take(Q * P);
  s.da = take(Q);
  s.reach = take(Q);
  return s;
}

// dscale: 64 leaves of 128, the leaf of p in lane p.
void scale_gradient(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s) {
  HWY_ALIGN float leaves[P];
  each_vector(P, [&](Index p) {
    V sum = zero();
    for (Index n = 0; n < N; ++n) sum = add(sum, mul(load(s.d_state_t + n * P + p), load(s.state_t + n * P + p)));
    store(sum, leaves + p);
  });
  TreeFold tree;
  for (const float leaf : leaves) tree.push(leaf);
  g.d_scale[c.chunk_head()] = tree.finish();
}

// off of the real rows.
void reach_gradients(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s, float* off) {
  product(0, c.real, c.queries(), s.state_t, P, P, N, [&](Index i, Index p, V sum) { store(sum, s.y + i * P + p); });
  row_dots(c.real, P, upstream(c, g, 0), c.call->inner(), s.y, P,
           [&](Index i, float total) { off[i] = samba::mul(total, s.reach[i]); });
}

// ddec: one chain over p and n for each row, rows in lanes.
void decay_gradients(const ChunkOf& c, const Pieces& s, const float* d_state, float* d_decay) {
  constexpr Index kVectors = 4;
  constexpr Index kStep = kVectors * kLanes;
  const Index rows = round_up_to_lanes(c.real);
  transpose(
      c.real, P, [&](Index i) { return s.xd + i * P; }, s.xd_t, Q);
  transpose_state_rows(c, c.call->inner(), c.real, s.keys_t);
  for (Index first = 0; first < rows; first += kStep) {
    const Index vectors = std::min(kVectors, (rows - first) / kLanes);
    V acc[kVectors], x[kVectors];
    for (V& a : acc) a = zero();
    for (V& v : x) v = zero();
    for (Index p = 0; p < P; ++p) {
      for (Index v = 0; v < vectors; ++v) x[v] = load(s.xd_t + p * Q + first + v * kLanes);
      for (Index n = 0; n < N; ++n) {
        const V d = broadcast(d_state + p * N + n);
        const float* keys = s.keys_t + n * Q + first;
        HWY_UNROLL(4)
        for (Index v = 0; v < kVectors; ++v) {
          if (v < vectors) acc[v] = mad(d, mul(x[v], load(keys + v * kLanes)), acc[v]);
        }
      }
    }
    for (Index v = 0; v < vectors; ++v) store(acc[v], d_decay + first + v * kLanes);
  }
  std::fill(d_decay + c.real, d_decay + Q, 0.0F);
}

// d_dacs and d_cum.
void cumulative_gradients(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s) {
  const Index at = c.head_chunk() * Q;
  const float* decay = c.call->decay + at;
  float last = 0.0F;
  for (Index i = 0; i + 1 < Q; ++i) {
    const float d = samba::mul(g.d_decay[at + i], decay[i]);
    last = samba::add(last, d);
    g.d_dacs[at + i] = samba::add(samba::add(g.d_off[at + i], 0.0F), -d);
  }
  const float through_state = samba::mul(g.d_scale[c.chunk_head()], s.reach[Q - 1]);
  g.d_dacs[at + Q - 1] = samba::add(samba::add(g.d_off[at + Q - 1], through_state), last);
  float carry = 0.0F;
  for (Index i = Q - 1; i >= 0; --i) {
    carry = samba::add(carry, g.d_dacs[at + i]);
    if (i < c.real) g.d_cumsum[c.cell(i)] = carry;
  }
}

// dxd_cs of the real rows.
void input_gradients(const ChunkOf& c, const Mamba2Gradients& g, const Pieces& s) {
  scale_rows(
      c.real, [&](Index i) { return c.keys(i); }, c.call->decay + c.head_chunk() * Q, s.decayed);
  product(0, c.real, Strided{s.decayed, N, 1}, s.d_state_t, P, P, N,
          [&](Index i, Index p, V sum) { store(sum, g.d_xd + c.cell(i) * P + p); });
}

// Units [first, last) of (batch, chunk, head). Where a state or its gradient is +0 and all it meets is finite, every
// chain over it is +0.
void state_part(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index last, float* scratch) {
  const Pieces s = make_pieces(scratch);
  for (Index unit = first; unit < last; ++unit) {
    const ChunkOf c = chunk_unit(call, unit);
    const float* state = call.pass_states + unit * kCells;
    const float* d_state = g.d_states + unit * kCells;
    float* off = g.d_off + c.head_chunk() * Q;
    float* d_decay = g.d_decay + c.head_chunk() * Q;
    gather_inputs(c, s.xd, s.da);
    read_reach(c, s.reach);
    transpose(
        P, N, [&](Index p) { return state + p * N; }, s.state_t, P);
    transpose(
        P, N, [&](Index p) { return d_state + p * N; }, s.d_state_t, P);
    scale_gradient(c, g, s);
    std::fill_n(off, Q, 0.0F);
    const bool no_state = c.c == 0 && rows_finite(c.queries().data, call.channels(), c.real, N) &&
                          rows_finite(upstream(c, g, 0), call.inner(), c.real, P) && all_finite(s.reach, Q);
    if (!no_state) reach_gradients(c, g, s, off);
    const bool no_gradient = c.is_last() && all_finite(s.xd, c.real * P) &&
                             rows_finite(c.keys(0), call.channels(), c.real, N) &&
                             all_finite(call.decay + c.head_chunk() * Q, Q);
    if (no_gradient) {
      std::fill_n(d_decay, Q, 0.0F);
      for (Index i = 0; i < c.real; ++i) std::fill_n(g.d_xd + c.cell(i) * P, P, 0.0F);
    } else {
      decay_gradients(c, s, d_state, d_decay);
      input_gradients(c, g, s);
    }
    cumulative_gradients(c, g, s);
  }
}

// The lower limit that flushed values meet exactly when they meet `low`, which is compared as it is: DAZ would read a
// subnormal one as zero.
float lowest_normal(float low) {
  const bool tiny = (to_bits(low) & kExponentMask) == 0 && (to_bits(low) & kMantissaMask) != 0;
  return tiny && (to_bits(low) & kSignBit) == 0 ? kMinNormal : flush(low);
}

// d_dtraw of the tokens [first, last).
void raw_step_part(const Mamba2Call& call, const Mamba2Gradients& g, Index first, Index last) {
  const SimdLanes<D> l = lanes();
  const Index column = mamba2::dt_column(call.d_model);
  const V low = constant(lowest_normal(call.dt_low)), high = constant(-lowest_normal(-call.dt_high));
  for (Index t = first; t < last; ++t) {
    over_vectors(D(), 0, call.heads(), [&](auto io, Index h) {
      const Index at = t * call.width() + column + h;
      const V biased =
          add(flush_operand(D(), io.load(call.in_proj + at)), flush_operand(D(), io.load(call.dt_bias + h)));
      const V step = flush_store(D(), elementary::softplus(l, biased));
      const V passed = mul(io.load(g.d_dt + t * call.heads() + h), sigmoid(biased));
      io.store(select(l.both(l.le(low, step), l.le(step, high)), passed, zero()), g.d_in_proj + at);
    });
  }
}

// BLOCKSUM over the tokens, one head a lane.
void step_sums(const Mamba2Call& call, const Mamba2Gradients& g) {
  constexpr Index kBlock = 256;
  const Index heads = call.heads(), rows = call.rows();
  const float* d_raw = g.d_in_proj + mamba2::dt_column(call.d_model);
  over_vectors(D(), 0, heads, [&](auto io, Index h) {
    V rate = zero(), bias = zero();
    for (Index begin = 0; begin < rows; begin += kBlock) {
      V rate_sum = zero(), bias_sum = zero();
      for (Index t = begin; t < std::min(rows, begin + kBlock); ++t) {
        rate_sum = mad(io.load(call.dt + t * heads + h), io.load(g.d_da + t * heads + h), rate_sum);
        bias_sum = add(bias_sum, io.load(d_raw + t * call.width() + h));
      }
      rate = begin == 0 ? rate_sum : add(rate, rate_sum);
      bias = begin == 0 ? bias_sum : add(bias, bias_sum);
    }
    io.store(mul(rate, io.load(call.a + h)), g.d_a_log + h);
    io.store(bias, g.d_dt_bias + h);
  });
}

}  // namespace
}  // namespace samba::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace samba::cpu {

namespace {
HWY_EXPORT(direct_part);
HWY_EXPORT(carry_part);
HWY_EXPORT(state_scratch);
HWY_EXPORT(state_part);
HWY_EXPORT(raw_step_part);
HWY_EXPORT(step_sums);

constexpr Index kStepGrain = 1024;  // step sizes a thread should have
}  // namespace

void Mamba2Cpu::scan_backward(const Mamba2Call& call, const Mamba2Gradients& gradients) {
  const Index sequences = call.batch * call.heads();
  const Index floats = SAMBA_CPU_KERNEL(context_, state_scratch)();
  context_.parallel(sequences * (call.chunks() - 1), 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, direct_part)(call, gradients, first, last, context_.scratch(thread, floats));
  });
  context_.parallel(sequences, 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, carry_part)(call, gradients, first, last, context_.scratch(thread, floats));
  });
  context_.parallel(sequences * call.chunks(), 1, [&](Index first, Index last, int thread) {
    SAMBA_CPU_KERNEL(context_, state_part)(call, gradients, first, last, context_.scratch(thread, floats));
  });
  pair_backward(call, gradients);
  context_.parallel(call.rows(), std::max<Index>(1, kStepGrain / call.heads()), [&](Index first, Index last, int) {
    SAMBA_CPU_KERNEL(context_, raw_step_part)(call, gradients, first, last);
  });
  context_.parallel(1, 1, [&](Index, Index, int) { SAMBA_CPU_KERNEL(context_, step_sums)(call, gradients); });
}

}  // namespace samba::cpu
#endif  // HWY_ONCE
